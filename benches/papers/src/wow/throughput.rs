//! Table I and sections V-C2 and V-C3: throughput of mixed, I/O-bound and CPU-bound loads.

use std::time::{Duration, Instant};

use anyhow::Result;
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;
use serde_json::Value;

use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::platform::activation;
use crate::openwhisk::{ABOUT, hashing_for, platforms, waiting};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::load::{Target, closed};

pub const MIXED: Group = Group {
    name: "WOW: mixed load",
    entries: &["wow-table-1"],
    run: |run| {
        let exhibit = measure(run, "wow-table-1", 10, &[net(run), hash(run)?])?;
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
        let exhibit = measure(run, "wow-io", 12, &[net(run)])?;
        Ok(vec![exhibit.published(&[
            ("Docker, less than", CASE, 15.0),
            ("wasmer, wasmtime, wamr, about", CASE, 40.0),
        ])])
    },
};

pub const CPU: Group = Group {
    name: "WOW: CPU-bound load",
    entries: &["wow-cpu"],
    run: |run| Ok(vec![measure(run, "wow-cpu", 12, &[hash(run)?])?]),
};

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

fn measure(run: &Run, id: &'static str, clients: usize, work: &[Work]) -> Result<Exhibit> {
    let scene = stage(&run.programs, "papers-throughput")?;
    let names: Vec<&'static str> = work.iter().map(|(name, _)| *name).collect();
    let platforms = platforms(run, &scene, clients, &names)?;
    let mut sides = Vec::new();
    for (side, platform) in platforms.iter().enumerate() {
        let start = |name: &&'static str| {
            platform.start_for(&scene, &format!("{name}-{side}"), name, clients)
        };
        let actions = names.iter().map(start).collect::<Result<Vec<_>>>()?;
        // As many clients begin with each kind of work.
        let client = |client: usize| -> Vec<Target> {
            let target = |(actions, (_, parameters)): (&Vec<_>, &Work)| {
                activation(actions, client, parameters)
            };
            let mut targets: Vec<Target> = actions.iter().zip(work).map(target).collect();
            targets.rotate_left(client % work.len());
            targets
        };
        let requests: Vec<Vec<Target>> = (0..clients).map(client).collect();
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
        "{clients} clients, each of which asks in turn for {}. {clients} activations run at a time: in one container of each \
         action, or in {clients} actions of an executor. {time:?} for each side, {rounds} times in turns, after one to warm up. \
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
