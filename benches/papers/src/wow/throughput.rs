//! Table I and sections V-C2 and V-C3: throughput of mixed, I/O-bound and CPU-bound loads.

use std::time::{Duration, Instant};

use anyhow::Result;
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;
use serde_json::Value;

use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::{ABOUT, hashing_for, platforms, waiting};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::load::{Target, closed};

pub const MIXED: Group = Group {
    name: "WOW: mixed load",
    entries: &["wow-table-1"],
    run: |run| {
        let exhibit = measure(run, "wow-table-1", (1, 10), &[net(run), hash(run)?])?;
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
        let exhibit = measure(run, "wow-io", FOUR_BY_THREE, &[net(run)])?;
        Ok(vec![exhibit.published(&[
            ("Docker, less than", CASE, 15.0),
            ("wasmer, wasmtime, wamr, about", CASE, 40.0),
        ])])
    },
};

pub const CPU: Group = Group {
    name: "WOW: CPU-bound load",
    entries: &["wow-cpu"],
    run: |run| Ok(vec![measure(run, "wow-cpu", FOUR_BY_THREE, &[hash(run)?])?]),
};

/// WOW's containers of an action, and activations that run at a time in each.
const FOUR_BY_THREE: (usize, usize) = (4, 3);
/// The only case.
pub const CASE: &str = "requests";

/// An action and its parameters.
type Work = (&'static str, Value);

/// WOW's request that waits for 300 ms.
fn net(run: &Run) -> Work {
    ("net", waiting(run.effort, 300))
}

/// Takes a native program 100 ms.
fn hash(run: &Run) -> Result<Work> {
    Ok(("hash", hashing_for(run.effort, 100.0)?))
}

/// For one side in one round.
pub const fn time(effort: Effort) -> Duration {
    match effort {
        Effort::Full => Duration::from_secs(60),
        Effort::Quick => Duration::from_secs(3),
        Effort::Smoke => Duration::from_millis(100),
    }
}

fn measure(
    run: &Run,
    id: &'static str,
    (containers, concurrency): (usize, usize),
    work: &[Work],
) -> Result<Exhibit> {
    let scene = stage(&run.programs, "papers-throughput")?;
    let names: Vec<&'static str> = work.iter().map(|(name, _)| *name).collect();
    let platforms = platforms(run, &scene, concurrency, &names)?;
    let clients = containers * concurrency;
    let mut sides = Vec::new();
    for (side, platform) in platforms.iter().enumerate() {
        let (mut actions, mut requests) = (Vec::new(), Vec::new());
        for container in 0..containers {
            let mut targets = Vec::new();
            for (name, parameters) in work {
                let action = platform.start(&scene, &format!("{name}-{side}-{container}"), name)?;
                targets.push(action.activation(parameters));
                actions.push(action);
            }
            // As many clients begin with each kind of work.
            for client in 0..concurrency {
                let mut targets = targets.clone();
                targets.rotate_left(client % work.len());
                requests.push(targets);
            }
        }
        sides.push((platform, actions, requests, Vec::new()));
    }
    let (rounds, time) = (run.effort.pick(10, 3), time(run.effort));
    for round in 0..=rounds {
        for (_, _, requests, rates) in &mut sides {
            let rate = rate(requests, time)?;
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let series = sides
        .into_iter()
        .map(|(platform, _actions, _, rates)| Series::new(&platform.name, CASE, "req/s", rates));
    let series = series.collect();
    let work: Vec<String> = work.iter().map(|(name, with)| format!("{name} with {with}")).collect();
    let conditions = format!(
        "{clients} clients, each of which asks in turn for {}. Each action has {containers} containers, or ids of an executor, and up \
         to {concurrency} of its activations run at a time in each. {time:?} for each side, {rounds} times in turns, after one to warm up. \
         {ABOUT} On this machine’s processors; the paper’s server had 8.",
        work.join(", ")
    );
    Ok(Exhibit::new(id, Form::Boxes, conditions, series))
}

/// Answers in a second.
pub fn rate(clients: &[Vec<Target>], time: Duration) -> Result<f64> {
    let started = Instant::now();
    let answers: usize = closed(clients, time)?.iter().map(Vec::len).sum();
    #[expect(clippy::cast_precision_loss, reason = "thousands of requests")]
    let answers = answers as f64;
    Ok(answers / started.elapsed().as_secs_f64())
}
