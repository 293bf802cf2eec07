//! Table II: memory of a function that is warm.

use std::time::Duration;

use anyhow::Result;
use cwasi_bench::accounts::{charged, ours, proportional_memory};
use cwasi_bench::fixture::{WORKFLOW, stage};
use cwasi_bench::plan::Effort;

use crate::actions::{ABOUT, sides};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;

pub const GROUP: Group =
    Group { name: "WOW: memory of a warm function", entries: &["wow-table-2"], run };

const CASES: [&str; 2] = ["PSS of all processes", "charge of the cgroup"];

/// Time for what functions do after an answer.
const fn settle(effort: Effort) -> Duration {
    match effort {
        Effort::Smoke => Duration::from_millis(200),
        _ => Duration::from_secs(3),
    }
}

const fn count(effort: Effort) -> usize {
    match effort {
        Effort::Full => 100,
        Effort::Quick => 20,
        Effort::Smoke => 2,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a hundred functions")]
fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-memory")?;
    let count = count(run.effort);
    let mut series = Vec::new();
    for (side, function) in sides(run, &scene, 1)?.into_iter().enumerate() {
        let function = function.with("cwasi.workflow", WORKFLOW);
        let doors = (0..count)
            .map(|number| function.open(&scene, &format!("warm-{side}-{number}"), "hash=1000"));
        let doors: Vec<_> = doors.collect::<Result<_>>()?;
        std::thread::sleep(settle(run.effort));
        let share = proportional_memory(&ours(&scene))? / count as f64;
        let (charge, containers) = charged(&scene.namespace)?;
        let values = [share, charge / containers as f64];
        for (case, value) in CASES.into_iter().zip(values) {
            series.push(Series::new(&function.side, case, "MiB", vec![value]));
        }
        drop(doors);
    }
    let conditions = format!(
        "{count} functions that have answered hash=1000 once, by functions; one side at a time. The proportional set size is that of \
         all processes but containerd: functions, our shim daemon (one for all, as they are of one workflow) and zygote, runc’s \
         shims. The charge is that of the containers’ cgroups alone: pages, files, and the kernel’s memory for them. The paper \
         counts the containers, not the shims. {ABOUT}"
    );
    Ok(vec![Exhibit::new("wow-table-2", Form::Table, conditions, series).published(&[
        ("Docker", CASES[1], 22.28),
        ("wasmer", CASES[1], 4.02),
        ("wasmtime", CASES[1], 6.34),
        ("wamr", CASES[1], 2.93),
    ])])
}
