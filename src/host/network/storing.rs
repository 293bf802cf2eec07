//! One-way messages on their way out (`emit`): the caller's shim stores them in the callee's stream. Runs in the shim
//! daemon.
//!
//! A message is acknowledged to its caller when Redis has it. A shim stores one at a time, so that it exceeds a quota
//! by one message at most.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::{Instant, sleep_until, timeout_at};

use super::calls::{PATIENCE, PAUSE_MAX, PAUSE_MIN};
use super::{BridgeCaller, Network};
use cwasi_coordinator::selection::{may_call, refusal};
use cwasi_modes::causes::{Break, Unavailable, Unreached};
use cwasi_modes::{CallError, Payload, TooLarge};
use cwasi_networked::streams::Message;
use cwasi_networked::{Backoff, NetworkError, RedisSession};
use cwasi_wire::envelope::Metadata;
use cwasi_wire::ids::{CallId, Identity};
use cwasi_wire::network::{self, Event, KEPT_VERSION, encode};
use cwasi_wire::trace_headers::TraceHeaders;

/// Largest payload of a one-way message in bytes: it stays in Redis's memory until it is handled.
pub const EVENT_MAX: u64 = 1 << 20;

impl Network {
    /// Stores a message in the stream of `caller.callee`. After it returns, the message will be handled at least
    /// once; `id` is the invocation's id in every attempt.
    ///
    /// # Errors
    /// [`CallError::Broken`]: the message may be stored. Other errors: it is not stored.
    pub async fn emit(
        &self,
        caller: &BridgeCaller,
        id: CallId,
        target: &str,
        (trace, metadata): (TraceHeaders<'_>, Vec<Metadata>),
        payload: Payload,
        deadline: Instant,
    ) -> Result<(), CallError> {
        if !self.has_redis() {
            return Err(Unavailable::NoRedis.into());
        }
        let node = &self.inner.node;
        let from = network::Caller::of(&caller.identity, &caller.workflow, &caller.instance, node);
        let event = Event {
            version: KEPT_VERSION,
            event_id: id.0.to_vec(),
            caller: Some(from).into(),
            target: target.to_owned(),
            traceparent: trace.traceparent.to_owned(),
            tracestate: trace.tracestate.to_owned(),
            group: caller.group.clone(),
            ..Event::default()
        }
        .with_metadata(metadata);
        self.store_event((&caller.identity, &caller.callee), &event, payload, deadline).await
    }

    /// Stores an event of `sender` for `callee`.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub(super) async fn store_event(
        &self,
        (sender, callee): (&Identity, &Identity),
        event: &Event,
        payload: Payload,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let target = event.target.clone();
        if payload.len() > EVENT_MAX {
            let length = payload.len();
            return Err(TooLarge::Message { target, length, limit: EVENT_MAX }.into());
        }
        let unreachable = |error: NetworkError| CallError::Unreachable {
            target: target.clone(),
            cause: Unreached::Unsent { error: error.to_string() },
        };
        let session = self.inner.link.session(deadline).await.map_err(unreachable)?;
        let payload = payload.into_vec().map_err(|error| CallError::Internal {
            message: format!("message to {target}: {error}"),
        })?;
        let envelope = encode(event);
        let message = Message { sender, callee, envelope: &envelope, payload: &payload };
        let sent = AtomicBool::new(false);
        let stored = timeout_at(deadline, self.store(&session, &message, &sent)).await;
        let is_sent = sent.into_inner();
        match stored {
            Ok(Ok(stored)) => stored,
            Ok(Err(error)) if !is_sent => Err(unreachable(error)),
            Err(_elapsed) if !is_sent => Err(CallError::Timeout { target }),
            Ok(Err(error)) => {
                let cause = Break::Unconfirmed { error: error.to_string() };
                Err(CallError::Broken { target, cause })
            }
            Err(_elapsed) => Err(CallError::Broken { target, cause: Break::Silent }),
        }
    }

    /// Stores a message when there is room for it; waits a little while Redis refuses it. `sent` says that Redis may
    /// have it.
    async fn store(
        &self,
        session: &RedisSession,
        message: &Message<'_>,
        sent: &AtomicBool,
    ) -> Result<Result<(), CallError>, NetworkError> {
        let until = Instant::now() + PATIENCE;
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let stored = self.try_store(session, message, sent).await;
            if stored.as_ref().is_err_and(NetworkError::is_refusal) {
                sent.store(false, Ordering::Relaxed);
            }
            let again = Instant::now() + backoff.pause();
            match stored {
                Err(error) if error.is_refusal() && error.is_transient() && again < until => {
                    sleep_until(again).await;
                }
                stored => return stored,
            }
        }
    }

    async fn try_store(
        &self,
        session: &RedisSession,
        message: &Message<'_>,
        sent: &AtomicBool,
    ) -> Result<Result<(), CallError>, NetworkError> {
        let _alone = self.inner.storing.lock().await;
        let Message { sender, callee, .. } = *message;
        match message.admit(session, &self.inner.limits).await? {
            Err(full) => return Ok(Err(full.into())),
            // Its instances would refuse the message, and it starts the first one.
            Ok(Some(callees)) if !may_call(sender, callee, &callees.allow) => {
                return Ok(Err(refusal(sender, callee, &callees.allow).into()));
            }
            Ok(_) => {}
        }
        sent.store(true, Ordering::Relaxed);
        message.append(session, &self.inner.limits).await.map(Ok)
    }
}
