//! Figures 7 to 30, Tables 5 to 8 and 10 to 16: 1 to 15 requests at a time.

use std::time::Duration;

use anyhow::Result;
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;

use crate::actions::{ABOUT, hashing, sides};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::{MEANS, Series, with_means};
use crate::sides::door::Door;
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

/// A mix: its entry, percent of requests that sleep, and the thesis' means of Docker and Wasm.
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

/// Milliseconds that a sleeping request sleeps.
const fn sleep(effort: Effort) -> u32 {
    match effort {
        Effort::Smoke => 5,
        _ => 300,
    }
}

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-load")?;
    let mut doors = Vec::new();
    for (number, function) in sides(run, &scene, WORKERS)?.into_iter().enumerate() {
        doors.push((
            function.side.clone(),
            function.open(&scene, &format!("loaded-{number}"), "hello")?,
        ));
    }
    let hash = if run.effort == Effort::Smoke {
        hashing(run.effort, 0.0)?
    } else {
        "hash=100000".to_owned()
    };
    let alone = |id, query: &str, what: &str, means: [f64; 2]| -> Result<Exhibit> {
        let mut series = Vec::new();
        for level in levels(run.effort, false) {
            for (side, door) in &doors {
                let clients = vec![vec![door.target(query)]; level];
                let samples = closed(&clients, time(run.effort, false))?.concat();
                let samples = samples.into_iter().map(|(_, took)| took).collect();
                series.push(Series::new(side, level, "ms", samples));
            }
        }
        Ok(exhibit(run, id, &format!("Each asks for {query}{what}."), &series, means))
    };
    let mut exhibits = vec![
        alone("thesis-no-load", "hello", "", [4.57, 3.98])?,
        alone(
            "thesis-hashing",
            &hash,
            ", blake3 on each side (the thesis’ Docker action hashed with SHA-256)",
            [7.39, 0.87],
        )?,
    ];
    for (id, share, means) in MIXES {
        let mut series = Vec::new();
        for level in levels(run.effort, true) {
            for (side, door) in &doors {
                series.extend(mixed(run, side, door, &hash, share, level)?);
            }
        }
        let what = format!(
            "{share} % of the requests sleep for {} ms, which are subtracted, the others ask for {hash}; the response times of both \
             kinds are apart. The thesis’ CPU-bound action looks for a prime.",
            sleep(run.effort)
        );
        exhibits.push(exhibit(run, id, &what, &series, means));
    }
    Ok(exhibits)
}

fn exhibit(run: &Run, id: &'static str, what: &str, series: &[Series], means: [f64; 2]) -> Exhibit {
    let conditions = format!(
        "N clients, each of which sends its next request when it has the answer; {:?} for each number and side, in turns. Up to \
         {WORKERS} requests run at a time in one container. “{MEANS}” has the mean of each N. {what} {ABOUT}",
        time(run.effort, id.starts_with("thesis-mix"))
    );
    let [docker, wasm] = means;
    Exhibit::new(id, Form::Boxes, conditions, with_means(series))
        .published(&[("OpenWhisk with Docker", MEANS, docker), ("OpenWhisk with WOW", MEANS, wasm)])
}

/// Both kinds of requests of a mix; a kind that none of the clients came to in time has no series.
fn mixed(
    run: &Run,
    side: &str,
    door: &Door<'_>,
    hash: &str,
    share: usize,
    level: usize,
) -> Result<Vec<Series>> {
    let slept = f64::from(sleep(run.effort));
    let sleeping = door.target(&format!("sleep={}", sleep(run.effort)));
    let hashing = door.target(hash);
    let turn: Vec<bool> = spread(share);
    let targets = |client: usize| -> Vec<Target> {
        let mut turn = turn.clone();
        turn.rotate_left(client * 7 % TURN);
        turn.iter().map(|sleeps| if *sleeps { sleeping.clone() } else { hashing.clone() }).collect()
    };
    let clients: Vec<Vec<Target>> = (0..level).map(targets).collect();
    let answers = closed(&clients, time(run.effort, true))?;
    let [mut slow, mut busy] = [Vec::new(), Vec::new()];
    for (targets, answers) in clients.iter().zip(answers) {
        for (index, took) in answers {
            if targets[index] == sleeping { slow.push(took - slept) } else { busy.push(took) }
        }
    }
    let both = [("hash", busy), ("sleep, beyond it", slow)];
    let both = both.into_iter().filter(|(_, samples)| !samples.is_empty());
    Ok(both
        .map(|(kind, samples)| Series::new(&format!("{side}: {kind}"), level, "ms", samples))
        .collect())
}

/// Which requests of a turn sleep: a share of them, evenly spread.
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
            assert_eq!(
                turn.iter().filter(|sleeps| **sleeps).count(),
                share * TURN / 100,
                "{share}"
            );
        }
        assert_eq!(spread(50)[..4], [false, true, false, true]);
    }
}
