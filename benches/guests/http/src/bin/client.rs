//! Takes the harness's jobs, POSTs payloads to the server of its argument, checks and times the answers. Runs
//! inside a guest under `wasmedge`.

use std::io::{stdin, stdout};

use bench_clock::monotonic_ns;
use bench_http::{KEEP, TOUCH, receive, send};
use cwasi_bench_protocol::payload::Seen;
use cwasi_bench_protocol::{Answer, Job, Verb, serve};
use wasmedge_wasi_socket::TcpStream;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut stream = TcpStream::connect(&address)?;
    serve(stdin().lock(), stdout(), |job| perform(job, &mut stream))
}

fn perform(job: &Job, stream: &mut TcpStream) -> Result<Answer, String> {
    if job.verb != Verb::Call {
        return Err("only single calls".to_owned());
    }
    let mut answer = Answer::default();
    for seed in 0..job.count as u64 {
        let (payload, expected) = job.payload(seed);
        let started = monotonic_ns();
        let seen = post(stream, job.touch, &payload, expected)?;
        answer.add(started, seen.at, monotonic_ns());
    }
    Ok(answer)
}

fn post(
    stream: &mut TcpStream,
    touch: bool,
    payload: &[u8],
    expected: u64,
) -> Result<Seen, String> {
    let path = if touch { TOUCH } else { KEEP };
    let text = |error: std::io::Error| error.to_string();
    send(stream, &format!("POST {path} HTTP/1.1"), payload).map_err(text)?;
    let answer = receive(stream).map_err(text)?.ok_or("the server has closed the connection")?;
    Seen::check(&answer.body, expected)
}
