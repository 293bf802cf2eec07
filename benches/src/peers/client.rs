//! The client process of a baseline: takes jobs, makes and sends payloads, checks and times the answers.

use std::io::{stdin, stdout};

use anyhow::{Result, bail};
use cwasi_bench_protocol::{Answer, Job, Verb, serve};

use super::transport::{MILLISECOND, Payload, Transport};
use super::{
    Baseline, Peer, end_with_parent, http, http_wasmedge, http2, memcpy, monotonic_ns, pubsub, tcp,
    tls, uds,
};
use crate::placement::pin;

/// Serves jobs until the job to end.
///
/// # Errors
/// When the servers do not start or an answer cannot be written.
pub fn run(peer: &Peer) -> Result<()> {
    end_with_parent()?;
    if let Some(processor) = peer.client_processor {
        pin(0, Some(processor))?;
    }
    let mut transport: Box<dyn Transport> = match peer.kind {
        Baseline::UdsCopy => Box::new(uds::Copying::start(peer)?),
        Baseline::UdsPingpong => Box::new(uds::Pingpong::start(peer)?),
        Baseline::HttpLoopback | Baseline::HttpWatchdog => {
            Box::new(http::Connections::start(peer)?)
        }
        Baseline::HttpWasmedge => return http_wasmedge::become_client(peer),
        Baseline::Redis => Box::new(pubsub::Publisher::start(peer)?),
        Baseline::Tcp => Box::new(tcp::start(peer)?),
        Baseline::Tls => Box::new(tls::start(peer)?),
        Baseline::Http2 => return http2::run(peer),
        Baseline::Native => return Ok(serve(stdin().lock(), stdout(), bench_compute::perform)?),
        Baseline::Memcpy => Box::new(memcpy::Memcpy::new(peer.buffer)),
    };
    serve(stdin().lock(), stdout(), |job| perform(transport.as_mut(), job))?;
    Ok(())
}

fn perform(transport: &mut dyn Transport, job: &Job) -> Result<Answer> {
    let mut answer = Answer::default();
    match job.verb {
        Verb::Call | Verb::Echo => {
            for seed in 0..job.count as u64 {
                let payload = Payload::make(job, seed, &mut answer);
                timed(transport, &payload, &mut answer)?;
            }
        }
        Verb::Resend => {
            let payload = Payload::make(job, 0, &mut answer);
            for _ in 0..job.count {
                timed(transport, &payload, &mut answer)?;
            }
        }
        Verb::Flood => {
            let payload = Payload::make(job, 0, &mut answer);
            let until = monotonic_ns() + job.count as u64 * MILLISECOND;
            while monotonic_ns() < until {
                timed(transport, &payload, &mut answer)?;
            }
            answer.thin_out();
        }
        Verb::FanOut | Verb::FanIn => {
            for seed in 0..job.count as u64 {
                many(transport, job, seed, &mut answer)?;
            }
        }
        Verb::Compute => bail!("this baseline only calls"),
    }
    Ok(answer)
}

fn timed(transport: &mut dyn Transport, payload: &Payload, answer: &mut Answer) -> Result<()> {
    let started = monotonic_ns();
    let entered = transport.call(payload)?;
    answer.add(started, entered, monotonic_ns());
    Ok(())
}

/// A fan-out has one payload for all branches, a fan-in one for each part.
fn many(transport: &mut dyn Transport, job: &Job, seed: u64, answer: &mut Answer) -> Result<()> {
    let parts = if job.verb == Verb::FanOut { 1 } else { job.branches as u64 };
    if job.branches == 0 {
        bail!("a job without branches");
    }
    let made: Vec<Payload> =
        (0..parts).map(|part| Payload::make(job, seed * parts + part, answer)).collect();
    let payloads: Vec<&Payload> = made.iter().cycle().take(job.branches).collect();
    let started = monotonic_ns();
    let entered = transport.call_all(&payloads)?;
    answer.add(started, entered, monotonic_ns());
    Ok(())
}
