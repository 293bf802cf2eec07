//! Cases of the time until a container's function runs, and until it has answered.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cwasi_bench_protocol::{Job, Made, Verb};
use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::paths;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, guests_dir};

use super::Group;
use crate::fixture::{Fixture, WORKFLOW, stage};
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::stats::Rounds;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "starts",
    about: "containers, until they have run or answered",
    cases: |_| vec![RUN.to_owned(), ANSWER.to_owned()],
    run,
};

/// A container that does nothing, from `ctr run` until it is removed.
const RUN: &str = "coldstart-ctr-run";
/// A function that is called, from `ctr run` until its first answer is there.
const ANSWER: &str = "coldstart-first-answer";
/// The runtime beside ours.
pub const RUNC: &str = "io.containerd.runc.v2";
/// One image for both: a root file system with busybox and the guests of this group.
pub const IMAGE: &str = "localhost/starts:bench";
/// Longest wait for a server's first answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Between two tries to reach it.
const POLL: Duration = Duration::from_micros(200);

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-starts")?;
    import(&session.programs, &scene)?;
    if wanted.iter().any(|case| case == RUN) {
        session.case(&[RUN.to_owned()], |session| to_the_end(session, &scene));
    }
    if wanted.iter().any(|case| case == ANSWER) {
        session.case(&[ANSWER.to_owned()], |session| to_the_first_answer(session, &scene));
    }
    Ok(())
}

/// Imports the image.
///
/// # Errors
/// When a guest was not built.
pub fn import(programs: &Path, scene: &Scene) -> Result<()> {
    let mut rootfs = Rootfs::default();
    rootfs.file(&paths::busybox()?, "bin/busybox")?;
    let guests = guests_dir(programs);
    for name in ["bench-noop.wasm", "bench_touch_none.wasm"] {
        rootfs.file(&guests.join(name), name)?;
    }
    let archive = scene.containerd.ready().dir.join("starts.tar");
    rootfs.write(IMAGE, &Start::default(), &archive)?;
    scene.import(&archive);
    Ok(())
}

/// Runs it and waits for its end, without the polling of [`Run::output`].
///
/// # Errors
/// When it fails.
pub fn timed(mut command: Command) -> Result<Duration> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let took = started.elapsed();
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(took)
}

#[must_use]
pub fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

fn to_the_end(session: &mut Session, scene: &Scene) -> Result<()> {
    let rounds = session.effort.pick(60, 12);
    let [mut ours, mut theirs] = [Rounds::default(), Rounds::default()];
    for round in 0..=rounds {
        let run = |id: &str, program: [&str; 2]| {
            let program = program.into_iter().filter(|word| !word.is_empty());
            Run::new(&scene.namespace, IMAGE, &format!("{id}-{round}")).args(program)
        };
        let wasm = timed(run("wasm", ["/bench-noop.wasm", ""]).command(&scene.containerd, false))?;
        let native = run("native", ["/bin/busybox", "true"]).runtime(RUNC);
        let native = timed(native.command(&scene.containerd, false))?;
        // The first one compiles the module, and warms up both.
        if round > 0 {
            ours.0.push(vec![micros(wasm)]);
            theirs.0.push(vec![micros(native)]);
        }
    }
    session.report.add(Comparison {
        case: RUN,
        unit: "us",
        ours: &ours,
        baseline: Some(("runc", &theirs)),
        direction: Direction::OursByBaseline,
        conditions: format!(
            "ctr run --rm, from its start to its end; ours an empty Rust program as WebAssembly, compiled before, runc's \
             `busybox true`; one image, one containerd 1.6, {rounds} of each in turns; ratio is ours by runc: smaller is better"
        ),
    });
    Ok(())
}

fn to_the_first_answer(session: &mut Session, scene: &Scene) -> Result<()> {
    let rounds = session.effort.pick(40, 8);
    let fixture = Fixture::on(scene);
    let mut driver = fixture.driver(&[])?;
    let [mut ours, mut theirs] = [Rounds::default(), Rounds::default()];
    for round in 0..=rounds {
        let id = format!("callee-{round}");
        let callee = Run::new(&scene.namespace, IMAGE, &id)
            .args(["/bench_touch_none.wasm"])
            .annotation("cwasi.role", "secondary")
            .annotation("cwasi.function", &id)
            .annotation("cwasi.workflow", WORKFLOW);
        let started = Instant::now();
        timed(callee.command(&scene.containerd, true))?;
        driver.side.perform(&one_call(&id))?;
        let wasm = started.elapsed();
        scene.remove(&id);
        let native = native_answer(scene, &format!("httpd-{round}"))?;
        if round > 0 {
            ours.0.push(vec![micros(wasm)]);
            theirs.0.push(vec![micros(native)]);
        }
    }
    driver.side.end()?;
    session.report.add(Comparison {
        case: ANSWER,
        unit: "us",
        ours: &ours,
        baseline: Some(("runc", &theirs)),
        direction: Direction::OursByBaseline,
        conditions: format!(
            "from the start of ctr run --detach until the first answer is there; ours a secondary called by a function of \
             its workflow that runs already (the shim daemon does, too), runc's a busybox httpd in the host's network asked \
             by HTTP; one containerd 1.6, {rounds} of each in turns; ratio is ours by runc: smaller is better"
        ),
    });
    Ok(())
}

fn one_call(target: &str) -> Job {
    Job {
        verb: Verb::Call,
        targets: vec![target.to_owned()],
        size: 64,
        made: Made::Vector,
        touch: false,
        count: 1,
        branches: 1,
    }
}

/// A container with a web server, until it has answered.
fn native_answer(scene: &Scene, id: &str) -> Result<Duration> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let server = Run::new(&scene.namespace, IMAGE, id).runtime(RUNC).flag("--net-host").args([
        "/bin/busybox",
        "httpd",
        "-f",
        "-p",
        &free.to_string(),
    ]);
    let started = Instant::now();
    timed(server.command(&scene.containerd, true))?;
    while !answers(free) {
        if started.elapsed() > ANSWER_MAX {
            bail!("{id} does not answer");
        }
        std::thread::sleep(POLL);
    }
    let took = started.elapsed();
    scene.remove(id);
    Ok(took)
}

/// True when a web server says anything, be it that there is no such page.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<usize> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read(&mut [0; 64])
    };
    ask().is_ok_and(|len| len > 0)
}
