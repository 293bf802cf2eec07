//! Functions on a node, all of one workflow, and as many containers of runc beside them.

use std::process::Command;
use std::thread::sleep;

use anyhow::Result;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::Scene;

use super::curve::{Cost, Curve};
use super::{Scale, calls_of, remove_containers};
use crate::accounts::{charged, in_container, ours as processes, proportional_memory};
use crate::cases::memory::SETTLE;
use crate::cases::starts::{IMAGE, RUNC, import, micros, timed};
use crate::fixture::{Fixture, TOUCH_NONE, WORKFLOW, stage};
use crate::turns;

const FUNCTIONS: &[usize] = &[1, 10, 100, 300, 1000];
const FUNCTIONS_QUICK: usize = 100;
/// Each has a shim of its own, which uses far more memory than a function of ours.
const CONTAINERS: &[usize] = &[1, 10, 100, 300];
const CONTAINERS_QUICK: usize = 30;
/// Starts, and callees, that stand for an amount: the last ones.
const LAST: usize = 10;
/// Repeats of `cwasi ps`.
const LISTS: usize = 5;
/// What a caller has called before its first call to another function.
const OTHER: &str = "other";
const OVER: &str = "functions on the node";

struct Curves {
    start: Curve,
    memory: Curve,
    first_call: Curve,
    ps: Curve,
}

impl Curves {
    const fn new() -> Self {
        Self {
            start: Curve::new(
                "functions-start",
                [OVER, "us"],
                Cost::One,
                "ctr run --detach of one more function of the workflow: the last ten, one after the other",
            ),
            memory: Curve::new(
                "functions-memory",
                [OVER, "MiB"],
                Cost::One,
                "all our processes, shim daemon and zygote included, by functions that wait; proportional set size, or \
                 the cgroups' charge if larger",
            ),
            first_call: Curve::new(
                "functions-first-call",
                [OVER, "us"],
                Cost::One,
                "64 B to a callee that the caller never called, of the last ten; the caller has called another one",
            ),
            ps: Curve::new(
                "functions-cwasi-ps",
                [OVER, "us"],
                Cost::All,
                "cwasi ps, from its start to its end",
            ),
        }
    }
}

/// Curves of our functions.
pub fn ours(scale: &Scale) -> Result<Vec<Curve>> {
    let scene = stage(&scale.programs, "scale-functions")?;
    import(&scale.programs, &scene)?;
    let mut curves = Curves::new();
    let mut running = 0;
    for amount in scale.amounts(FUNCTIONS, FUNCTIONS_QUICK) {
        let mut starts = Vec::new();
        for number in running..amount {
            starts.push(micros(timed(function(&scene, number).command(&scene.containerd, true))?));
        }
        running = amount;
        curves.start.add(amount, &starts[starts.len().saturating_sub(LAST)..]);
        sleep(SETTLE);
        curves.memory.add(amount, &[memory(&scene, amount)?]);
        let mut lists = Vec::new();
        for _ in 0..LISTS {
            lists.push(micros(timed(cwasi_ps(scale, &scene))?));
        }
        curves.ps.add(amount, &lists);
        curves.first_call.add(amount, &first_calls(&scene, amount)?);
        eprintln!("  {amount} functions");
    }
    remove_containers(&scene);
    let Curves { start, memory, first_call, ps } = curves;
    Ok(vec![start, memory, first_call, ps])
}

fn function(scene: &Scene, number: usize) -> Run {
    let name = format!("idle-{number}");
    Run::new(&scene.namespace, IMAGE, &name)
        .args([format!("/{}.wasm", TOUCH_NONE.1)])
        .annotation("cwasi.role", "secondary")
        .annotation("cwasi.function", &name)
        .annotation("cwasi.workflow", WORKFLOW)
}

/// MiB of all our processes by functions.
#[expect(clippy::cast_precision_loss, reason = "a thousand functions")]
fn memory(scene: &Scene, functions: usize) -> Result<f64> {
    let all = processes(scene);
    let share = proportional_memory(&all)?;
    let (charge, _) = charged(&scene.namespace)?;
    let outside: Vec<i32> =
        all.into_iter().filter(|pid| !in_container(*pid, &scene.namespace)).collect();
    Ok(share.max(charge + proportional_memory(&outside)?) / functions as f64)
}

fn cwasi_ps(scale: &Scale, scene: &Scene) -> Command {
    let ready = scene.containerd.ready();
    let mut command = Command::new(scale.programs.join("cwasi"));
    command.arg("--address").arg(ready.address()).args(["--namespace", &scene.namespace, "ps"]);
    command.env("CWASI_CONFIG", ready.dir.join("cwasi.toml"));
    command
}

/// µs of the first calls to the last functions, by a caller that comes and goes.
fn first_calls(scene: &Scene, amount: usize) -> Result<Vec<f64>> {
    let fixture = Fixture::on(scene);
    fixture.callee((OTHER, TOUCH_NONE.1), &[]);
    let mut driver = fixture.driver(&[])?;
    driver.side.perform(&calls_of(OTHER, 10))?;
    let mut calls = Vec::new();
    for number in amount.saturating_sub(LAST)..amount {
        let answer = driver.side.perform(&calls_of(&format!("idle-{number}"), 1))?;
        calls.extend(turns::micros(&answer.call));
    }
    driver.side.end()?;
    scene.remove(OTHER);
    Ok(calls)
}

/// Curves of runc's containers on the same containerd.
#[expect(clippy::cast_precision_loss, reason = "hundreds of containers")]
pub fn runc(scale: &Scale) -> Result<Vec<Curve>> {
    let over = "containers on the node";
    let mut start = Curve::new(
        "runc-start",
        [over, "us"],
        Cost::One,
        "ctr run --detach of one more busybox sleep under runc, on the same containerd as our functions; the last ten",
    );
    let mut memory = Curve::new(
        "runc-memory",
        [over, "MiB"],
        Cost::One,
        "proportional set size of all of their processes, shims included, by containers",
    );
    let scene = stage(&scale.programs, "scale-runc")?;
    import(&scale.programs, &scene)?;
    let mut running = 0;
    for amount in scale.amounts(CONTAINERS, CONTAINERS_QUICK) {
        let mut starts = Vec::new();
        for number in running..amount {
            let native =
                Run::new(&scene.namespace, IMAGE, &format!("native-{number}")).runtime(RUNC);
            let native = native.args(["/bin/busybox", "sleep", "100000"]);
            starts.push(micros(timed(native.command(&scene.containerd, true))?));
        }
        running = amount;
        start.add(amount, &starts[starts.len().saturating_sub(LAST)..]);
        sleep(SETTLE);
        memory.add(amount, &[proportional_memory(&processes(&scene))? / amount as f64]);
        eprintln!("  {amount} containers of runc");
    }
    remove_containers(&scene);
    Ok(vec![start, memory])
}
