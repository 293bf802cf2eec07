//! Claims: large payloads as chunks, each under a key that expires, put and taken at the same time.
//!
//! A message of a hundred megabytes would cut off its subscriber (`client-output-buffer-limit pubsub`), so the
//! message only says under which name its chunks come, and how many bytes they are. Whoever puts them leaves a word
//! for each in a list, and the digest of all as the last one; whoever takes them waits in that list. So Redis holds
//! [`WINDOW`] chunks and those that are on their way out, not the payload. A chunk that was evicted or changed, or
//! that does not come, is an error, never another payload: nothing is handed on before number, lengths and digest
//! are found right.
//!
//! | key | what |
//! |---|---|
//! | the claim's | list: a word for each chunk that was put and not taken, then the digest |
//! | …`:<index>` | one chunk |
//! | …`:stop` | nobody wants the rest |

mod putting;
mod taking;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

pub use putting::Putting;
use taking::Taking;

use super::error::NetworkError;
use super::session::Session;
use crate::modes::Payload;
use crate::sys::random::bytes16;
use crate::sys::segment::{Segment, SegmentError};
use crate::wire::network::Claim;

/// Length of a chunk in bytes.
pub const CHUNK_LEN: u32 = 1 << 19;
/// Chunks of one payload that lie in Redis at a time and that nobody has taken yet.
pub const WINDOW: u64 = 8;
/// Payloads that one shim puts at a time, and takes at a time; others wait.
const TRANSFERS_MAX: usize = 8;
/// Shortest and longest time that chunks stay when nobody takes them.
const KEPT_MIN: Duration = Duration::from_secs(60);
const KEPT_MAX: Duration = Duration::from_secs(3600);
/// Longest wait for the next chunk, in seconds: whoever puts them, or Redis, has lost it.
const STALL_MAX_S: &str = "5";
/// Most names of chunks that are removed for one claim: those of the largest payload there is.
const NAMES_MAX: u64 = 4096;

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
    /// Its sender is gone, or Redis dropped the list.
    #[error("chunk {index} of {chunks} did not come within {STALL_MAX_S} s")]
    Late {
        /// Which one; their number: the digest.
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
    /// Whoever takes it has said so.
    #[error("nobody wants the payload any more")]
    Unwanted,
    /// A claim that this build does not make.
    #[error("claim of {length} bytes in chunks of {chunk_length} is not acceptable")]
    Malformed {
        /// Announced length.
        length: u64,
        /// Announced length of a chunk.
        chunk_length: u32,
    },
}

/// Moves payloads in and out of Redis; clones share the bounds.
#[derive(Clone, Debug)]
pub struct Claims {
    puts: Arc<Semaphore>,
    /// Apart from the puts, so that neither side waits for one of the other that waits for it.
    takes: Arc<Semaphore>,
}

impl Default for Claims {
    fn default() -> Self {
        let bound = || Arc::new(Semaphore::new(TRANSFERS_MAX));
        Self { puts: bound(), takes: bound() }
    }
}

impl ClaimError {
    /// True when the same may succeed a little later.
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
    /// Prepares to put a payload of `length` bytes, whose chunks stay for `kept` (within bounds): after this,
    /// they can be announced.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn begin(
        &self,
        session: &Session,
        length: u64,
        kept: Duration,
    ) -> Result<Putting, ClaimError> {
        // Never closed.
        let turn = Arc::clone(&self.puts).acquire_owned().await.ok();
        let bulk = session.bulk().get().await?;
        let key = format!("cwasi:pay:{}", hex::encode(bytes16()));
        let claim = Claim { key, length, chunk_length: CHUNK_LEN, ..Claim::default() };
        Ok(Putting::new(claim, session, bulk, kept.clamp(KEPT_MIN, KEPT_MAX), turn))
    }

    /// Takes a payload of at most `max` bytes, chunk by chunk as they come.
    ///
    /// # Errors
    /// When anything about it is not as announced; its sender is told to stop.
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
        let _turn = self.takes.acquire().await.ok();
        let bulk = session.bulk().get().await?;
        let mut taking = Taking::new(claim, bulk);
        let segment = match taking.run().await {
            Ok(segment) => segment,
            Err(error) => {
                self.refuse(session, claim).await;
                return Err(error);
            }
        };
        session.bulk().put_back(taking.into_bulk());
        Ok(Payload::Segment(segment))
    }

    /// Removes chunks that nobody needs any more, and tells whoever still puts them.
    pub async fn refuse(&self, session: &Session, claim: &Claim) {
        let stopped = stop(session, claim).await;
        remove(session, claim).await;
        // There is memory for it now, if that was missing.
        let stopped = match stopped {
            Err(error) if error.is_refusal() => stop(session, claim).await,
            stopped => stopped,
        };
        if let Err(error) = stopped {
            tracing::debug!(claim.key, %error, "chunks that nobody wants are put");
        }
    }
}

/// Tells whoever puts the chunks that nobody wants them.
async fn stop(session: &Session, claim: &Claim) -> Result<(), NetworkError> {
    let mut cmd = redis::cmd("SET");
    cmd.arg(stop_key(&claim.key)).arg(1).arg("PX").arg(KEPT_MIN.as_millis());
    session.run("SET", &cmd).await
}

async fn remove(session: &Session, claim: &Claim) {
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
fn place(claim: &Claim, index: u64) -> (u64, usize) {
    let offset = index * u64::from(CHUNK_LEN);
    let len = u64::from(CHUNK_LEN).min(claim.length - offset);
    (offset, usize::try_from(len).expect("a chunk fits into memory"))
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
