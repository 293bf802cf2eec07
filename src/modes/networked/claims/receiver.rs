//! The receiver's side of a claim: reads chunks from Redis as they come, and finally the digest.

use blake3::Hasher;

use super::super::bulk::Bulk;
use super::super::resp;
use super::{ClaimError, STALL_MAX_S, chunk_key, chunk_range, chunks};
use cwasi_sys::segment::{Segment, SegmentError, UnsealedSegment};
use cwasi_wire::network::Claim;

/// Chunks that are requested ahead of the current one.
const AHEAD: u64 = 4;

/// Receives a payload from Redis.
pub(super) struct ChunkReceiver<'a> {
    claim: &'a Claim,
    bulk: Bulk,
    /// Chunks that were requested; one more when the digest was.
    asked: u64,
    commands: Vec<u8>,
}

impl<'a> ChunkReceiver<'a> {
    pub(super) const fn new(claim: &'a Claim, bulk: Bulk) -> Self {
        Self { claim, bulk, asked: 0, commands: Vec::new() }
    }

    /// The connection, once all answers have been read.
    pub(super) fn into_bulk(self) -> Bulk {
        self.bulk
    }

    pub(super) async fn run(&mut self) -> Result<Segment, ClaimError> {
        let total = chunks(self.claim);
        self.ask(AHEAD).await?;
        let mut draft = UnsealedSegment::new(self.claim.length)?;
        let mut digest = Hasher::new();
        for index in 0..total {
            self.ask(index + 1 + AHEAD).await?;
            if self.word(index).await? != index.to_string().as_bytes() {
                return Err(ClaimError::Missing { index, chunks: total });
            }
            self.chunk(index, |bytes, offset| {
                digest.update(bytes);
                draft.write_at(bytes, offset)
            })
            .await?;
        }
        if self.word(total).await? != digest.finalize().as_bytes().as_slice() {
            return Err(ClaimError::Altered { what: "its digest differs" });
        }
        Ok(draft.seal()?)
    }

    /// Requests the first `count` chunks and, after the last one, the digest, unless they were requested before.
    async fn ask(&mut self, count: u64) -> Result<(), ClaimError> {
        let total = chunks(self.claim);
        self.commands.clear();
        let key = self.claim.key.as_bytes();
        for index in self.asked..count.min(total + 1) {
            resp::command(&mut self.commands, &[b"BLPOP", key, STALL_MAX_S.as_bytes()]);
            if index < total {
                let name = chunk_key(&self.claim.key, index);
                resp::command(&mut self.commands, &[b"GETDEL", name.as_bytes()]);
            }
            self.asked = index + 1;
        }
        if !self.commands.is_empty() {
            self.bulk.send(&self.commands).await?;
        }
        Ok(())
    }

    /// The list's entry for a chunk, or the digest.
    async fn word(&mut self, index: u64) -> Result<Vec<u8>, ClaimError> {
        let late = ClaimError::Late { index, chunks: chunks(self.claim) };
        self.bulk.popped("BLPOP").await?.ok_or(late)
    }

    /// Receives a chunk, as it comes, with each part's offset in the payload.
    async fn chunk(
        &mut self,
        index: u64,
        mut took: impl FnMut(&[u8], u64) -> Result<(), SegmentError>,
    ) -> Result<(), ClaimError> {
        let (mut offset, len) = chunk_range(self.claim, index);
        let missing = ClaimError::Missing { index, chunks: chunks(self.claim) };
        let mut left = self.bulk.value("GETDEL").await?.ok_or(missing)?;
        if left != len {
            return Err(ClaimError::Altered { what: "a chunk has another length" });
        }
        while left > 0 {
            let part = self.bulk.part(left).await?;
            took(part, offset)?;
            offset += part.len() as u64;
            left -= part.len();
        }
        Ok(self.bulk.value_end().await?)
    }
}
