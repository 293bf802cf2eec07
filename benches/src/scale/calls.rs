//! Calls: of many callers, many of one caller, through chains, and with payloads of all sizes.

use std::time::Instant;

use anyhow::Result;
use cwasi_bench_protocol::{Job, Made};

use super::curve::{Cost, Curve};
use super::{Scale, calls_at_once, calls_of, remove_containers};
use crate::cases::sequential::WORKERS;
use crate::fixture::{Fixture, TOUCH_ALL, TOUCH_NONE, WORKFLOW, stage};
use crate::plan::MIB;
use crate::side::Side;
use crate::turns::micros;

const CALLERS: &[usize] = &[1, 4, 16, 64, 256, 1024];
/// Most functions that call; beyond it, each has several calls in flight.
const CALLERS_MAX: usize = 64;
const IN_FLIGHT: &[usize] = &[1, 4, 16, 64, 256, 1024];
const CHAIN: &[usize] = &[1, 2, 4, 8, 16, 32, 64];
const KIB: usize = 1 << 10;
const PAYLOADS: &[usize] =
    &[0, 64, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, 1024 * MIB];
/// Bytes of payloads that are made for one point, but at least three payloads and at most 200.
const MADE: usize = 512 * MIB;
/// Requests that may wait for a worker: as many as there are calls.
const QUEUE: &str = "2048";

/// Curves over calls that different callers have under way.
pub fn callers(scale: &Scale) -> Result<Vec<Curve>> {
    let over = "calls at a time";
    let mut call = Curve::new(
        "callers-call",
        [over, "us"],
        Cost::All,
        "64 B to one callee with four workers; up to 64 functions call, then each with several calls in flight, until \
         these have their answers",
    );
    let mut share = Curve::new(
        "callers-machine-time",
        [over, "us"],
        Cost::One,
        "the same: time of the machine for one call, which is 1 by calls in a second",
    );
    let scene = stage(&scale.programs, "scale-callers")?;
    let fixture = Fixture::on(&scene);
    fixture.callee(TOUCH_NONE, &[("cwasi.concurrency", WORKERS), ("cwasi.queue", QUEUE)]);
    let (calls, rounds) = (scale.effort.pick(20_000, 5_000), scale.effort.pick(5, 3));
    let mut sides: Vec<Side> = Vec::new();
    for amount in scale.amounts(CALLERS, 1024) {
        while sides.len() < amount.min(CALLERS_MAX) {
            sides.push(fixture.driver(&[])?.side);
        }
        let branches = amount.div_ceil(sides.len());
        let job = calls_at_once(vec![TOUCH_NONE.0.to_owned()], branches, calls.div_ceil(amount));
        let (mut durations, mut shares) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let (took, some) = round_of(&mut sides, &job)?;
            if round > 0 {
                durations.extend(some);
                shares.push(took / count_of(&job, sides.len()));
            }
        }
        call.add(amount, &durations);
        share.add(amount, &shares);
    }
    for side in sides {
        side.end()?;
    }
    Ok(vec![call, share])
}

#[expect(clippy::cast_precision_loss, reason = "thousands of calls")]
fn count_of(job: &Job, sides: usize) -> f64 {
    (job.count * job.branches * sides) as f64
}

/// All sides do the job at the same time: µs until the last one has, and µs of each repeat.
fn round_of(sides: &mut [Side], job: &Job) -> Result<(f64, Vec<f64>)> {
    let started = Instant::now();
    for side in sides.iter_mut() {
        side.begin(job)?;
    }
    let mut durations = Vec::new();
    for side in sides {
        durations.extend(micros(&side.finish(job)?.call));
    }
    Ok((started.elapsed().as_secs_f64() * 1e6, durations))
}

/// Calls that one caller has started and not yet waited for.
pub fn in_flight(scale: &Scale) -> Result<Vec<Curve>> {
    let mut curve = Curve::new(
        "in-flight",
        ["calls in flight", "us"],
        Cost::All,
        "one caller starts calls of 64 B to one callee with four workers, then waits for all answers",
    );
    let scene = stage(&scale.programs, "scale-in-flight")?;
    let fixture = Fixture::on(&scene);
    fixture.callee(TOUCH_NONE, &[("cwasi.concurrency", WORKERS), ("cwasi.queue", QUEUE)]);
    let mut driver = fixture.driver(&[])?.side;
    for amount in scale.amounts(IN_FLIGHT, 1024) {
        let repeats = scale.effort.pick(200, 30);
        let job = calls_at_once(vec![TOUCH_NONE.0.to_owned()], amount, repeats);
        driver.perform(&Job { count: 3, ..job.clone() })?;
        curve.add(amount, &micros(&driver.perform(&job)?.call));
    }
    driver.end()?;
    Ok(vec![curve])
}

/// A function that calls one that calls one, on one node.
pub fn chain(scale: &Scale) -> Result<Vec<Curve>> {
    let mut curve = Curve::new(
        "chain",
        ["functions in the chain", "us"],
        Cost::All,
        "64 B from a caller through functions that each call the next one and pass its answer back",
    );
    let scene = stage(&scale.programs, "scale-chain")?;
    let fixture = Fixture::on(&scene);
    fixture.callee(TOUCH_NONE, &[]);
    let link = |number| match number {
        0 => TOUCH_NONE.0.to_owned(),
        number => format!("link-{number}"),
    };
    let mut driver = fixture.driver(&[])?.side;
    let mut links = 0;
    for amount in scale.amounts(CHAIN, 64) {
        while links + 1 < amount {
            let next = link(links);
            links += 1;
            let run = scene.guest(&link(links), "actor").args(["chain", &next]);
            let run = run.annotation("cwasi.role", "secondary");
            let run = run.annotation("cwasi.function", &link(links));
            scene.start(run.annotation("cwasi.workflow", WORKFLOW));
        }
        let first = link(amount - 1);
        driver.perform(&calls_of(&first, scale.effort.pick(20, 5)))?;
        let answer = driver.perform(&calls_of(&first, scale.effort.pick(300, 60)))?;
        curve.add(amount, &micros(&answer.call));
    }
    driver.end()?;
    remove_containers(&scene);
    Ok(vec![curve])
}

/// Payloads in a region of the caller, unread and read.
pub fn payload(scale: &Scale) -> Result<Vec<Curve>> {
    let over = ["bytes of the payload", "us"];
    let unread = Curve::new(
        "payload-touch-none",
        over,
        Cost::All,
        "a call with a payload made in place, sealed inside the clock, of which the callee reads nothing",
    );
    let read = Curve::new(
        "payload-touch-all",
        over,
        Cost::All,
        "a call with a payload made in place, sealed inside the clock, of which the callee adds up every byte",
    );
    let scene = stage(&scale.programs, "scale-payload")?;
    let fixture = Fixture::on(&scene);
    let largest = [("cwasi.max-payload", "1GiB"), ("cwasi.concurrency", WORKERS)];
    let mut curves = Vec::new();
    for (mut curve, callee, touch) in [(unread, TOUCH_NONE, false), (read, TOUCH_ALL, true)] {
        fixture.callee(callee, &largest);
        let mut driver = fixture.driver(&largest[..1])?.side;
        for size in scale.amounts(PAYLOADS, 1024 * MIB) {
            let count =
                (MADE / size.max(1)).clamp(scale.effort.pick(3, 1), scale.effort.pick(200, 30));
            let mut job = calls_of(callee.0, count);
            (job.size, job.touch) = (size, touch);
            job.made = if size > 0 { Made::InPlace } else { Made::Vector };
            driver.perform(&Job { count: 1, ..job.clone() })?;
            curve.add(size, &micros(&driver.perform(&job)?.call));
        }
        driver.end()?;
        scene.remove(callee.0);
        curves.push(curve);
    }
    Ok(curves)
}
