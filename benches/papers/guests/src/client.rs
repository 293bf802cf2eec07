//! Takes the harness's jobs, POSTs payloads to the server of its argument with `wasmedge_http_req`, which connects for
//! each request, checks and times the answers. Runs inside a guest under `wasmedge`.

use std::io::{ErrorKind, Result as IoResult, stdin, stdout};

use bench_clock::monotonic_ns;
use cwasi_bench_protocol::payload::Seen;
use cwasi_bench_protocol::{Answer, Job, Verb, serve};
use wasmedge_http_req::request;

/// Path at which the server reads a payload; at another one it does not.
const TOUCH: &str = "touch";
const KEEP: &str = "keep";

fn main() -> IoResult<()> {
    let address = std::env::args().nth(1).ok_or(ErrorKind::InvalidInput)?;
    serve(stdin().lock(), stdout(), |job| perform(job, &address))
}

fn perform(job: &Job, address: &str) -> Result<Answer, String> {
    if job.verb != Verb::Call {
        return Err("only single calls".to_owned());
    }
    let url = format!("http://{address}/{}", if job.touch { TOUCH } else { KEEP });
    let mut answer = Answer::default();
    for seed in 0..job.count as u64 {
        let (payload, expected) = job.payload(seed);
        let started = monotonic_ns();
        let mut body = Vec::new();
        let response =
            request::post(&url, &payload, &mut body).map_err(|error| error.to_string())?;
        if !response.status_code().is_success() {
            return Err(format!("the server's status is {}", response.status_code()));
        }
        let seen = Seen::check(&body, expected)?;
        answer.add(started, seen.at, monotonic_ns());
    }
    Ok(answer)
}
