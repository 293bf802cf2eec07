//! A secondary that answers with a copy of its payload, made in a region. Its first bytes say when the payload arrived.
//! Runs inside a guest.

use cwasi::Region;
use cwasi_bench_protocol::payload::Seen;

#[cwasi::handler]
fn echo(payload: &[u8]) -> Region {
    let at = bench_clock::monotonic_ns();
    let mut region = Region::with_len(payload.len());
    region.copy_from_slice(payload);
    let seen = Seen { at, sum: payload.len() as u64 }.to_bytes();
    if let Some(start) = region.get_mut(..Seen::LEN) {
        start.copy_from_slice(&seen);
    }
    region
}
