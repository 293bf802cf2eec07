//! Cases of many containers that are started at the same time, until all of them run.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::Scene;

use super::Group;
use super::starts::{IMAGE, RUNC, import};
use crate::fixture::{WORKFLOW, stage};
use crate::plan::Effort;
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::stats::Rounds;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "burst",
    about: "containers that are started at the same time",
    cases: |effort| Containers::OURS.map(|kind| kind.case(count(effort))).to_vec(),
    run,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Containers {
    /// Functions of one workflow: one shim daemon.
    Workflow,
    /// Functions by themselves: a shim daemon each.
    Apart,
    /// Containers of runc: a shim each.
    Native,
}

impl Containers {
    const OURS: [Self; 2] = [Self::Workflow, Self::Apart];

    fn case(self, count: usize) -> String {
        let apart = if self == Self::Apart { "-apart" } else { "" };
        format!("start-{count}-at-once{apart}")
    }

    fn command(self, scene: &Scene, id: &str) -> Command {
        let run = Run::new(&scene.namespace, IMAGE, id);
        let run = match self {
            Self::Native => run.runtime(RUNC).args(["/bin/busybox", "sleep", "1000"]),
            Self::Apart | Self::Workflow => run
                .args(["/bench_touch_none.wasm"])
                .annotation("cwasi.role", "secondary")
                .annotation("cwasi.function", id),
        };
        let run =
            if self == Self::Workflow { run.annotation("cwasi.workflow", WORKFLOW) } else { run };
        run.command(&scene.containerd, true)
    }
}

const fn count(effort: Effort) -> usize {
    match effort {
        Effort::Smoke => 3,
        _ => 100,
    }
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-burst")?;
    import(&session.programs, &scene)?;
    // Compiles the module.
    at_once(&scene, Containers::Workflow, "first", 1)?;
    let (count, rounds) = (count(session.effort), session.effort.pick(5, 2));
    for kind in Containers::OURS {
        let case = kind.case(count);
        if wanted.contains(&case) {
            session.case(std::slice::from_ref(&case), |session| {
                compare(session, &scene, kind, rounds)
            });
        }
    }
    Ok(())
}

fn compare(session: &mut Session, scene: &Scene, kind: Containers, rounds: usize) -> Result<()> {
    let count = count(session.effort);
    let [mut ours, mut theirs] = [Rounds::default(), Rounds::default()];
    for round in 0..rounds {
        ours.0.push(vec![at_once(scene, kind, &format!("ours-{round}"), count)?]);
        theirs.0.push(vec![at_once(scene, Containers::Native, &format!("runc-{round}"), count)?]);
    }
    let daemons =
        if kind == Containers::Workflow { "one shim daemon" } else { "a shim daemon each" };
    session.report.add(Comparison {
        case: &kind.case(count),
        unit: "ms",
        ours: &ours,
        baseline: Some(("runc", &theirs)),
        direction: Direction::OursByBaseline,
        conditions: format!(
            "{count} times ctr run --detach at the same time, until the last one has ended: all run; ours secondaries that can \
             be called then ({daemons}), runc's `busybox sleep`; {rounds} of each in turns; ratio is ours by runc: smaller is \
             better"
        ),
    });
    Ok(())
}

/// Milliseconds until all of them run; removes them.
fn at_once(scene: &Scene, kind: Containers, name: &str, count: usize) -> Result<f64> {
    let ids: Vec<String> = (0..count).map(|number| format!("{name}-{number}")).collect();
    let started = Instant::now();
    let starting: Vec<Child> = ids
        .iter()
        .map(|id| quiet(kind.command(scene, id)).spawn().context("ctr run"))
        .collect::<Result<_>>()?;
    for (id, child) in ids.iter().zip(starting) {
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{id} did not start: {said}");
    }
    let took = started.elapsed();
    for noun in [&["task", "rm", "--force"][..], &["container", "rm"]] {
        let ids = ids.iter().map(String::as_str);
        let _removed = scene.ctr(noun.iter().copied().chain(ids)).success();
    }
    Ok(took.as_secs_f64() * 1e3)
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}
