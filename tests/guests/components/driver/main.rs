//! A `wasi:cli/run` command that makes the harness's calls and reports a duration for each, as `benches/guests/driver`
//! does.
#![expect(missing_docs, reason = "generated")]

use std::io::{stdin, stdout};
use std::time::Instant;

use cwasi::calls::calls;
use cwasi_bench_protocol::payload::Seen;
use cwasi_bench_protocol::{Answer, Job, Verb, serve};

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/imports",
    generate_all,
});

fn main() -> std::io::Result<()> {
    let clock = Instant::now();
    serve(stdin().lock(), stdout(), |job| match job.verb {
        Verb::Call => perform(job, clock),
        _ => Err("this guest makes one call after another".to_owned()),
    })
}

fn perform(job: &Job, clock: Instant) -> Result<Answer, String> {
    let target = job.targets.first().ok_or("the job names no target")?;
    let now = || u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut answer = Answer::default();
    for seed in 0..job.count as u64 {
        let (payload, expected) = job.payload(seed);
        let started = now();
        let response = calls::call_bytes(target, &payload).map_err(|error| error.message)?;
        let ended = now();
        let _seen = Seen::check(&response, expected)?;
        // The callee has another clock.
        answer.add(started, started, ended);
    }
    Ok(answer)
}
