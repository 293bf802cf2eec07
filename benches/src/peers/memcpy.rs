//! One copy in one process: the least cost of a transport that copies.

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::payload::Sum;
use memmap2::MmapMut;

use super::transport::{Payload, Transport};
use super::{Buffer, monotonic_ns};

/// Copies payloads into memory.
pub struct Memcpy {
    buffer: Buffer,
    warm: Option<MmapMut>,
}

impl Memcpy {
    /// Into memory of this kind.
    pub const fn new(buffer: Buffer) -> Self {
        Self { buffer, warm: None }
    }
}

impl Transport for Memcpy {
    fn call(&mut self, payload: &Payload) -> Result<u64> {
        let len = payload.bytes.len();
        let mut memory = match self.warm.take() {
            Some(memory) if memory.len() >= len => memory,
            _ => MmapMut::map_anon(len.max(1)).context("memory for a payload")?,
        };
        memory[..len].copy_from_slice(&payload.bytes);
        let at = monotonic_ns();
        let sum = if payload.touch { Sum::of(&memory[..len]) } else { len as u64 };
        anyhow::ensure!(sum == payload.expected, "a copy differs from what was copied");
        self.warm = (self.buffer == Buffer::Warm).then_some(memory);
        Ok(at)
    }

    fn call_all(&mut self, payloads: &[&Payload]) -> Result<u64> {
        let mut last = 0;
        for payload in payloads {
            last = self.call(payload)?;
        }
        Ok(last)
    }
}
