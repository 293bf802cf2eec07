//! A secondary with fan-in: reports the arrival of all parts, and then reads every byte. Runs inside a guest.

use cwasi_bench_protocol::payload::{Seen, Sum};

#[cwasi::handler]
fn join(parts: cwasi::Parts<'_>) -> Vec<u8> {
    let at = bench_clock::monotonic_ns();
    let sum = parts.iter().fold(0, |sum: u64, part| sum.wrapping_add(Sum::of(part.bytes)));
    Seen { at, sum }.to_bytes().to_vec()
}
