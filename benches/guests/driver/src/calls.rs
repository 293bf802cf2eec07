//! One call after another. Runs inside a guest.

use bench_clock::monotonic_ns;
use cwasi::call_in_place;
use cwasi_bench_protocol::payload::Seen;
use cwasi_bench_protocol::{Answer, Job};

use crate::made::{Payload, Started, start};

/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// Each call with a payload of its own, made before the clock starts.
pub fn each_its_own(job: &Job) -> Result<Answer, String> {
    let target = target(job)?;
    let mut answer = Answer::default();
    for seed in 0..job.count as u64 {
        let Started { payload, expected, at } = start(job, seed, &mut answer);
        timed(&mut answer, at, target, &payload, expected)?;
    }
    Ok(answer)
}

/// Each call with a payload of its own, and with an answer of the same length.
pub fn echoed(job: &Job) -> Result<Answer, String> {
    let target = target(job)?;
    let mut answer = Answer::default();
    for seed in 0..job.count as u64 {
        let Started { payload, expected, at } = start(job, seed, &mut answer);
        let response = call_in_place(target, &payload).map_err(|error| error.to_string())?;
        let ended = monotonic_ns();
        let said = response.get(..Seen::LEN).filter(|_| response.len() == job.size);
        let seen = Seen::check(said.unwrap_or(&response), expected)?;
        answer.add(at, seen.at, ended);
    }
    Ok(answer)
}

/// One payload in one call after the other.
pub fn one_again_and_again(job: &Job) -> Result<Answer, String> {
    let target = target(job)?;
    let made = Payload::make(job, 0);
    let expected = made.expected;
    let payload = made.seal();
    let mut answer = Answer::default();
    for _ in 0..job.count {
        timed(&mut answer, monotonic_ns(), target, &payload, expected)?;
    }
    Ok(answer)
}

/// Calls until the job's milliseconds are over.
pub fn as_many_as_fit(job: &Job) -> Result<Answer, String> {
    let target = target(job)?;
    let made = Payload::make(job, 0);
    let expected = made.expected;
    let payload = made.seal();
    let until = monotonic_ns() + job.count as u64 * MILLISECOND;
    let mut answer = Answer::default();
    loop {
        let started = monotonic_ns();
        if started >= until {
            answer.thin_out();
            return Ok(answer);
        }
        timed(&mut answer, started, target, &payload, expected)?;
    }
}

fn timed(
    answer: &mut Answer,
    started: u64,
    target: &str,
    payload: &[u8],
    expected: u64,
) -> Result<(), String> {
    let response = call_in_place(target, payload).map_err(|error| error.to_string())?;
    let ended = monotonic_ns();
    let seen = Seen::check(&response, expected)?;
    answer.add(started, seen.at, ended);
    Ok(())
}

fn target(job: &Job) -> Result<&str, String> {
    job.targets.first().map(String::as_str).ok_or_else(|| "the job names no target".to_owned())
}
