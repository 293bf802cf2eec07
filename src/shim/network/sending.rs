//! A call's payload on its way to the callee.
//!
//! A large one is put while the callee takes it. A callee runs nothing before it has all of it, so a try whose last
//! chunk was never put is not accepted, whatever else happened.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::Inner;
use super::order::Order;
use super::tries::{Again, End, Try};
use crate::modes::networked::Session;
use crate::modes::networked::claims::{ClaimError, Putting};
use crate::modes::{CallError, Payload};
use crate::wire::network::{self, encode};

/// A call's payload for one try.
pub(super) enum Sending {
    /// Travels in the message.
    Inline(Vec<u8>),
    /// Follows it in chunks.
    Chunks(Box<Putting>),
}

impl Sending {
    /// Waits for a turn, if the payload is large: whoever accepts the call waits for its chunks from then on.
    pub(super) async fn begin(
        inner: &Inner,
        session: &Session,
        order: &Order,
    ) -> Result<Self, ClaimError> {
        if let Payload::Inline(bytes) = &order.payload {
            return Ok(Self::Inline(bytes.clone()));
        }
        let kept = order.deadline.saturating_duration_since(Instant::now());
        inner
            .claims
            .begin(session, order.payload.len(), kept)
            .await
            .map(|putting| Self::Chunks(Box::new(putting)))
    }

    fn announced(&mut self) -> network::Payload {
        match self {
            Self::Inline(bytes) => network::Payload::of_bytes(std::mem::take(bytes)),
            Self::Chunks(putting) => network::Payload::of_claim(putting.claim().clone()),
        }
    }
}

impl Try<'_> {
    pub(super) async fn run(mut self, mut sending: Sending) -> End {
        let message = encode(&self.message(sending.announced()));
        let end = match sending {
            Sending::Inline(_) => self.publish_and_wait(&message).await,
            Sending::Chunks(putting) => self.run_with(&message, *putting).await,
        };
        self.cancel();
        end
    }

    /// Runs the try while its payload is put. Until all of that is there, the callee does not run it.
    async fn run_with(&mut self, message: &[u8], mut putting: Putting) -> End {
        let (order, complete) = (self.order, putting.complete());
        let mut end = {
            let running = self.publish_and_wait(message);
            let moving = putting.run(&order.payload);
            tokio::pin!(running, moving);
            let mut moved = false;
            loop {
                tokio::select! {
                    end = &mut running => break end,
                    done = &mut moving, if !moved => match done {
                        // The callee says why.
                        Err(ClaimError::Unwanted) => moved = true,
                        Err(error) if !complete.load(Ordering::Acquire) => {
                            let again = Again::when(error.is_transient());
                            break End::NotAccepted(again, order.unreachable(error));
                        }
                        _ => moved = true,
                    }
                }
            }
        };
        let complete = complete.load(Ordering::Acquire);
        if let End::Answered(Err(CallError::Broken { message, .. })) = &end
            && !complete
        {
            let again = Again::when(self.has_lost_redis());
            end = End::NotAccepted(again, order.unreachable(message));
        }
        if !complete || !matches!(end, End::Answered(Ok(_))) {
            tokio::spawn(async move { putting.clear_away().await });
        }
        end
    }
}
