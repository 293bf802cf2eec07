//! The resources of `cwasi:calls`: payloads, and calls in flight. Runs in a worker.

use cwasi_modes::Payload;
use cwasi_sys::segment::SegmentError;

/// A call in flight, by the handle of the host.
#[derive(Debug)]
pub struct StartedCall(pub(super) u32);

/// Bytes that the host holds for a component. Clones share a segment.
#[derive(Clone, Debug)]
pub struct GuestPayload(pub(super) Payload);

impl GuestPayload {
    /// At most `length` bytes from `offset` on.
    pub(super) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, SegmentError> {
        let start = offset.min(self.0.len());
        let length = length.min(self.0.len() - start);
        match &self.0 {
            Payload::Inline(bytes) => {
                let range = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes[range(start)..range(start + length)].to_vec())
            }
            Payload::Segment(segment) => {
                let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
                segment.read_exact_at(&mut bytes, start)?;
                Ok(bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cwasi_sys::segment::Segment;

    use super::*;

    #[test]
    fn reading_stops_at_the_end() {
        let segment = Payload::Segment(Segment::copy_of(b"abcdef").unwrap());
        for payload in [Payload::Inline(b"abcdef".to_vec()), segment] {
            let payload = GuestPayload(payload);
            for (offset, length, bytes) in [
                (0, 6, &b"abcdef"[..]),
                (2, 2, b"cd"),
                (4, u64::MAX, b"ef"),
                (6, 1, b""),
                (u64::MAX, u64::MAX, b""),
            ] {
                assert_eq!(payload.read(offset, length).unwrap(), bytes, "{offset} {length}");
            }
        }
    }
}
