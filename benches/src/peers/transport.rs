//! How the client of a baseline sends payloads.

use anyhow::Result;
use cwasi_bench_protocol::{Answer, Job};

use super::cpu_ns;

/// Nanoseconds of a millisecond.
pub const MILLISECOND: u64 = 1_000_000;

/// One payload and what its receiver must answer.
pub struct Payload {
    /// The bytes.
    pub bytes: bytes::Bytes,
    /// True when the receiver reads them.
    pub touch: bool,
    /// Their sum, or their length if the callee does not read them.
    pub expected: u64,
}

impl Payload {
    /// The payload of a call; adds the processor time that it takes to `answer`.
    pub fn make(job: &Job, seed: u64, answer: &mut Answer) -> Self {
        let before = cpu_ns();
        let (bytes, expected) = job.payload(seed);
        answer.making_cpu += cpu_ns().saturating_sub(before);
        Self { bytes: bytes.into(), touch: job.touch, expected }
    }
}

/// A way to send payloads.
pub trait Transport {
    /// Sends one to one server and waits for its answer; when the server had it, `CLOCK_MONOTONIC` in ns.
    ///
    /// # Errors
    /// When the server is gone or saw other bytes.
    fn call(&mut self, payload: &Payload) -> Result<u64>;

    /// Sends the payloads, to one server each as far as there are as many, and waits for all answers; when the last
    /// server had its.
    ///
    /// # Errors
    /// As [`Self::call`].
    fn call_all(&mut self, payloads: &[&Payload]) -> Result<u64>;
}
