//! Section III-A4: what compiling costs a cold start, which WOW saves by compiling at the upload.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::fixture::stage;
use cwasi_testbed::run::Run as ContainerRun;
use cwasi_testbed::scene::Scene;

use crate::exhibit::{Exhibit, Form as Drawn};
use crate::openwhisk::code::{Form, of, unknown};
use crate::openwhisk::platform::Platform;
use crate::openwhisk::{EXECUTOR, PROXY, platforms};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::images::{PROGRAM, RUNC};
use crate::sides::load::millis;

pub const GROUP: Group =
    Group { name: "WOW: compiling and loading", entries: &["wow-compiling"], run };

const ACTION: &str = "hash";
const COMPILES: &str = "first /init of a code";
const LOADS: &str = "another /init of it";
const SAYS_HELLO: &str = "a container that says hello";

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-compiling")?;
    let repeats = run.effort.pick(100, 10);
    let module = of(&run.programs, Form::Module, ACTION)?;
    #[expect(clippy::cast_precision_loss, reason = "kilobytes")]
    let size = module.len() as f64 / 1e3;
    let mut series = Vec::new();
    for platform in platforms(run, &scene, 1, &[ACTION])? {
        if !platform.name.starts_with("CWASI") {
            continue;
        }
        let (mut first, mut again) = (Vec::new(), Vec::new());
        for number in 0..repeats as u64 {
            let code = unknown(&module, number);
            first.push(init(&scene, &platform, &format!("first-{number}"), &code)?);
            again.push(init(&scene, &platform, &format!("again-{number}"), &code)?);
        }
        series.push(Series::new(&platform.name, COMPILES, "ms", first));
        series.push(Series::new(&platform.name, LOADS, "ms", again));
    }
    let image = run.own_image(&scene)?;
    let hello = |number| says_hello(&scene, &image, &format!("hello-{number}"));
    let hello = (0..repeats).map(hello).collect::<Result<Vec<_>>>()?;
    series.push(Series::new("runc", SAYS_HELLO, "ms", hello));
    let conditions = format!(
        "The request `/init` alone, {repeats} times. The first one delivers code that no cache knows: the module of `{ACTION}` ({size:.0} \
         KB) with a section that differs each time, so it is compiled. The second one delivers the same code. The paper’s module \
         has 1.6 MB. The container: `ctr run` until a native program of its image has printed a line and ended, in runc. \
         {EXECUTOR} and containers are as in Figure 4b; {PROXY} and others compile nothing."
    );
    Ok(vec![Exhibit::new("wow-compiling", Drawn::Table, conditions, series).published(&[
        ("wasmtime, compiling", COMPILES, 35.0),
        ("wasmtime, compiling for speed", COMPILES, 40.0),
        ("wasmtime, instance of compiled code", LOADS, 0.34),
        ("Docker", SAYS_HELLO, 452.0),
    ])])
}

/// Milliseconds of the request that delivers this code.
fn init(scene: &Scene, platform: &Platform, id: &str, code: &[u8]) -> Result<f64> {
    platform.create(scene, id, ACTION)?.with_code(code).init()
}

fn says_hello(scene: &Scene, image: &str, id: &str) -> Result<f64> {
    let run = ContainerRun::new(&scene.namespace, image, id).runtime(RUNC);
    let mut command: Command = run.args([PROGRAM, "--help"]).command(&scene.containerd, false);
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output().context("ctr run")?;
    let took = millis(began);
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(took)
}
