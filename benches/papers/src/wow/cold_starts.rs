//! Figures 4b and 5, and the thesis' Tables 3, 4 and 9: cold starts at a time.

use std::time::Instant;

use anyhow::Result;
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;
use cwasi_testbed::scene::Scene;

use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::platform::Platform;
use crate::openwhisk::{ABOUT, platforms};
use crate::run::{Group, Run};
use crate::series::{MEANS, Series, with_means};
use crate::sides::load::{at_once, millis};

pub const GROUP: Group = Group {
    name: "WOW and thesis: cold starts",
    entries: &["wow-figure-4", "wow-figure-5", "thesis-cold-starts"],
    run,
};

/// WOW's action for cold starts.
const ACTION: &str = "hash";

fn levels(effort: Effort) -> Vec<usize> {
    match effort {
        Effort::Full => (1..=15).collect(),
        Effort::Quick => vec![1, 2, 4, 10, 15],
        Effort::Smoke => vec![2],
    }
}

/// Milliseconds of cold starts, and of the `/init` in each.
#[derive(Clone, Default)]
struct Samples {
    start: Vec<f64>,
    init: Vec<f64>,
}

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-cold-starts")?;
    let mut platforms = platforms(run, &scene, 1, &[ACTION])?;
    let together: Vec<Platform> = platforms.iter().filter_map(Platform::of_one_workflow).collect();
    platforms.extend(together);
    // Compiles the module for each side, and keeps the shim daemon of a workflow running.
    let mut keepers = Vec::new();
    for (number, platform) in platforms.iter().enumerate() {
        keepers.push(platform.start(&scene, &format!("keeper-{number}"), ACTION)?);
    }
    let (mut starting, mut initializing) = (Vec::new(), Vec::new());
    let rounds = run.effort.pick(10, 3);
    for level in levels(run.effort) {
        let mut all = vec![Samples::default(); platforms.len()];
        for round in 0..rounds {
            for (side, (platform, samples)) in platforms.iter().zip(&mut all).enumerate() {
                let id = |number| format!("cold-{side}-{level}-{round}-{number}");
                let ids: Vec<String> = (0..level).map(id).collect();
                cold_starts(&scene, platform, &ids, samples)?;
            }
        }
        for (platform, samples) in platforms.iter().zip(all) {
            starting.push(Series::new(&platform.name, level, "ms", samples.start));
            initializing.push(Series::new(&platform.name, level, "ms", samples.init));
        }
    }
    drop(keepers);
    Ok(exhibits(starting, initializing, rounds))
}

fn exhibits(starting: Vec<Series>, initializing: Vec<Series>, rounds: usize) -> Vec<Exhibit> {
    let conditions = format!(
        "N at a time, {rounds} times in turns: from the start of a container (an executor has none) until the response to \
         `/init`, as the papers’ `waitTime + initTime`, but without OpenWhisk’s own part of it. The code was compiled before, as \
         WOW’s. The action is `hash`; the thesis’ is `hello`, whose code is as large. {ABOUT} Containers of one workflow share a \
         shim daemon that runs already; every other container has a shim process of its own. “{MEANS}” has the mean of each N."
    );
    let alone = format!(
        "Of the same cold starts, the request `/init` alone, as soon as the server accepts connections. {conditions}"
    );
    let thesis =
        Exhibit::new("thesis-cold-starts", Form::Boxes, &conditions, with_means(&starting));
    vec![
        Exhibit::new("wow-figure-4", Form::Lines, conditions, starting).published(&[
            ("OpenWhisk with Docker, least", "1", 869.0),
            ("OpenWhisk with WOW, least", "1", 47.0),
            ("OpenWhisk with Docker, most", "10", 2873.0),
            ("OpenWhisk with WOW, most", "10", 180.0),
        ]),
        Exhibit::new("wow-figure-5", Form::Lines, alone, initializing).published(&[
            ("fastest runtime, Raspberry Pi", "mean", 112.0),
            ("slowest runtime, Raspberry Pi", "mean", 274.0),
        ]),
        thesis.published(&[
            ("OpenWhisk with Docker", "1", 2879.0),
            ("OpenWhisk with WOW", "1", 47.8),
            ("OpenWhisk with Docker", "15", 23517.167),
            ("OpenWhisk with WOW", "15", 168.007),
            ("OpenWhisk with Docker", MEANS, 16158.29),
            ("OpenWhisk with WOW", MEANS, 119.41),
        ]),
    ]
}

/// Starts all at a time; all are removed.
fn cold_starts(
    scene: &Scene,
    platform: &Platform,
    ids: &[String],
    samples: &mut Samples,
) -> Result<()> {
    let started = at_once(ids, |id| {
        let began = Instant::now();
        let action = platform.create(scene, id, ACTION)?;
        let init = action.init()?;
        Ok((millis(began), init, action))
    })?;
    for (start, init, _action) in started {
        samples.start.push(start);
        samples.init.push(init);
    }
    Ok(())
}
