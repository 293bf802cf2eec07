//! Figure 4b, and the thesis' Tables 3, 4 and 9: cold starts at a time.

use std::time::Instant;

use anyhow::Result;
use cwasi_bench::fixture::{WORKFLOW, stage};
use cwasi_bench::plan::Effort;
use cwasi_testbed::scene::Scene;

use crate::actions::{ABOUT, sides};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::{MEANS, Series, with_means};
use crate::sides::door::Function;
use crate::sides::load::{at_once, millis};

pub const GROUP: Group = Group {
    name: "WOW and thesis: cold starts",
    entries: &["wow-figure-4", "thesis-cold-starts"],
    run,
};

/// WOW's action for cold starts.
const QUERY: &str = "hash=1000";

fn levels(effort: Effort) -> Vec<usize> {
    match effort {
        Effort::Full => (1..=15).collect(),
        Effort::Quick => vec![1, 2, 4, 8, 15],
        Effort::Smoke => vec![2],
    }
}

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-cold-starts")?;
    let mut functions = sides(run, &scene, 1)?;
    let shared = |function: &Function| {
        let side = format!("{}, one workflow", function.side);
        Function { side, ..function.clone() }.with("cwasi.workflow", WORKFLOW)
    };
    let together: Vec<Function> =
        functions.iter().filter(|function| function.annotations.is_some()).map(shared).collect();
    functions.extend(together);
    // Compiles the module for each side; those of a workflow keep its shim daemon running.
    let mut keepers = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let door = function.open(&scene, &format!("keeper-{number}"), QUERY)?;
        keepers.extend(function.side.ends_with("one workflow").then_some(door));
    }
    let (mut series, rounds) = (Vec::new(), run.effort.pick(10, 3));
    for level in levels(run.effort) {
        let mut samples = vec![Vec::new(); functions.len()];
        for round in 0..rounds {
            for (side, (function, samples)) in functions.iter().zip(&mut samples).enumerate() {
                let ids: Vec<String> = (0..level)
                    .map(|number| format!("cold-{side}-{level}-{round}-{number}"))
                    .collect();
                samples.extend(starts(&scene, function, &ids)?);
            }
        }
        for (function, samples) in functions.iter().zip(samples) {
            series.push(Series::new(&function.side, level, "ms", samples));
        }
    }
    drop(keepers);
    let conditions = format!(
        "From the start of `ctr run --detach` until the first answer to {QUERY}, N at a time, {rounds} times in turns. {ABOUT} \
         Every container has a shim process of its own, but for those of one workflow, whose shim daemon runs already, as WOW’s \
         executor does. “{MEANS}” has the mean of each N."
    );
    let thesis = Exhibit::new("thesis-cold-starts", Form::Boxes, &conditions, with_means(&series));
    Ok(vec![
        Exhibit::new("wow-figure-4", Form::Lines, conditions, series),
        thesis.published(&[
            ("OpenWhisk with Docker", "1", 2879.0),
            ("OpenWhisk with WOW", "1", 47.8),
            ("OpenWhisk with Docker", "15", 23517.167),
            ("OpenWhisk with WOW", "15", 168.007),
            ("OpenWhisk with Docker", MEANS, 16158.29),
            ("OpenWhisk with WOW", MEANS, 119.41),
        ]),
    ])
}

/// Milliseconds of each start; all are removed.
fn starts(scene: &Scene, function: &Function, ids: &[String]) -> Result<Vec<f64>> {
    let started = at_once(ids, |id| {
        let started = Instant::now();
        let door = function.open(scene, id, QUERY)?;
        Ok((millis(started), door))
    })?;
    Ok(started.into_iter().map(|(took, _door)| took).collect())
}
