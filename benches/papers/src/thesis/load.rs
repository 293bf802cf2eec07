//! Figures 7 to 30, Tables 5 to 8 and 10 to 16: 1 to 15 requests at a time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;
use serde_json::{Value, json};

use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::platform::Action;
use crate::openwhisk::{ABOUT, hashing, platforms, waiting};
use crate::run::{Group, Run};
use crate::series::{MEANS, Series, with_means};
use crate::sides::load::{Target, closed};

pub const GROUP: Group = Group {
    name: "thesis: requests at a time",
    entries: &[
        "thesis-no-load",
        "thesis-hashing",
        "thesis-mix-10",
        "thesis-mix-25",
        "thesis-mix-50",
        "thesis-mix-75",
        "thesis-mix-90",
    ],
    run,
};

/// Requests that run at a time at most.
const WORKERS: usize = 16;
/// Requests of a mix, in which a share of a twentieth is one request.
const TURN: usize = 20;

/// A mix: its entry, percent of requests that wait, and the thesis' means of Docker and Wasm.
const MIXES: [(&str, usize, [f64; 2]); 5] = [
    ("thesis-mix-10", 10, [2.33, 1.01]),
    ("thesis-mix-25", 25, [2.38, 1.05]),
    ("thesis-mix-50", 50, [2.19, 1.00]),
    ("thesis-mix-75", 75, [1.86, 0.87]),
    ("thesis-mix-90", 90, [1.70, 0.79]),
];

fn levels(effort: Effort, mixed: bool) -> Vec<usize> {
    match effort {
        Effort::Full => (1..=15).collect(),
        Effort::Quick if mixed => vec![1, 4, 8, 15],
        Effort::Quick => vec![1, 2, 4, 8, 12, 15],
        Effort::Smoke => vec![2],
    }
}

/// For one number of clients on one side.
const fn time(effort: Effort, mixed: bool) -> Duration {
    match (effort, mixed) {
        (Effort::Full, _) => Duration::from_secs(5),
        (Effort::Quick, true) => Duration::from_millis(1500),
        (Effort::Quick, false) => Duration::from_millis(500),
        (Effort::Smoke, _) => Duration::from_millis(10),
    }
}

/// The prime that the thesis' Go action finds.
const NTH_PRIME: u64 = 5000;

/// A side with its actions, by their names.
struct Loaded<'a> {
    name: &'a str,
    actions: Vec<(&'static str, Action<'a>)>,
}

impl Loaded<'_> {
    fn target(&self, name: &str, parameters: &Value) -> Result<Target> {
        let found = self.actions.iter().find(|(action, _)| *action == name);
        Ok(found.context("a side has all actions")?.1.activation(parameters))
    }
}

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-load")?;
    let names = ["hello", "hash", "prime", "net"];
    let platforms = platforms(run, &scene, WORKERS, &names)?;
    let mut sides = Vec::new();
    for (side, platform) in platforms.iter().enumerate() {
        let start = |name: &'static str| -> Result<_> {
            Ok((name, platform.start(&scene, &format!("loaded-{side}-{name}"), name)?))
        };
        let actions = names.into_iter().map(start).collect::<Result<_>>()?;
        sides.push(Loaded { name: &platform.name, actions });
    }
    let iterations = if run.effort == Effort::Smoke { 100 } else { 100_000 };
    let hello = json!({ "name": "there" });
    let what = format!(
        "Each asks for hash with {iterations} iterations of blake3 on each side (the thesis’ Docker action hashed with SHA-256)."
    );
    let mut exhibits = vec![
        alone(
            run,
            &sides,
            "thesis-no-load",
            ("hello", &hello),
            "Each asks for hello.",
            [4.57, 3.98],
        )?,
        alone(run, &sides, "thesis-hashing", ("hash", &hashing(iterations)), &what, [7.39, 0.87])?,
    ];
    for (id, share, means) in MIXES {
        exhibits.push(mix(run, &sides, id, share, means)?);
    }
    Ok(exhibits)
}

/// All clients ask for the same.
fn alone(
    run: &Run,
    sides: &[Loaded<'_>],
    id: &'static str,
    (name, parameters): (&str, &Value),
    what: &str,
    means: [f64; 2],
) -> Result<Exhibit> {
    let mut series = Vec::new();
    for level in levels(run.effort, false) {
        for side in sides {
            let clients = vec![vec![side.target(name, parameters)?]; level];
            let samples = closed(&clients, time(run.effort, false))?.concat();
            let samples = samples.into_iter().map(|(_, took)| took).collect();
            series.push(Series::new(side.name, level, "ms", samples));
        }
    }
    Ok(exhibit(run, id, what, &series, means))
}

/// A share of the requests waits, the others compute.
fn mix(
    run: &Run,
    sides: &[Loaded<'_>],
    id: &'static str,
    share: usize,
    means: [f64; 2],
) -> Result<Exhibit> {
    let mut series = Vec::new();
    for level in levels(run.effort, true) {
        for side in sides {
            series.extend(mixed(run, side, share, level)?);
        }
    }
    let (waits, nth) = parameters(run.effort);
    let what = format!(
        "{share} % of the requests ask for net with {waits}, whose time is subtracted, the others for prime with {nth} by trial \
         division, as the thesis’ Docker action (its Wasm action looked for the 20,000,001st prime by a sieve). The response \
         times of both kinds are apart."
    );
    Ok(exhibit(run, id, &what, &series, means))
}

fn exhibit(run: &Run, id: &'static str, what: &str, series: &[Series], means: [f64; 2]) -> Exhibit {
    let conditions = format!(
        "N clients, each of which sends its next request when it has the response; {:?} for each number and side, in turns. Up to \
         {WORKERS} activations run at a time in one container of each action; an executor has workers as they need them. “{MEANS}” has the mean of each N. {what} {ABOUT}",
        time(run.effort, id.starts_with("thesis-mix"))
    );
    let [docker, wasm] = means;
    Exhibit::new(id, Form::Boxes, conditions, with_means(series))
        .published(&[("OpenWhisk with Docker", MEANS, docker), ("OpenWhisk with WOW", MEANS, wasm)])
}

/// Of `net` and of `prime`.
fn parameters(effort: Effort) -> (Value, Value) {
    let nth = if effort == Effort::Smoke { 10 } else { NTH_PRIME };
    (waiting(effort, 300), json!({ "nth": nth }))
}

/// Both kinds of requests of a mix; a kind that none of the clients came to in time has no series.
fn mixed(run: &Run, side: &Loaded<'_>, share: usize, level: usize) -> Result<Vec<Series>> {
    let (waits, nth) = parameters(run.effort);
    let waited = waits["milliseconds"].as_f64().unwrap_or_default();
    let turn = |client: usize| -> Vec<bool> {
        let mut turn = spread(share);
        turn.rotate_left(client * 7 % TURN);
        turn
    };
    let (slow, busy) = (side.target("net", &waits)?, side.target("prime", &nth)?);
    let targets = |client: usize| -> Vec<Target> {
        let target = |waits: bool| if waits { slow.clone() } else { busy.clone() };
        turn(client).into_iter().map(target).collect()
    };
    let clients: Vec<Vec<Target>> = (0..level).map(targets).collect();
    let answers = closed(&clients, time(run.effort, true))?;
    let [mut slow, mut busy] = [Vec::new(), Vec::new()];
    for (client, answers) in answers.into_iter().enumerate() {
        let waits = turn(client);
        for (index, took) in answers {
            if waits[index] { slow.push(took - waited) } else { busy.push(took) }
        }
    }
    let both = [("prime", busy), ("net, beyond its wait", slow)];
    let both = both.into_iter().filter(|(_, samples)| !samples.is_empty());
    Ok(both
        .map(|(kind, samples)| Series::new(&format!("{}: {kind}", side.name), level, "ms", samples))
        .collect())
}

/// Which requests of a turn wait: a share of them, evenly spread.
fn spread(share: usize) -> Vec<bool> {
    (0..TURN).map(|at| (at + 1) * share / 100 > at * share / 100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_spread_over_a_turn() {
        for (_, share, _) in MIXES {
            let turn = spread(share);
            assert_eq!(turn.iter().filter(|waits| **waits).count(), share * TURN / 100, "{share}");
        }
        assert_eq!(spread(50)[..4], [false, true, false, true]);
    }
}
