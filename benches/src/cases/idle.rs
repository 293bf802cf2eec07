//! Cases of functions with `cwasi.idle`: their memory without workers, and the first request afterwards.

use std::thread::sleep;

use anyhow::Result;
use cwasi_bench_protocol::{Job, Made, Verb};
use cwasi_testbed::processes::descendants;
use cwasi_testbed::scene::{Scene, wait_for};

use super::Group;
use super::memory::SETTLE;
use crate::accounts::{charged, proportional_memory};
use crate::fixture::{Fixture, TOUCH_NONE, stage};
use crate::plan::Effort;
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::stats::Rounds;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "idle",
    about: "functions whose workers have ended (cwasi.idle)",
    cases: |_| vec![MEMORY.to_owned(), WAKE.to_owned()],
    run,
};

/// Memory of a function without workers.
const MEMORY: &str = "idle-suspended-memory";
/// The first request of a function without workers, beside one with a worker.
const WAKE: &str = "idle-wake-64B-call";
/// Duration without a request after which the workers end.
const IDLE: &str = "300ms";
/// The callee that keeps its worker.
const AWAKE: &str = "awake";
/// Bytes of a payload.
const SIZE: usize = 64;
const KIB_PER_MIB: f64 = 1024.0;

fn name(number: usize) -> String {
    format!("idle-{number}")
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-idle")?;
    let fixture = Fixture::on(&scene);
    let count = if session.effort == Effort::Smoke { 1 } else { 100 };
    for number in 0..count {
        fixture.callee((&name(number), TOUCH_NONE.1), &[("cwasi.idle", IDLE)]);
    }
    let wants = |case: &str| wanted.iter().any(|one| one == case);
    if wants(MEMORY) {
        session.case(&[MEMORY.to_owned()], |session| memory(session, &scene, count));
    }
    if wants(WAKE) {
        session.case(&[WAKE.to_owned()], |session| wake(session, &fixture));
    }
    Ok(())
}

/// Waits until a function has no worker.
fn suspended(scene: &Scene, function: &str) -> i32 {
    let init = scene.pid(function);
    wait_for("the workers to end", || descendants(init).is_empty().then_some(init))
}

#[expect(clippy::cast_precision_loss, reason = "a hundred functions")]
fn memory(session: &mut Session, scene: &Scene, count: usize) -> Result<()> {
    let inits: Vec<i32> = (0..count).map(|number| suspended(scene, &name(number))).collect();
    sleep(SETTLE);
    let share = proportional_memory(&inits)? * KIB_PER_MIB / count as f64;
    let charge = charged(&scene.namespace)?.0 * KIB_PER_MIB / count as f64;
    session.report.add(Comparison {
        case: MEMORY,
        unit: "KiB",
        ours: &Rounds(vec![vec![share.max(charge)]]),
        baseline: None,
        direction: Direction::BaselineByOurs,
        conditions: format!(
            "{count} secondaries with cwasi.idle={IDLE} after their workers have ended, started and never called; without shim \
             daemon and zygote. Proportional set size of init {share:.0} KiB; charge of the cgroup {charge:.0} KiB; the larger of \
             both counts"
        ),
    });
    Ok(())
}

fn wake(session: &mut Session, fixture: &Fixture<'_>) -> Result<()> {
    fixture.callee((AWAKE, TOUCH_NONE.1), &[]);
    let mut driver = fixture.driver(&[])?;
    let rounds = session.effort.pick(60, 15);
    let [mut ours, mut awake] = [Rounds::default(), Rounds::default()];
    let target = name(0);
    for round in 0..=rounds {
        // Both callers slept as long: the processor's caches and the driver are as cold.
        suspended(fixture.scene, &target);
        let mut call = |target: &str| -> Result<Vec<f64>> {
            let answer = driver.side.perform(&one_call(target))?;
            Ok(answer.call.iter().map(|ns| *ns as f64 / 1e3).collect())
        };
        let (first, second) = (call(&target)?, call(AWAKE)?);
        if round > 0 {
            ours.0.push(first);
            awake.0.push(second);
        }
    }
    driver.side.end()?;
    session.report.add(Comparison {
        case: WAKE,
        unit: "us",
        ours: &ours,
        baseline: Some(("awake", &awake)),
        direction: Direction::OursByBaseline,
        conditions: format!(
            "one call of {SIZE} bytes to a function whose worker has ended (cwasi.idle={IDLE}), and one to a function that keeps \
             its worker; {rounds} of each in turns; ratio is the first by the second"
        ),
    });
    Ok(())
}

fn one_call(target: &str) -> Job {
    Job {
        verb: Verb::Call,
        targets: vec![target.to_owned()],
        size: SIZE,
        made: Made::Vector,
        touch: false,
        count: 1,
        branches: 1,
    }
}
