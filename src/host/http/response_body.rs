//! A response's body: bytes, a segment that is read in chunks, so that it is never twice in memory, or chunks that a
//! task sends as they come to be.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use cwasi_sys::segment::Segment;

/// Bytes of a segment that are read at a time.
const CHUNK: u64 = 256 << 10;

#[derive(Debug)]
pub enum ResponseBody {
    Whole(Full<Bytes>),
    Segment {
        /// The segment; a leased one is given back when the body was sent.
        segment: Segment,
        /// Bytes that were read.
        offset: u64,
        /// The server's memory that it holds until then.
        _memory: OwnedSemaphorePermit,
    },
    /// Chunks until the sender ends.
    Chunks(mpsc::Receiver<Bytes>),
}

impl Default for ResponseBody {
    fn default() -> Self {
        Self::Whole(Full::default())
    }
}

impl From<Vec<u8>> for ResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Whole(Full::from(bytes))
    }
}

impl ResponseBody {
    /// A segment, and the memory that it holds until it was sent.
    pub(super) const fn of_segment(segment: Segment, memory: OwnedSemaphorePermit) -> Self {
        Self::Segment { segment, offset: 0, _memory: memory }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (segment, offset) = match self.get_mut() {
            Self::Whole(full) => {
                return Pin::new(full).poll_frame(context).map_err(|never| match never {});
            }
            Self::Segment { segment, offset, .. } => (segment, offset),
            Self::Chunks(chunks) => {
                return chunks.poll_recv(context).map(|chunk| chunk.map(|it| Ok(Frame::data(it))));
            }
        };
        let left = segment.len() - *offset;
        if left == 0 {
            return Poll::Ready(None);
        }
        let length = usize::try_from(left.min(CHUNK)).expect("a chunk fits into memory");
        let mut chunk = vec![0; length];
        // Memory of ours: it does not block.
        if let Err(error) = segment.read_exact_at(&mut chunk, *offset) {
            return Poll::Ready(Some(Err(io::Error::other(error))));
        }
        *offset += length as u64;
        Poll::Ready(Some(Ok(Frame::data(chunk.into()))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(full) => full.is_end_stream(),
            Self::Segment { segment, offset, .. } => *offset == segment.len(),
            Self::Chunks(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(full) => full.size_hint(),
            Self::Segment { segment, offset, .. } => SizeHint::with_exact(segment.len() - offset),
            Self::Chunks(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_segment_is_sent_in_pieces_that_make_it_up() {
        let bytes: Vec<u8> = (0..700_001_u32).map(|n| n.to_le_bytes()[1]).collect();
        let segment = Segment::copy_of(&bytes).unwrap();
        let memory = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&memory).try_acquire_owned().unwrap();
        let mut body = ResponseBody::of_segment(segment, permit);
        assert_eq!(body.size_hint().exact(), Some(700_001));
        let (mut sent, mut chunks) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            sent.extend_from_slice(&frame.unwrap().into_data().unwrap());
            chunks += 1;
        }
        assert!(sent == bytes && chunks == 3 && body.is_end_stream());
        assert_eq!(memory.available_permits(), 0);
        drop(body);
        assert_eq!(memory.available_permits(), 1);
    }
}
