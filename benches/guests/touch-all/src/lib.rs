//! A secondary that reports the arrival of its payload, and then reads every byte. Runs inside a guest.

use cwasi_bench_protocol::payload::{Seen, Sum};

#[cwasi::handler]
fn read(payload: &[u8]) -> Vec<u8> {
    let at = bench_clock::monotonic_ns();
    Seen { at, sum: Sum::of(payload) }.to_bytes().to_vec()
}
