//! Claims: large payloads as chunks of one hash that expires.
//!
//! A message of a hundred megabytes would cut off its subscriber (`client-output-buffer-limit pubsub`), so
//! the chunks lie in Redis and the message carries where, how many bytes, and their digest. Whoever takes
//! them checks all three: a chunk that was evicted or changed is an error, never another payload.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use super::session::{NetworkError, Session};
use crate::modes::Payload;
use crate::sys::random::bytes16;
use crate::sys::segment::{Draft, Segment, SegmentError};
use crate::wire::network::Claim;

/// Length of a chunk in bytes.
pub const CHUNK_LEN: u32 = 1 << 20;
/// Chunks of one payload that are under way at a time.
const WINDOW: usize = 4;
/// Payloads that one shim moves at a time; others wait.
const TRANSFERS_MAX: usize = 8;
/// Shortest and longest time that chunks stay when nobody takes them.
const KEPT_MIN: Duration = Duration::from_secs(60);
const KEPT_MAX: Duration = Duration::from_secs(3600);

/// Why a payload cannot be put or taken.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Redis.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Memory.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// Evicted, expired or removed.
    #[error("chunk {index} of {chunks} is missing: Redis dropped it (maxmemory?) or it expired")]
    Missing {
        /// Which one.
        index: u64,
        /// Of how many.
        chunks: u64,
    },
    /// Other bytes than were put.
    #[error("the payload was altered on its way: {what}")]
    Altered {
        /// Length or digest.
        what: &'static str,
    },
    /// A claim that this build does not make.
    #[error("claim of {length} bytes in chunks of {chunk_length} is not acceptable")]
    Malformed {
        /// Announced length.
        length: u64,
        /// Announced length of a chunk.
        chunk_length: u32,
    },
}

/// Moves payloads in and out of Redis; clones share the bound.
#[derive(Clone, Debug)]
pub struct Claims {
    transfers: Arc<Semaphore>,
}

impl Default for Claims {
    fn default() -> Self {
        Self { transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)) }
    }
}

impl Claims {
    async fn turn(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        // Never closed.
        self.transfers.acquire().await.ok()
    }

    /// Puts a payload there for `kept` (within bounds), chunk by chunk.
    ///
    /// # Errors
    /// When Redis or memory refuses; what was put is removed or expires.
    pub async fn put(
        &self,
        session: &Session,
        payload: &Payload,
        kept: Duration,
    ) -> Result<Claim, ClaimError> {
        let _turn = self.turn().await;
        let key = format!("cwasi:pay:{}", hex::encode(bytes16()));
        let kept_ms = kept.clamp(KEPT_MIN, KEPT_MAX).as_millis();
        let length = payload.len();
        let mut digest = Sha256::new();
        let chunks = stream::iter(ranges(length, CHUNK_LEN)).map(|range| {
            let read = read(payload, range.offset, range.len);
            if let Ok(bytes) = &read {
                digest.update(bytes);
            }
            put_chunk(session, &key, range.index, read, kept_ms)
        });
        if let Err(error) = chunks.buffered(WINDOW).try_collect::<()>().await {
            self.remove(session, &key).await;
            return Err(error);
        }
        Ok(Claim {
            key,
            length,
            chunk_length: CHUNK_LEN,
            sha256: digest.finalize().to_vec(),
            ..Claim::default()
        })
    }

    /// Takes a payload of at most `max` bytes and removes it.
    ///
    /// # Errors
    /// When anything about it is not as announced.
    pub async fn take(
        &self,
        session: &Session,
        claim: &Claim,
        max: u64,
    ) -> Result<Payload, ClaimError> {
        let malformed =
            || ClaimError::Malformed { length: claim.length, chunk_length: claim.chunk_length };
        if claim.length > max || claim.chunk_length != CHUNK_LEN {
            return Err(malformed());
        }
        let _turn = self.turn().await;
        let mut draft = Draft::new(claim.length)?;
        let mut digest = Sha256::new();
        let total = claim.length.div_ceil(u64::from(CHUNK_LEN));
        let mut chunks = stream::iter(ranges(claim.length, claim.chunk_length))
            .map(|range| async move {
                let bytes = take_chunk(session, &claim.key, range.index).await?;
                let missing = ClaimError::Missing { index: range.index, chunks: total };
                Ok::<_, ClaimError>((range, bytes.ok_or(missing)?))
            })
            .buffered(WINDOW);
        while let Some((range, bytes)) = chunks.try_next().await? {
            if bytes.len() != range.len {
                return Err(ClaimError::Altered { what: "a chunk has another length" });
            }
            digest.update(&bytes);
            draft.write_at(&bytes, range.offset)?;
        }
        drop(chunks);
        if digest.finalize().as_slice() != claim.sha256 {
            return Err(ClaimError::Altered { what: "its sha256 differs" });
        }
        self.remove(session, &claim.key).await;
        Ok(Payload::Segment(draft.seal()?))
    }

    /// Removes chunks that nobody needs any more.
    pub async fn remove(&self, session: &Session, key: &str) {
        let mut cmd = redis::cmd("UNLINK");
        cmd.arg(key);
        if let Err(error) = session.run::<()>("UNLINK", &cmd).await {
            tracing::debug!(key, %error, "chunks expire instead");
        }
    }
}

/// One chunk's place in its payload.
#[derive(Clone, Copy, Debug)]
struct Range {
    index: u64,
    offset: u64,
    len: usize,
}

fn ranges(length: u64, chunk_length: u32) -> impl Iterator<Item = Range> {
    let step = u64::from(chunk_length);
    (0..length.div_ceil(step)).map(move |index| {
        let offset = index * step;
        let len = step.min(length - offset);
        Range { index, offset, len: usize::try_from(len).expect("a chunk fits into memory") }
    })
}

fn read(payload: &Payload, offset: u64, len: usize) -> Result<Vec<u8>, SegmentError> {
    let mut bytes = vec![0; len];
    match payload {
        Payload::Segment(segment) => segment.read_exact_at(&mut bytes, offset)?,
        Payload::Inline(all) => {
            let start = usize::try_from(offset).expect("an inline payload fits into memory");
            bytes.copy_from_slice(&all[start..start + len]);
        }
    }
    Ok(bytes)
}

async fn put_chunk(
    session: &Session,
    key: &str,
    index: u64,
    bytes: Result<Vec<u8>, SegmentError>,
    kept_ms: u128,
) -> Result<(), ClaimError> {
    let kept_ms = u64::try_from(kept_ms).unwrap_or(u64::MAX);
    let mut pipe = redis::pipe();
    pipe.cmd("HSET").arg(key).arg(index).arg(bytes?).ignore();
    // With every chunk: a first one that came late must not leave a hash without an end.
    pipe.cmd("PEXPIRE").arg(key).arg(kept_ms).ignore();
    let mut connection = session.bulk();
    pipe.query_async(&mut connection)
        .await
        .map_err(|error| ClaimError::Network(NetworkError::of("HSET")(error)))
}

async fn take_chunk(
    session: &Session,
    key: &str,
    index: u64,
) -> Result<Option<Vec<u8>>, ClaimError> {
    let mut connection = session.bulk();
    let mut cmd = redis::cmd("HGET");
    cmd.arg(key).arg(index);
    cmd.query_async(&mut connection)
        .await
        .map_err(|error| ClaimError::Network(NetworkError::of("HGET")(error)))
}

/// A payload of any kind as a segment or inline, by its length.
///
/// # Errors
/// When memory runs out.
pub fn shaped(bytes: Vec<u8>) -> Result<Payload, SegmentError> {
    if bytes.len() <= crate::wire::network::INLINE_MAX {
        return Ok(Payload::Inline(bytes));
    }
    Segment::copy_of(&bytes).map(Payload::Segment)
}
