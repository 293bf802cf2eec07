//! Cases of the memory of idle functions.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use super::Group;
use crate::accounts::{charged, in_container, ours, proportional_memory};
use crate::fixture::{Fixture, TOUCH_NONE, stage};
use crate::plan::Effort;
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::stats::Rounds;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "memory",
    about: "functions that wait",
    cases: |effort| counts(effort).iter().map(|count| name(*count)).collect(),
    run,
};

/// Time for what starts do afterwards, such as forking workers, making instances ahead and ending idle threads; and for
/// the kernel, which adds up a cgroup's memory every two seconds.
pub const SETTLE: Duration = Duration::from_secs(3);

const fn counts(effort: Effort) -> &'static [usize] {
    match effort {
        Effort::Smoke => &[1],
        _ => &[1, 10, 100],
    }
}

fn name(count: usize) -> String {
    format!("idle-memory-per-function-at-{count}")
}

#[expect(clippy::cast_precision_loss, reason = "a hundred functions")]
fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-memory")?;
    let fixture = Fixture::on(&scene);
    let mut running = 0;
    for count in counts(session.effort) {
        let case = name(*count);
        if !wanted.contains(&case) {
            continue;
        }
        for number in running..*count {
            fixture.callee((&format!("idle-{number}"), TOUCH_NONE.1), &[]);
        }
        running = *count;
        sleep(SETTLE);
        let all = ours(&scene);
        let share = proportional_memory(&all)? / *count as f64;
        let (charge, _) = charged(&scene.namespace)?;
        let shims: Vec<i32> =
            all.into_iter().filter(|pid| !in_container(*pid, &scene.namespace)).collect();
        let outside = proportional_memory(&shims)?;
        let charge = (charge + outside) / *count as f64;
        session.report.add(Comparison {
            case: &case,
            unit: "MiB",
            ours: &Rounds(vec![vec![share.max(charge)]]),
            baseline: None,
            direction: Direction::BaselineByOurs,
            conditions: format!(
                "{count} secondaries of one module and one workflow, one worker each, started and never called; all processes of \
                 ours, shim daemon and zygote included, by functions. Proportional set size {share:.2} MiB; charge of the \
                 cgroups plus what shim and zygote use outside of them {charge:.2} MiB ({outside:.1} MiB in all); the larger \
                 of both counts"
            ),
        });
    }
    Ok(())
}
