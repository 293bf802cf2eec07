//! A secondary that is handled once for all parts of a group: says when it had them, and reads nothing of them.
//!
//! Runs inside a guest.

use cwasi_bench_protocol::payload::Seen;

#[cwasi::handler]
fn join(parts: cwasi::Parts<'_>) -> Vec<u8> {
    let at = bench_clock::monotonic_ns();
    let sum = parts.iter().map(|part| part.bytes.len() as u64).sum();
    Seen { at, sum }.to_bytes().to_vec()
}
