//! Runs ours and the baselines in turns, so that a disturbance of the machine affects all of them.

use anyhow::{Result, ensure};
use cwasi_bench_protocol::{Answer, Job};

use crate::plan::Turns;
use crate::side::Side;
use crate::stats::Rounds;

/// Nanoseconds of a microsecond.
const MICROSECOND: f64 = 1000.0;

/// One side and its job.
pub struct Contestant {
    /// Ours, or the name of a baseline.
    pub name: &'static str,
    pub side: Side,
    /// Its work of one round; `count` is the round's block.
    pub job: Job,
}

/// What one side measured, in µs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    pub name: &'static str,
    /// Until the callee had the payload.
    pub delivery: Rounds,
    /// Until the answer was back.
    pub call: Rounds,
}

impl Measured {
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    pub fn add(&mut self, answer: &Answer) {
        self.delivery.0.push(micros(&answer.delivery));
        self.call.0.push(micros(&answer.call));
    }
}

/// Nanoseconds as microseconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "durations far below 2^52 ns")]
pub fn micros(nanos: &[u64]) -> Vec<f64> {
    nanos.iter().map(|nanos| *nanos as f64 / MICROSECOND).collect()
}

/// Lets the contestants take turns, and ends them. The first round warms up and is dropped.
///
/// # Errors
/// When one of them fails: a comparison without one of its sides is none.
pub fn take(mut contestants: Vec<Contestant>, turns: Turns) -> Result<Vec<Measured>> {
    let mut measured: Vec<Measured> =
        contestants.iter().map(|one| Measured::new(one.name)).collect();
    for round in 0..=turns.rounds {
        for (one, measured) in contestants.iter_mut().zip(&mut measured) {
            let answer = one.side.perform(&one.job)?;
            ensure!(
                answer.call.len() == one.job.count,
                "{} made {} calls of {}",
                one.name,
                answer.call.len(),
                one.job.count
            );
            if round > 0 {
                measured.add(&answer);
            }
        }
    }
    for one in contestants {
        one.side.end()?;
    }
    Ok(measured)
}
