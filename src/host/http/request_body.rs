//! A request's body becomes a payload: up to [`INLINE_MAX`] bytes in memory, more in a segment that is filled as they
//! arrive, so that a body is never twice in memory.
//!
//! Memory is taken for bytes that have arrived, not for bytes that a client announces.

use std::sync::Arc;
use std::time::Duration;

use cwasi_abi::INLINE_MAX;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body, Bytes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use cwasi_modes::Payload;
use cwasi_sys::segment::{SegmentError, UnsealedSegment};

/// Bytes that one permit of [`BodyMemory`] stands for.
const PERMIT_BYTES: u64 = 64 << 10;
/// First length of a segment in bytes; it grows as the body does.
const FIRST_SEGMENT: u64 = 2 << 20;

/// Why a body is no payload.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// Longer than the function takes.
    #[error(
        "the body is larger than {limit} bytes, the limit of the function; raise cwasi.max-payload or send less"
    )]
    TooLarge {
        /// The function's limit.
        limit: u64,
    },
    /// It does not come.
    #[error("the body did not arrive in time")]
    Slow,
    /// The client is gone, or does not speak HTTP.
    #[error("the body cannot be read: {0}")]
    Broken(String),
    /// Too many large bodies at a time.
    #[error("other requests' bodies fill the memory that there is for them; try again")]
    NoMemory,
    /// The host has no memory.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

impl BodyError {
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
            Self::NoMemory => StatusCode::TOO_MANY_REQUESTS,
            Self::Segment(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// The memory for all large bodies of a server.
#[derive(Clone, Debug)]
pub(super) struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    pub(super) fn new(bytes: u64) -> Self {
        let permits = usize::try_from(bytes / PERMIT_BYTES).unwrap_or(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))))
    }

    /// Memory for so many bytes, if there is some.
    pub(super) fn take(&self, bytes: u64) -> Result<OwnedSemaphorePermit, BodyError> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.0).try_acquire_many_owned(permits).map_err(|_none| BodyError::NoMemory)
    }
}

/// Bounds of one body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    /// Length in bytes.
    pub bytes: u64,
    /// Longest pause.
    pub stall: Duration,
    /// End of the request.
    pub deadline: Instant,
}

/// A payload, and the memory that it has.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub payload: Payload,
    /// Given back when it is dropped.
    pub memory: Option<OwnedSemaphorePermit>,
}

/// Receives a whole body.
///
/// # Errors
/// When it is too long, too slow, or too much with others.
pub(super) async fn receive<B>(
    mut body: B,
    limits: BodyLimits,
    memory: &BodyMemory,
) -> Result<ReceivedBody, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let hint = body.size_hint();
    if hint.lower() > limits.bytes {
        return Err(BodyError::TooLarge { limit: limits.bytes });
    }
    let mut content = Content::Small(Vec::new());
    loop {
        let until = limits.deadline.min(Instant::now() + limits.stall);
        let frame = timeout_at(until, body.frame()).await.map_err(|_elapsed| BodyError::Slow)?;
        let Some(frame) = frame else { return content.end() };
        let frame = frame.map_err(|error| BodyError::Broken(error.to_string()))?;
        // Trailers have no place in a payload.
        let Ok(bytes) = frame.into_data() else { continue };
        content.push(bytes, hint.upper(), limits.bytes, memory)?;
    }
}

enum Content {
    Small(Vec<u8>),
    Large(LargeBody),
}

struct LargeBody {
    segment: UnsealedSegment,
    capacity: u64,
    length: u64,
    permit: OwnedSemaphorePermit,
}

impl Content {
    fn push(
        &mut self,
        bytes: Bytes,
        announced: Option<u64>,
        limit: u64,
        memory: &BodyMemory,
    ) -> Result<(), BodyError> {
        let before = match self {
            Self::Small(begun) => begun.len() as u64,
            Self::Large(large) => large.length,
        };
        let total = before + bytes.len() as u64;
        if total > limit {
            return Err(BodyError::TooLarge { limit });
        }
        if let Self::Small(begun) = self {
            if total <= INLINE_MAX as u64 {
                begun.extend_from_slice(&bytes);
                return Ok(());
            }
            let capacity = announced.unwrap_or(limit).min(FIRST_SEGMENT).max(total);
            let permit = memory.take(capacity)?;
            let segment = UnsealedSegment::new(capacity)?;
            let mut large = LargeBody { segment, capacity, length: 0, permit };
            large.push(begun, limit, memory)?;
            *self = Self::Large(large);
        }
        match self {
            Self::Large(large) => large.push(&bytes, announced.unwrap_or(limit), memory),
            Self::Small(_) => Ok(()),
        }
    }

    fn end(self) -> Result<ReceivedBody, BodyError> {
        match self {
            Self::Small(bytes) => {
                Ok(ReceivedBody { payload: Payload::Inline(bytes), memory: None })
            }
            Self::Large(LargeBody { mut segment, capacity, length, permit }) => {
                if length < capacity {
                    segment.truncate(length)?;
                }
                let payload = Payload::Segment(segment.seal()?);
                Ok(ReceivedBody { payload, memory: Some(permit) })
            }
        }
    }
}

impl LargeBody {
    /// Appends bytes; the segment grows to twice its length, at most to `most`.
    fn push(&mut self, bytes: &[u8], most: u64, memory: &BodyMemory) -> Result<(), BodyError> {
        let total = self.length + bytes.len() as u64;
        if total > self.capacity {
            let capacity = (self.capacity * 2).min(most).max(total);
            self.permit.merge(memory.take(capacity - self.capacity)?);
            self.segment.grow(capacity)?;
            self.capacity = capacity;
        }
        self.segment.write_at(bytes, self.length)?;
        self.length = total;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    fn limits(bytes: u64) -> BodyLimits {
        let minute = Duration::from_secs(60);
        BodyLimits { bytes, stall: minute, deadline: Instant::now() + minute }
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect()
    }

    /// A body of unknown length, in chunks.
    fn chunked(
        bytes: &[u8],
        chunk: usize,
    ) -> StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>>> {
        let chunks: Vec<_> = bytes.chunks(chunk).map(Bytes::copy_from_slice).collect();
        StreamBody::new(futures_util::stream::iter(chunks.into_iter().map(|p| Ok(Frame::data(p)))))
    }

    #[tokio::test]
    async fn bodies_of_every_length_arrive_inmemory_of_their_kind() {
        let memory = BodyMemory::new(64 << 20);
        for length in [0, 1, INLINE_MAX, INLINE_MAX + 1, 3 << 20, (5 << 20) + 7] {
            let sent = bytes(length);
            let known = receive(Full::from(sent.clone()), limits(8 << 20), &memory).await.unwrap();
            let unknown = receive(chunked(&sent, 99_991), limits(8 << 20), &memory).await.unwrap();
            for received in [known, unknown] {
                let is_large = matches!(received.payload, Payload::Segment(_));
                assert_eq!(is_large, length > INLINE_MAX, "{length}");
                assert!(received.payload.into_vec().unwrap() == sent, "{length}");
            }
        }
        assert_eq!(memory.0.available_permits(), 1024, "given back");
    }

    #[tokio::test]
    async fn a_body_above_the_limit_is_refused() {
        let memory = BodyMemory::new(64 << 20);
        let sent = bytes(100_001);
        for refused in [
            receive(Full::from(sent.clone()), limits(100_000), &memory).await,
            receive(chunked(&sent, 1000), limits(100_000), &memory).await,
        ] {
            assert!(matches!(refused, Err(BodyError::TooLarge { limit: 100_000 })), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn bodies_share_boundedmemory() {
        let memory = BodyMemory::new(3 << 20);
        let sent = bytes(2 << 20);
        let first = receive(Full::from(sent.clone()), limits(8 << 20), &memory).await.unwrap();
        let second = receive(Full::from(sent.clone()), limits(8 << 20), &memory).await;
        assert!(matches!(second, Err(BodyError::NoMemory)), "{second:?}");
        drop(first);
        assert!(receive(Full::from(sent), limits(8 << 20), &memory).await.is_ok());
    }

    #[tokio::test]
    async fn a_client_that_stops_is_not_waited_for() {
        let memory = BodyMemory::new(3 << 20);
        let stream = futures_util::stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
        let limits = BodyLimits { stall: Duration::from_millis(20), ..limits(8) };
        let slow = receive(StreamBody::new(stream), limits, &memory).await;
        assert!(matches!(slow, Err(BodyError::Slow)), "{slow:?}");
    }
}
