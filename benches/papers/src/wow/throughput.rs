//! Table I and sections V-C2 and V-C3: throughput of mixed, I/O-bound and CPU-bound loads.

use std::time::{Duration, Instant};

use anyhow::Result;
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;

use crate::actions::{ABOUT, hashing, sides};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::load::{Target, closed};

pub const MIXED: Group = Group {
    name: "WOW: mixed load",
    entries: &["wow-table-1"],
    run: |run| {
        let (io, cpu) = (sleeping(run.effort, 300), hashing(run.effort, 100.0)?);
        let exhibit = measure(run, "wow-table-1", 10, &[io, cpu])?;
        Ok(vec![exhibit.published(&[
            ("Docker, about", CASE, 20.0),
            ("wasmer, by its gain", CASE, 60.0),
            ("wasmtime, by its gain", CASE, 44.0),
            ("wamr, by its gain", CASE, 32.0),
        ])])
    },
};

pub const IO: Group = Group {
    name: "WOW: I/O-bound load",
    entries: &["wow-io"],
    run: |run| {
        let exhibit = measure(run, "wow-io", 12, &[sleeping(run.effort, 300)])?;
        Ok(vec![exhibit.published(&[
            ("Docker, less than", CASE, 15.0),
            ("wasmer, wasmtime, wamr, about", CASE, 40.0),
        ])])
    },
};

pub const CPU: Group = Group {
    name: "WOW: CPU-bound load",
    entries: &["wow-cpu"],
    run: |run| Ok(vec![measure(run, "wow-cpu", 10, &[hashing(run.effort, 100.0)?])?]),
};

const CASE: &str = "requests";

/// A query for sleeping; little in a smoke test.
#[must_use]
pub fn sleeping(effort: Effort, millis: u32) -> String {
    let millis = if effort == Effort::Smoke { 20 } else { millis };
    format!("sleep={millis}")
}

const fn time(effort: Effort) -> Duration {
    match effort {
        Effort::Full => Duration::from_secs(60),
        Effort::Quick => Duration::from_secs(3),
        Effort::Smoke => Duration::from_millis(100),
    }
}

fn measure(run: &Run, id: &'static str, clients: usize, queries: &[String]) -> Result<Exhibit> {
    let scene = stage(&run.programs, "papers-throughput")?;
    let functions = sides(run, &scene, clients)?;
    let mut doors = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        doors.push(function.open(&scene, &format!("function-{number}"), "hello")?);
    }
    let (rounds, time) = (run.effort.pick(10, 3), time(run.effort));
    let mut rates = vec![Vec::new(); doors.len()];
    for round in 0..=rounds {
        for (door, rates) in doors.iter().zip(&mut rates) {
            let targets: Vec<Target> = queries.iter().map(|query| door.target(query)).collect();
            // As many clients begin with each query.
            let rotated = |client: usize| {
                let mut targets = targets.clone();
                targets.rotate_left(client % queries.len());
                targets
            };
            let clients: Vec<Vec<Target>> = (0..clients).map(rotated).collect();
            let started = Instant::now();
            let answers: usize = closed(&clients, time)?.iter().map(Vec::len).sum();
            #[expect(clippy::cast_precision_loss, reason = "thousands of requests")]
            let rate = answers as f64 / started.elapsed().as_secs_f64();
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let series = functions.iter().zip(rates);
    let series = series.map(|(function, rates)| Series::new(&function.side, CASE, "req/s", rates));
    let conditions = format!(
        "{clients} clients, each of which asks in turn for {}; up to {clients} requests run at a time in one container; {time:?} for \
         each side, {rounds} times in turns, after one to warm up. {ABOUT} On this machine’s processors; the paper’s server had 8.",
        queries.join(", ")
    );
    Ok(Exhibit::new(id, Form::Boxes, conditions, series.collect()))
}
