//! A secondary that reports the arrival of its payload, and does not read it. Runs inside a guest.

use cwasi_bench_protocol::payload::Seen;

#[cwasi::handler]
fn arrive(payload: &[u8]) -> Vec<u8> {
    let at = bench_clock::monotonic_ns();
    Seen { at, sum: payload.len() as u64 }.to_bytes().to_vec()
}
