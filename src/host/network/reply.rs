//! The answers to one incoming call: published to its caller's shim. Runs in the shim daemon.

use std::sync::Arc;
use std::time::Duration;

use cwasi_abi::Errno;
use tokio::time::{Instant, sleep, sleep_until};

use super::Inner;
use super::outgoing::CallResponse;
use super::pending::Cancellation;
use cwasi_modes::{CallError, Payload};
use cwasi_networked::claims::ClaimError;
use cwasi_networked::{Backoff, NetworkError, RedisSession};
use cwasi_wire::envelope::{CallStatus, Detail, Metadata};
use cwasi_wire::network::{self, Answer, AnswerKind, TryId, encode};

/// First pause between two attempts to publish an end while Redis refuses it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Interval at which a shim that sends a response polls the caller's shim.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Failed polls in a row before it stops.
const FAILED_POLLS_MAX: u32 = 2;

/// Why a call has no response.
pub(super) struct Failure {
    pub(super) error: CallError,
    /// It certainly did not run, and the same instance may run it later.
    pub(super) later: bool,
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { error, later: false }
    }
}

/// Result of publishing an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerDelivery {
    /// The caller's shim has it.
    Delivered,
    /// No shim listens.
    NoReceiver,
    RedisAway,
}

/// Answers one call.
pub(super) struct CallReply {
    pub(super) inner: Arc<Inner>,
    pub(super) id: TryId,
    /// Channel of the caller's shim.
    pub(super) reply_to: String,
    /// Of the caller's message.
    pub(super) version: u32,
    pub(super) instance: String,
    pub(super) deadline: Instant,
}

impl CallReply {
    /// Says that this shim has accepted the call.
    pub(super) async fn accept(&self, session: &RedisSession) {
        let none = network::Payload::default();
        self.publish(session, AnswerKind::ANSWER_ACCEPTED, CallStatus::ANSWERED, none).await;
    }

    /// Publishes the end until Redis takes it or the caller no longer waits.
    pub(super) async fn end(
        &self,
        ended: Result<CallResponse, Failure>,
        cancelled: &Cancellation<'_>,
    ) {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        while Instant::now() < self.deadline {
            let Ok(session) = self.inner.link.session(self.deadline).await else { return };
            let delivery = match &ended {
                Err(failure) => self.publish_failure(&session, failure).await,
                Ok(CallResponse { payload: Payload::Inline(bytes), metadata }) => {
                    let payload = network::Payload::of_bytes(bytes.clone());
                    self.publish_response(&session, payload, metadata).await
                }
                Ok(response) => self.publish_large_response(&session, response, cancelled).await,
            };
            if delivery != AnswerDelivery::RedisAway {
                return;
            }
            sleep(backoff.pause()).await;
        }
        // A timeout is published once: the caller may wait a little longer than this shim.
        if let (Err(failure), Ok(session)) = (&ended, self.inner.link.session_now()) {
            self.publish_failure(&session, failure).await;
        }
    }

    async fn publish_response(
        &self,
        session: &RedisSession,
        payload: network::Payload,
        metadata: &[Metadata],
    ) -> AnswerDelivery {
        let status = CallStatus::answered_with(metadata.to_vec());
        self.publish(session, AnswerKind::ANSWER_ENDED, status, payload).await
    }

    async fn publish_failure(&self, session: &RedisSession, failure: &Failure) -> AnswerDelivery {
        let (outcome, message) = (failure.error.outcome(), message_of(&failure.error));
        let kind = AnswerKind::ANSWER_ENDED;
        let mut answer = Answer::of(&self.inner.replies, self.id, kind, outcome, message);
        answer.later = failure.later;
        self.send(session, &answer).await
    }

    /// Publishes a large response and sends its chunks while the caller's shim takes them.
    async fn publish_large_response(
        &self,
        session: &RedisSession,
        response: &CallResponse,
        cancelled: &Cancellation<'_>,
    ) -> AnswerDelivery {
        let CallResponse { payload, metadata } = response;
        let kept = self.deadline.saturating_duration_since(Instant::now());
        let mut chunks = match self.inner.claims.begin(session, payload.len(), kept).await {
            Ok(chunks) => chunks,
            Err(error) => {
                tracing::warn!(%error, "a response could not be put into Redis; trying again");
                return AnswerDelivery::RedisAway;
            }
        };
        let claim = network::Payload::of_claim(chunks.claim().clone());
        let delivery = self.publish_response(session, claim, metadata).await;
        if delivery != AnswerDelivery::Delivered {
            return delivery;
        }
        let reason = tokio::select! {
            put = chunks.run(payload) => match put {
                Ok(()) => return AnswerDelivery::Delivered,
                Err(error @ ClaimError::Network(_)) => {
                    tracing::warn!(%error, "a response is not put into Redis; trying again");
                    chunks.remove().await;
                    return self.withdraw(session).await;
                }
                Err(error) => error.to_string(),
            },
            () = cancelled.wait() => "its caller gave the call up".to_owned(),
            () = self.abandoned(session) => "the caller's shim is gone".to_owned(),
            () = sleep_until(self.deadline) => "the deadline has passed".to_owned(),
        };
        tracing::debug!(reason, "a response is not put to its end");
        chunks.remove().await;
        AnswerDelivery::Delivered
    }

    /// Withdraws the announced response, so that the caller's shim takes the next one.
    async fn withdraw(&self, session: &RedisSession) -> AnswerDelivery {
        let kind = AnswerKind::ANSWER_WITHDRAWN;
        let outcome = CallStatus::of(Errno::Broken.code(), Detail::DETAIL_NONE);
        match self.publish(session, kind, outcome, network::Payload::default()).await {
            AnswerDelivery::NoReceiver => AnswerDelivery::NoReceiver,
            AnswerDelivery::Delivered | AnswerDelivery::RedisAway => AnswerDelivery::RedisAway,
        }
    }

    /// Returns when the caller's shim no longer listens.
    pub(super) async fn abandoned(&self, session: &RedisSession) {
        let mut absent = 0;
        while absent < FAILED_POLLS_MAX {
            sleep(POLL_EVERY).await;
            let listening = session.listeners(&self.reply_to).await;
            absent = if listening == Ok(0) { absent + 1 } else { 0 };
        }
    }

    pub(super) async fn refuse(&self, error: &CallError) {
        let Ok(session) = self.inner.link.session_now() else { return };
        self.refuse_for_now(&session, false, error).await;
    }

    /// Refuses the call; with `later`, the caller may retry the same instance.
    pub(super) async fn refuse_for_now(
        &self,
        session: &RedisSession,
        later: bool,
        error: &CallError,
    ) {
        let kind = AnswerKind::ANSWER_REFUSED;
        let (from, outcome) = (&self.inner.replies, error.outcome());
        let mut answer = Answer::of(from, self.id, kind, outcome, message_of(error));
        // A refusal has the same format in every version; it names the caller's.
        answer.version = self.version;
        answer.later = later;
        self.send(session, &answer).await;
    }

    async fn publish(
        &self,
        session: &RedisSession,
        kind: AnswerKind,
        outcome: CallStatus,
        payload: network::Payload,
    ) -> AnswerDelivery {
        let answer = Answer::of(&self.inner.replies, self.id, kind, outcome, payload);
        self.send(session, &answer).await
    }

    async fn send(&self, session: &RedisSession, answer: &Answer) -> AnswerDelivery {
        match session.publish(&self.reply_to, &encode(answer)).await {
            Ok(0) => {
                tracing::debug!(instance = self.instance, "the caller's shim is gone");
                AnswerDelivery::NoReceiver
            }
            Ok(_) => AnswerDelivery::Delivered,
            Err(error @ NetworkError::Command { .. }) => {
                tracing::warn!(%error, "an answer could not be sent");
                AnswerDelivery::NoReceiver
            }
            Err(_) => AnswerDelivery::RedisAway,
        }
    }
}

fn message_of(error: &CallError) -> network::Payload {
    network::Payload::of_bytes(error.wire_message().into_bytes())
}
