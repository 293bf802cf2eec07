//! Compares runs of two revisions that took turns (`scripts/bench-ab.sh`).

use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::report::terminal::{digits, with_unit};
use crate::stats::{Ratio, Rounds};

/// What an entry of `report.json` says about our side.
#[derive(Clone, Debug, Deserialize)]
pub struct Ours {
    pub case: String,
    pub unit: String,
    pub ours_p50: Option<f64>,
}

/// One case in both revisions.
#[derive(Debug)]
pub struct Change {
    case: String,
    unit: String,
    base: Rounds,
    present: Rounds,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, unit, base, present } = self;
        let median = |side: &Rounds| with_unit(side.median(), unit);
        write!(f, "{case:<50} {:>12} {:>12}", median(base), median(present))?;
        let Some(Ratio { value, low, high }) = Ratio::of(present, base) else { return Ok(()) };
        write!(f, " {:>8}× ({}–{})", digits(value), digits(low), digits(high))
    }
}

/// Reads reports.
///
/// # Errors
/// When one cannot be read.
pub fn read(reports: &[PathBuf]) -> Result<Vec<Vec<Ours>>> {
    ensure!(!reports.is_empty(), "no reports");
    let one = |path: &PathBuf| {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
    };
    reports.iter().map(one).collect()
}

/// The cases of the present runs, in their order, beside those of the base.
#[must_use]
pub fn changes(base: &[Vec<Ours>], present: &[Vec<Ours>]) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    for Ours { case, unit, .. } in present.iter().flatten() {
        if !changes.iter().any(|change| change.case == *case) {
            let (base, present) = (samples(base, case), samples(present, case));
            changes.push(Change { case: case.clone(), unit: unit.clone(), base, present });
        }
    }
    changes
}

/// A run is a round with one sample: a case has an entry for each of its baselines, with the same numbers of ours.
fn samples(runs: &[Vec<Ours>], case: &str) -> Rounds {
    let sample = |run: &Vec<Ours>| run.iter().find(|ours| ours.case == case)?.ours_p50;
    Rounds(runs.iter().map(|run| sample(run).into_iter().collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(entries: &[(&str, f64)]) -> Vec<Ours> {
        let ours = |(case, p50): &(&str, f64)| Ours {
            case: (*case).to_owned(),
            unit: "us".to_owned(),
            ours_p50: Some(*p50),
        };
        entries.iter().map(ours).collect()
    }

    #[test]
    fn medians_of_both_their_ratio_and_its_spread() {
        let base = [10.0, 12.0, 8.0].map(|p50| run(&[("call", p50), ("gone", 1.0)]));
        let present =
            [20.0, 18.0, 20.0].map(|p50| run(&[("call", p50), ("call", p50), ("new", 3.0)]));
        let lines: Vec<String> =
            changes(&base, &present).iter().map(|change| change.to_string()).collect();
        let words = |line: &String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[0]), ["call", "10.0", "µs", "20.0", "µs", "2.00×", "(1.50–2.50)"]);
        assert_eq!(words(&lines[1]), ["new", "–", "3.00", "µs"]);
        assert_eq!(lines.len(), 2);
    }
}
