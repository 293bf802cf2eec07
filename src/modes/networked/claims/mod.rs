//! Claims: large payloads as chunks in Redis, each under a key that expires. Sender and receiver transfer them at the
//! same time.
//!
//! Runs in the shims of both hosts. A message of a hundred megabytes would disconnect its subscriber
//! (`client-output-buffer-limit pubsub`). So the message contains only a claim: the name of the chunks and their total
//! length. The sender appends an entry for each chunk to a list, and finally the digest of all; the receiver waits at
//! that list. So Redis holds at most [`WINDOW`] chunks and those in transfer. A chunk that is evicted, changed or
//! missing is an error: the receiver passes the payload on only after it has checked number, lengths and digest.
//!
//! | key | content |
//! |---|---|
//! | the claim's | list: an entry for each chunk that was sent and not received, then the digest |
//! | …`:<index>` | one chunk |
//! | …`:stop` | the receiver wants no further chunks |

mod receiver;
mod sender;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use receiver::ChunkReceiver;
pub use sender::ChunkSender;

use super::error::NetworkError;
use super::session::RedisSession;
use cwasi_modes::Payload;
use cwasi_sys::random::bytes16;
use cwasi_sys::segment::{Segment, SegmentError};
use cwasi_wire::network::Claim;

/// Length of a chunk in bytes.
pub const CHUNK_LEN: u32 = 1 << 19;
/// Most chunks of one payload that wait in Redis at a time.
pub const WINDOW: u64 = 8;
/// Most payloads that one shim sends at a time, and receives at a time; others wait.
const TRANSFERS_MAX: usize = 8;
/// Shortest and longest time that chunks stay in Redis without being taken.
const KEPT_MIN: Duration = Duration::from_secs(60);
const KEPT_MAX: Duration = Duration::from_secs(3600);
/// Longest wait for the next chunk, in seconds; after that the sender or Redis has lost it.
const STALL_MAX_S: &str = "5";
/// Most names of chunks that are removed for one claim: those of the largest payload there is.
const NAMES_MAX: u64 = 4096;

/// Why a payload cannot be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// Evicted, expired or removed.
    #[error("chunk {index} of {chunks} is missing: Redis dropped it (maxmemory?) or it expired")]
    Missing { index: u64, chunks: u64 },
    /// Its sender is gone, or Redis dropped the list.
    #[error("chunk {index} of {chunks} did not come within {STALL_MAX_S} s")]
    Late {
        /// Which one; their number: the digest.
        index: u64,
        chunks: u64,
    },
    /// The bytes differ from those that were sent.
    #[error("the payload was altered on its way: {what}")]
    Altered { what: &'static str },
    #[error("the receiver no longer wants the payload")]
    Unwanted,
    /// A claim that no sender of this version makes.
    #[error("claim of {length} bytes in chunks of {chunk_length} is not acceptable")]
    Malformed {
        length: u64,
        /// Announced length of a chunk.
        chunk_length: u32,
    },
}

/// Moves payloads in and out of Redis; clones share the bounds.
#[derive(Clone, Debug)]
pub struct Claims {
    sends: Arc<Semaphore>,
    /// Separate from the sends, so that sends and receives cannot wait for each other in a circle.
    receives: Arc<Semaphore>,
}

impl Default for Claims {
    fn default() -> Self {
        let bound = || Arc::new(Semaphore::new(TRANSFERS_MAX));
        Self { sends: bound(), receives: bound() }
    }
}

impl ClaimError {
    /// True when a retry may succeed.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Network(error) => error.is_transient(),
            Self::Missing { .. } | Self::Late { .. } => true,
            _ => false,
        }
    }
}

impl Claims {
    /// Prepares to send a payload of `length` bytes, whose chunks stay for `kept` (within bounds). After this, the
    /// claim can be announced.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn begin(
        &self,
        session: &RedisSession,
        length: u64,
        kept: Duration,
    ) -> Result<ChunkSender, ClaimError> {
        // Never closed.
        let turn = Arc::clone(&self.sends).acquire_owned().await.ok();
        let bulk = session.bulk().get().await?;
        let key = format!("cwasi:pay:{}", hex::encode(bytes16()));
        let claim = Claim { key, length, chunk_length: CHUNK_LEN, ..Claim::default() };
        Ok(ChunkSender::new(claim, session, bulk, kept.clamp(KEPT_MIN, KEPT_MAX), turn))
    }

    /// Receives a payload of at most `max` bytes, chunk by chunk.
    ///
    /// # Errors
    /// When the payload is not as announced; the sender is asked to stop.
    pub async fn receive(
        &self,
        session: &RedisSession,
        claim: &Claim,
        max: u64,
    ) -> Result<Payload, ClaimError> {
        let malformed =
            || ClaimError::Malformed { length: claim.length, chunk_length: claim.chunk_length };
        if claim.length > max || claim.chunk_length != CHUNK_LEN {
            return Err(malformed());
        }
        let _turn = self.receives.acquire().await.ok();
        let bulk = session.bulk().get().await?;
        let mut receiver = ChunkReceiver::new(claim, bulk);
        let segment = match receiver.run().await {
            Ok(segment) => segment,
            Err(error) => {
                self.refuse(session, claim).await;
                return Err(error);
            }
        };
        session.bulk().put_back(receiver.into_bulk());
        Ok(Payload::Segment(segment))
    }

    /// Removes the remaining chunks, and asks the sender to stop.
    pub async fn refuse(&self, session: &RedisSession, claim: &Claim) {
        let stopped = stop(session, claim).await;
        remove(session, claim).await;
        // There is memory for it now, if that was missing.
        let stopped = match stopped {
            Err(error) if error.is_refusal() => stop(session, claim).await,
            stopped => stopped,
        };
        if let Err(error) = stopped {
            tracing::debug!(claim.key, %error, "the receiver could not stop the transfer of chunks");
        }
    }
}

/// Asks the sender of the chunks to stop.
async fn stop(session: &RedisSession, claim: &Claim) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("SET");
    cmd.arg(stop_key(&claim.key)).arg(1).arg("PX").arg(KEPT_MIN.as_millis());
    session.run("SET", &cmd).await
}

async fn remove(session: &RedisSession, claim: &Claim) {
    let mut cmd = redis::cmd("UNLINK");
    cmd.arg(&claim.key);
    for index in 0..chunks(claim).min(NAMES_MAX) {
        cmd.arg(chunk_key(&claim.key, index));
    }
    if let Err(error) = session.run::<()>("UNLINK", &cmd).await {
        tracing::debug!(claim.key, %error, "chunks expire instead");
    }
}

fn chunk_key(key: &str, index: u64) -> String {
    format!("{key}:{index}")
}

fn stop_key(key: &str) -> String {
    format!("{key}:stop")
}

/// How many chunks there are.
fn chunks(claim: &Claim) -> u64 {
    claim.length.div_ceil(u64::from(CHUNK_LEN))
}

/// Offset and length of a chunk.
fn chunk_range(claim: &Claim, index: u64) -> (u64, usize) {
    let offset = index * u64::from(CHUNK_LEN);
    let len = u64::from(CHUNK_LEN).min(claim.length - offset);
    (offset, usize::try_from(len).expect("a chunk fits into memory"))
}

/// A payload of any kind as a segment or inline, by its length.
///
/// # Errors
/// When memory runs out.
pub fn shaped(bytes: Vec<u8>) -> Result<Payload, SegmentError> {
    if bytes.len() <= cwasi_wire::network::INLINE_MAX {
        return Ok(Payload::Inline(bytes));
    }
    Segment::copy_of(&bytes).map(Payload::Segment)
}
