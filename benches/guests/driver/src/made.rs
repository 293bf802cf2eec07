//! Makes payloads, outside the timed part if the job says so. Runs inside a guest.

use std::ops::Deref;

use bench_clock::{cpu_ns, monotonic_ns};
use cwasi::{Region, SealedRegion};
use cwasi_bench_protocol::payload::fill;
use cwasi_bench_protocol::{Answer, Job, Made};

/// A payload and what a callee must answer to it.
pub struct Payload {
    bytes: Bytes,
    /// What a callee must answer.
    pub expected: u64,
    /// CPU time that making it took, ns.
    pub cpu: u64,
}

enum Bytes {
    Region(Region),
    Vector(Vec<u8>),
}

/// A payload on its way.
pub enum Sendable {
    Region(SealedRegion),
    Vector(Vec<u8>),
}

impl Payload {
    /// Makes the payload of number `seed`.
    pub fn make(job: &Job, seed: u64) -> Self {
        let before = cpu_ns();
        let mut bytes = match job.made {
            Made::InPlace => Bytes::Region(Region::with_len(job.size)),
            Made::Vector => Bytes::Vector(vec![0; job.size]),
        };
        let sum = match &mut bytes {
            Bytes::Region(region) => fill(region, seed),
            Bytes::Vector(vector) => fill(vector, seed),
        };
        Self { bytes, expected: job.expected(sum), cpu: cpu_ns().saturating_sub(before) }
    }

    /// Ends the writing; inside the clock.
    pub fn seal(self) -> Sendable {
        match self.bytes {
            Bytes::Region(region) => Sendable::Region(region.seal()),
            Bytes::Vector(vector) => Sendable::Vector(vector),
        }
    }
}

/// A payload whose clock runs.
pub struct Started {
    pub payload: Sendable,
    /// What a callee must answer.
    pub expected: u64,
    /// `CLOCK_MONOTONIC` in ns.
    pub at: u64,
}

/// Makes the payload of number `seed`, starts its clock and seals it.
pub fn start(job: &Job, seed: u64, answer: &mut Answer) -> Started {
    let made = Payload::make(job, seed);
    answer.making_cpu += made.cpu;
    let (expected, at) = (made.expected, monotonic_ns());
    Started { payload: made.seal(), expected, at }
}

impl Deref for Sendable {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Region(region) => region,
            Self::Vector(vector) => vector,
        }
    }
}
