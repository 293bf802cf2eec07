//! A secondary with fan-in: reports the arrival of all parts, and does not read them. Runs inside a guest.

use cwasi_bench_protocol::payload::Seen;

#[cwasi::handler]
fn join(parts: cwasi::Parts<'_>) -> Vec<u8> {
    let at = bench_clock::monotonic_ns();
    let sum = parts.iter().map(|part| part.bytes.len() as u64).sum();
    Seen { at, sum }.to_bytes().to_vec()
}
