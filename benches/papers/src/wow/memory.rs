//! Table II: memory of a function that is warm.

use std::time::Duration;

use anyhow::Result;
use cwasi_bench::accounts::{charged, ours, proportional_memory};
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;

use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::platform::Kind;
use crate::openwhisk::{ABOUT, hashing, platforms};
use crate::run::{Group, Run};
use crate::series::Series;

pub const GROUP: Group =
    Group { name: "WOW: memory of a warm function", entries: &["wow-table-2"], run };

const ACTION: &str = "hash";
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
    for (side, platform) in platforms(run, &scene, 1, &[ACTION])?.into_iter().enumerate() {
        let name = platform.name.clone();
        let platform = platform.of_one_workflow().unwrap_or(platform);
        let warm = |number| -> Result<_> {
            let action = platform.start(&scene, &format!("warm-{side}-{number}"), ACTION)?;
            action.activation(&hashing(1000)).ask()?;
            Ok(action)
        };
        let actions = (0..count).map(warm).collect::<Result<Vec<_>>>()?;
        std::thread::sleep(settle(run.effort));
        let mut values = Vec::new();
        match &platform.kind {
            Kind::Executor(executor) => {
                values.push(proportional_memory(&executor.processes())? / count as f64);
            }
            Kind::Container(_) => {
                values.push(proportional_memory(&ours(&scene))? / count as f64);
                let (charge, containers) = charged(&scene.namespace)?;
                values.push(charge / containers as f64);
            }
        }
        for (case, value) in CASES.into_iter().zip(values) {
            series.push(Series::new(&name, case, "MiB", vec![value]));
        }
        drop(actions);
    }
    let conditions = format!(
        "{count} actions that have run {ACTION} with 1000 iterations once, by actions; one side at a time. The proportional set \
         size is that of all processes but containerd: the executor and its actions, or containers, our shim daemon (one for all, \
         as they are of one workflow), zygote, and runc’s shims. The charge is that of the containers’ cgroups alone: pages, files, \
         and the kernel’s memory for them; an executor has none. The paper counts the containers, not the shims. {ABOUT}"
    );
    Ok(vec![Exhibit::new("wow-table-2", Form::Table, conditions, series).published(&[
        ("Docker", CASES[1], 22.28),
        ("wasmer", CASES[1], 4.02),
        ("wasmtime", CASES[1], 6.34),
        ("wamr", CASES[1], 2.93),
    ])])
}
