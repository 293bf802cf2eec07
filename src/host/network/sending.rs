//! A call's payload on its way to the callee. Runs in the shim daemon.
//!
//! Invariant: a callee runs nothing before it has the whole payload. So a try whose last chunk was never put is
//! certainly not accepted.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::Inner;
use super::outgoing::OutgoingCall;
use super::tries::{Retry, Try, TryOutcome};
use cwasi_modes::{CallError, Payload};
use cwasi_networked::RedisSession;
use cwasi_networked::claims::{ChunkSender, ClaimError};
use cwasi_wire::network::{self, encode};

/// A call's payload for one try.
pub(super) enum TryPayload {
    /// Travels in the message.
    Inline(Vec<u8>),
    /// Follows it in chunks.
    Chunks(Box<ChunkSender>),
}

impl TryPayload {
    /// Waits for a transfer slot if the payload is large: the accepting shim waits for its chunks from then on.
    pub(super) async fn begin(
        inner: &Inner,
        session: &RedisSession,
        call: &OutgoingCall,
    ) -> Result<Self, ClaimError> {
        if let Payload::Inline(bytes) = &call.payload {
            return Ok(Self::Inline(bytes.clone()));
        }
        let kept = call.deadline.saturating_duration_since(Instant::now());
        inner
            .claims
            .begin(session, call.payload.len(), kept)
            .await
            .map(|chunks| Self::Chunks(Box::new(chunks)))
    }

    fn announced(&mut self) -> network::Payload {
        match self {
            Self::Inline(bytes) => network::Payload::of_bytes(std::mem::take(bytes)),
            Self::Chunks(chunks) => network::Payload::of_claim(chunks.claim().clone()),
        }
    }
}

impl Try<'_> {
    pub(super) async fn run(mut self, mut sending: TryPayload) -> TryOutcome {
        let message = encode(&self.message(sending.announced()));
        match sending {
            TryPayload::Inline(_) => self.publish_and_wait(&message).await,
            TryPayload::Chunks(chunks) => self.run_with(&message, *chunks).await,
        }
    }

    /// Runs the try while its payload is sent. The callee does not run it before the payload is complete.
    async fn run_with(&mut self, message: &[u8], mut chunks: ChunkSender) -> TryOutcome {
        let (call, complete) = (self.call, chunks.complete());
        let mut end = {
            let running = self.publish_and_wait(message);
            let moving = chunks.run(&call.payload);
            tokio::pin!(running, moving);
            let mut moved = false;
            loop {
                tokio::select! {
                    end = &mut running => break end,
                    done = &mut moving, if !moved => match done {
                        // The callee sends the reason.
                        Err(ClaimError::Unwanted) => moved = true,
                        Err(error) if !complete.load(Ordering::Acquire) => {
                            let again = Retry::when(error.is_transient());
                            break TryOutcome::NotAccepted(again, call.unsent(error));
                        }
                        _ => moved = true,
                    }
                }
            }
        };
        let complete = complete.load(Ordering::Acquire);
        if let TryOutcome::Answered(Err(CallError::Broken { cause, .. })) = &end
            && !complete
        {
            let again = Retry::when(self.has_lost_redis());
            end = TryOutcome::NotAccepted(again, call.unsent(cause));
        }
        if !complete || !matches!(end, TryOutcome::Answered(Ok(_))) {
            tokio::spawn(async move { chunks.remove().await });
        }
        end
    }
}
