//! The sender's side of a claim: writes chunks to Redis, no faster than the receiver takes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blake3::Hasher;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::super::bulk::Bulk;
use super::super::resp;
use super::super::session::RedisSession;
use super::{CHUNK_LEN, ClaimError, WINDOW, chunk_key, chunk_range, chunks, remove, stop_key};
use cwasi_modes::Payload;
use cwasi_sys::segment::SegmentError;
use cwasi_wire::network::Claim;

const SET: &str = "SET";
const RPUSH: &str = "RPUSH";
/// First and longest pause of the sender between two checks for room.
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(20);
/// Bytes kept free before a chunk, for the command that it is part of.
const HEAD_MAX: usize = 256;
/// Bytes that the commands after it take at most.
const TAIL_MAX: usize = 1024;
/// Answers to the commands of a chunk that are not waited for before the next one is sent.
const UNANSWERED_MAX: u64 = 1;

/// Sends a payload to Redis.
#[derive(Debug)]
pub struct ChunkSender {
    claim: Claim,
    session: RedisSession,
    bulk: Option<Bulk>,
    kept_ms: String,
    complete: Arc<AtomicBool>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl ChunkSender {
    pub(super) fn new(
        claim: Claim,
        session: &RedisSession,
        bulk: Bulk,
        kept: Duration,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self {
            claim,
            session: session.clone(),
            bulk: Some(bulk),
            kept_ms: kept.as_millis().to_string(),
            complete: Arc::default(),
            _turn: turn,
        }
    }

    /// The claim for the receiver.
    #[must_use]
    pub const fn claim(&self) -> &Claim {
        &self.claim
    }

    /// True from when the last chunk and the digest may be in Redis. While it is not, no receiver has the payload, nor
    /// ever will when [`Self::run`] is dropped now.
    #[must_use]
    pub fn complete(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.complete)
    }

    /// Sends `payload`, which has the announced length, no faster than the receiver takes it.
    ///
    /// # Errors
    /// When Redis or memory refuses, or the receiver wants no further chunks.
    pub async fn run(&mut self, payload: &Payload) -> Result<(), ClaimError> {
        // Closed unless it is put back: half a command could be on it.
        let Some(mut bulk) = self.bulk.take() else { return Ok(()) };
        let sent = self.send(&mut bulk, payload).await;
        if let Err(ClaimError::Network(error)) = &sent
            && matches!(error.refused_command(), Some(SET | RPUSH))
        {
            // What Redis refused is not there.
            self.complete.store(false, Ordering::Release);
        }
        sent?;
        self.session.bulk().put_back(bulk);
        Ok(())
    }

    /// Removes the chunks that were sent and not received.
    pub async fn remove(&self) {
        remove(&self.session, &self.claim).await;
    }

    async fn send(&self, bulk: &mut Bulk, payload: &Payload) -> Result<(), ClaimError> {
        let total = chunks(&self.claim);
        let mut digest = Hasher::new();
        // A chunk with its commands around it, so that it is written as it is.
        let mut buffer = vec![0; HEAD_MAX + CHUNK_LEN as usize];
        buffer.reserve_exact(TAIL_MAX);
        let mut unanswered = 0;
        for index in 0..total {
            let (offset, len) = chunk_range(&self.claim, index);
            let chunk_end = HEAD_MAX + len;
            buffer.resize(chunk_end, 0);
            read(payload, &mut buffer[HEAD_MAX..], offset)?;
            digest.update(&buffer[HEAD_MAX..]);
            let last = (index + 1 == total).then(|| digest.finalize());
            let start = self.surround(&mut buffer, index, len);
            self.announce(&mut buffer, Some(index), last.as_ref().map(blake3::Hash::as_bytes));
            if last.is_some() {
                self.complete.store(true, Ordering::Release);
            }
            bulk.send(&buffer[start..]).await?;
            unanswered += 1;
            if read_answers(bulk, &mut unanswered, UNANSWERED_MAX).await? >= WINDOW {
                read_answers(bulk, &mut unanswered, 0).await?;
                self.wait_for_room(bulk).await?;
            }
        }
        if total == 0 {
            buffer.clear();
            self.announce(&mut buffer, None, Some(digest.finalize().as_bytes()));
            self.complete.store(true, Ordering::Release);
            bulk.send(&buffer).await?;
            announce_answers(bulk).await?;
        }
        read_answers(bulk, &mut unanswered, 0).await?;
        Ok(())
    }

    /// Writes the command that stores a chunk around its `len` bytes, which begin at [`HEAD_MAX`]. Returns where the
    /// command begins.
    fn surround(&self, buffer: &mut Vec<u8>, index: u64, len: usize) -> usize {
        let name = chunk_key(&self.claim.key, index);
        let mut head = Vec::with_capacity(HEAD_MAX);
        resp::command_until(&mut head, &[b"SET", name.as_bytes()], len, 2);
        let start = HEAD_MAX - head.len();
        buffer[start..HEAD_MAX].copy_from_slice(&head);
        buffer.extend_from_slice(resp::LINE_END);
        resp::argument(buffer, b"PX");
        resp::argument(buffer, self.kept_ms.as_bytes());
        start
    }

    /// Appends the commands that announce the chunk.
    fn announce(&self, buffer: &mut Vec<u8>, index: Option<u64>, digest: Option<&[u8; 32]>) {
        let key = self.claim.key.as_bytes();
        let index = index.map(|index| index.to_string());
        let mut words: Vec<&[u8]> = vec![b"RPUSH", key];
        words.extend(index.as_ref().map(|index| index.as_bytes()));
        words.extend(digest.map(<[u8; 32]>::as_slice));
        resp::command(buffer, &words);
        // With every chunk: a first one that came late must not leave a list without an end.
        resp::command(buffer, &[b"PEXPIRE", key, self.kept_ms.as_bytes()]);
    }

    /// Waits until the receiver has taken chunks.
    async fn wait_for_room(&self, bulk: &mut Bulk) -> Result<(), ClaimError> {
        let mut poll = Vec::new();
        resp::command(&mut poll, &[b"LLEN", self.claim.key.as_bytes()]);
        resp::command(&mut poll, &[b"EXISTS", stop_key(&self.claim.key).as_bytes()]);
        let mut pause = POLL_MIN;
        // Its user has a deadline.
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(POLL_MAX);
            bulk.send(&poll).await?;
            let waiting = bulk.integer("LLEN").await?;
            if bulk.integer("EXISTS").await? != 0 {
                return Err(ClaimError::Unwanted);
            }
            if u64::try_from(waiting).unwrap_or(0) < WINDOW {
                return Ok(());
            }
        }
    }
}

/// Reads answers to the commands of chunks until only so many are outstanding. Returns how many chunks waited then.
async fn read_answers(
    bulk: &mut Bulk,
    unanswered: &mut u64,
    down_to: u64,
) -> Result<u64, ClaimError> {
    let mut waiting = 0;
    while *unanswered > down_to {
        *unanswered -= 1;
        bulk.simple(SET).await?;
        waiting = announce_answers(bulk).await?;
    }
    Ok(waiting)
}

async fn announce_answers(bulk: &mut Bulk) -> Result<u64, ClaimError> {
    let waiting = bulk.integer(RPUSH).await?;
    bulk.integer("PEXPIRE").await?;
    Ok(u64::try_from(waiting).unwrap_or(0))
}

fn read(payload: &Payload, target: &mut [u8], offset: u64) -> Result<(), SegmentError> {
    match payload {
        Payload::Segment(segment) => segment.read_exact_at(target, offset)?,
        Payload::Inline(all) => {
            let start = usize::try_from(offset).expect("an inline payload fits into memory");
            target.copy_from_slice(&all[start..start + target.len()]);
        }
    }
    Ok(())
}
