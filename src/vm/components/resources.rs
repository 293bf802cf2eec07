//! The resources of `cwasi:calls`: payloads, and calls in flight. Runs in a worker.

use std::borrow::Cow;

use bytes::Bytes;
use cwasi_modes::Payload;
use wasmtime_wasi::p2::{InputStream, Pollable, StreamError, StreamResult};

use super::lists::PassedList;

/// Most bytes of one read of a stream.
const STEP_MAX: usize = 256 << 10;

/// A call in flight, by the handle of the host.
#[derive(Debug)]
pub struct StartedCall(pub(super) u32);

/// Bytes that the host holds for a component. Clones share a segment.
#[derive(Clone, Debug)]
pub struct GuestPayload(pub(super) Payload);

impl GuestPayload {
    /// At most `length` bytes from `offset` on.
    pub(super) fn read(&self, offset: u64, length: u64) -> PassedList<'static> {
        let start = offset.min(self.0.len());
        let length = length.min(self.0.len() - start);
        let of_memory = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        match &self.0 {
            Payload::Inline(bytes) => {
                let range = of_memory(start)..of_memory(start + length);
                PassedList::Bytes(Cow::Owned(bytes.get(range).unwrap_or_default().to_vec()))
            }
            Payload::Segment(segment) => PassedList::Segment {
                segment: segment.clone(),
                offset: start,
                len: of_memory(length),
            },
        }
    }

    /// A stream of all bytes.
    pub(super) fn stream(&self) -> PayloadStream {
        PayloadStream { payload: self.clone(), read: 0 }
    }
}

/// Reads a payload from its first byte on.
#[derive(Debug)]
pub(super) struct PayloadStream {
    payload: GuestPayload,
    /// Bytes that were read.
    read: u64,
}

#[wasmtime_wasi::async_trait]
impl Pollable for PayloadStream {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl InputStream for PayloadStream {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size == 0 {
            return Ok(Bytes::new());
        }
        let failed = |error: wasmtime::Error| StreamError::LastOperationFailed(error);
        let list = self.payload.read(self.read, size.min(STEP_MAX) as u64);
        let bytes = list.into_bytes().map_err(|error| failed(error.into()))?;
        if bytes.is_empty() {
            return Err(StreamError::Closed);
        }
        self.read += bytes.len() as u64;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use cwasi_sys::segment::Segment;

    use super::*;

    /// The same bytes, held in both ways.
    fn payloads(bytes: &[u8]) -> [GuestPayload; 2] {
        let segment = Payload::Segment(Segment::copy_of(bytes).unwrap());
        [Payload::Inline(bytes.to_vec()), segment].map(GuestPayload)
    }

    #[test]
    fn reading_stops_at_the_end() {
        for payload in payloads(b"abcdef") {
            for (offset, length, bytes) in [
                (0, 6, &b"abcdef"[..]),
                (2, 2, b"cd"),
                (4, u64::MAX, b"ef"),
                (6, 1, b""),
                (u64::MAX, u64::MAX, b""),
            ] {
                let read = payload.read(offset, length).into_bytes().unwrap();
                assert_eq!(read, bytes, "{offset} {length}");
            }
        }
    }

    #[test]
    fn a_stream_gives_every_byte_once() {
        let bytes: Vec<u8> = (0..=255).cycle().take(STEP_MAX + 1000).collect();
        for payload in payloads(&bytes) {
            let (mut stream, mut read) = (payload.stream(), Vec::new());
            for size in [0, 1, 100, usize::MAX, usize::MAX] {
                read.extend(stream.read(size).unwrap());
            }
            assert!(read == bytes);
            assert!(matches!(stream.read(1), Err(StreamError::Closed)));
        }
    }
}
