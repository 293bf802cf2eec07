//! Instances of one function on a node: containers that take its calls in turn.

use anyhow::Result;
use cwasi_bench_protocol::Job;

use super::curve::{Cost, Curve};
use super::{Scale, calls_at_once, calls_of, remove_containers};
use crate::cases::starts::{micros, timed};
use crate::fixture::{Fixture, TOUCH_NONE, WORKFLOW, stage};
use crate::turns;

const INSTANCES: &[usize] = &[1, 4, 16, 64, 256];
const INSTANCES_QUICK: usize = 64;
/// Callers whose first call is measured.
const CALLERS: usize = 5;
/// Starts that stand for an amount: the last ones.
const LAST: usize = 10;
const FUNCTION: &str = "many";
const OVER: [&str; 2] = ["instances of the callee", "us"];

/// All curves.
pub fn run(scale: &Scale) -> Result<Vec<Curve>> {
    let mut start = Curve::new(
        "instances-start",
        OVER,
        Cost::One,
        "ctr run --detach of one more container of the function; the last ten",
    );
    let mut first = Curve::new(
        "instances-first-call",
        OVER,
        Cost::One,
        "64 B, the first call of a caller to the function; callers started for it",
    );
    let mut later = Curve::new(
        "instances-call",
        OVER,
        Cost::One,
        "64 B, one call after the other, of the same callers",
    );
    let mut at_once = Curve::new(
        "instances-call-each",
        OVER,
        Cost::All,
        "64 B, as many calls at a time as there are instances, of one caller, until all have answers",
    );
    let scene = stage(&scale.programs, "scale-instances")?;
    let fixture = Fixture::on(&scene);
    let mut running = 0;
    for amount in scale.amounts(INSTANCES, INSTANCES_QUICK) {
        let mut starts = Vec::new();
        for number in running..amount {
            let run = scene
                .guest(&format!("{FUNCTION}-{number}"), TOUCH_NONE.1)
                .annotation("cwasi.role", "secondary")
                .annotation("cwasi.function", FUNCTION)
                .annotation("cwasi.workflow", WORKFLOW);
            starts.push(micros(timed(run.command(&scene.containerd, true))?));
        }
        running = amount;
        start.add(amount, &starts[starts.len().saturating_sub(LAST)..]);
        let (mut firsts, mut laters, mut each) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..scale.effort.pick(CALLERS, 3) {
            let mut driver = fixture.driver(&[])?.side;
            firsts.extend(turns::micros(&driver.perform(&calls_of(FUNCTION, 1))?.call));
            driver.perform(&calls_of(FUNCTION, 20))?;
            laters.extend(turns::micros(&driver.perform(&calls_of(FUNCTION, 100))?.call));
            driver.perform(&one_each(amount, 2))?;
            each.extend(turns::micros(&driver.perform(&one_each(amount, 20))?.call));
            driver.end()?;
        }
        first.add(amount, &firsts);
        later.add(amount, &laters);
        at_once.add(amount, &each);
    }
    remove_containers(&scene);
    Ok(vec![start, first, later, at_once])
}

fn one_each(branches: usize, count: usize) -> Job {
    calls_at_once(vec![FUNCTION.to_owned()], branches, count)
}
