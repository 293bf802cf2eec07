//! Many calls at a time: one payload to many callees, and many payloads to one. Runs inside a guest.

use bench_clock::monotonic_ns;
use cwasi::{CallError, Response, fan_out};
use cwasi_bench_protocol::payload::Seen;
use cwasi_bench_protocol::{Answer, Job};

use crate::made::{Payload, Sendable, Started, start};

/// One payload to `branches` callees, round and round the targets.
pub fn out(job: &Job) -> Result<Answer, String> {
    let mut answer = Answer::default();
    for seed in 0..job.count as u64 {
        let Started { payload, expected, at } = start(job, seed, &mut answer);
        let targets = job.targets.iter().cycle().take(job.branches);
        let ends = fan_out(targets.map(|target| (target, &*payload))).as_completed();
        let last = last_seen(ends, expected, job)?;
        answer.add(at, last, monotonic_ns());
    }
    Ok(answer)
}

/// One payload for each of the `branches` parts to a callee that waits for all of them.
pub fn in_one(job: &Job) -> Result<Answer, String> {
    let target = job.targets.first().ok_or("the job names no target")?;
    let parts = u32::try_from(job.branches).map_err(|error| error.to_string())?;
    let mut answer = Answer::default();
    for group in 0..job.count as u64 {
        let seeds = (0..u64::from(parts)).map(|part| group * u64::from(parts) + part);
        let made: Vec<Payload> = seeds.map(|seed| Payload::make(job, seed)).collect();
        answer.making_cpu += made.iter().map(|payload| payload.cpu).sum::<u64>();
        let expected = made.iter().fold(0, |sum: u64, one| sum.wrapping_add(one.expected));
        // Distinct over all blocks of this driver: the first part's time is in no other.
        let key = format!("{}", monotonic_ns());
        let started = monotonic_ns();
        let payloads: Vec<Sendable> = made.into_iter().map(Payload::seal).collect();
        let calls = payloads.iter().map(|payload| (target, &**payload));
        let ends = fan_out(calls).join(&key, parts).as_completed();
        let last = last_seen(ends, expected, job)?;
        answer.add(started, last, monotonic_ns());
    }
    Ok(answer)
}

/// When the last callee had its payload; every branch has to have an answer, and the right one.
fn last_seen(
    ends: impl Iterator<Item = (usize, Result<Response, CallError>)>,
    expected: u64,
    job: &Job,
) -> Result<u64, String> {
    let (mut last, mut count) = (0, 0);
    for (branch, end) in ends {
        let response = end.map_err(|error| format!("branch {branch}: {error}"))?;
        last = last.max(Seen::check(&response, expected)?.at);
        count += 1;
    }
    if count == job.branches {
        Ok(last)
    } else {
        Err(format!("{count} of {} branches ended", job.branches))
    }
}
