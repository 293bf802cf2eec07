//! Runs one network call in one of this daemon's instances. Runs in the shim daemon.
//!
//! The call is decided ([`RedisSession::decide`]) before it runs, so a given-up or duplicate call is dropped.
//! Afterwards its end is published, as long as its caller waits. A cancelled call frees its transfer slot; a running
//! function continues.

use std::sync::Arc;
use std::time::Duration;

use cwasi_abi::Errno;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::instance::Connection;
use super::order::Answered;
use super::{Inner, Network};
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::selection::{may_call, refusal};
use cwasi_modes::causes::Unreached;
use cwasi_modes::{CallError, Overload, Payload};
use cwasi_networked::claims::ClaimError;
use cwasi_networked::session::Decision;
use cwasi_networked::{Backoff, NetworkError, RedisSession};
use cwasi_sys::clock::monotonic_ns;
use cwasi_wire::envelope::{CallStatus, Detail, Metadata, Request};
use cwasi_wire::ids::CallId;
use cwasi_wire::network::{
    self, Answer, AnswerKind, Call, Claim, TryId, check_version, encode, parse,
};
use cwasi_wire::remaining;
use cwasi_wire::trace::TraceContext;

/// First pause between two attempts to publish an end while Redis refuses it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Deadline of a call without one.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Interval at which a shim that sends a response checks the caller's shim.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Failed checks in a row before it stops.
const LOOKS_MAX: u32 = 2;

impl Network {
    /// Takes a message from an instance's channel.
    pub(super) fn deliver(&self, record: &Record, message: &[u8], arrived: Instant) {
        let call: Call = match parse(message) {
            Ok(call) => call,
            Err(error) => {
                tracing::warn!(instance = record.instance, %error, "unreadable call");
                return;
            }
        };
        let Ok(id) = TryId::from_field(&call.try_id) else {
            tracing::warn!(instance = record.instance, "call without a try id");
            return;
        };
        let wait = call.remaining().unwrap_or(FOREVER).min(FOREVER);
        let delivery = Delivery {
            inner: Arc::clone(&self.inner),
            record: record.clone(),
            id,
            deadline: arrived + wait,
            call,
        };
        tokio::spawn(delivery.run());
    }
}

struct Delivery {
    inner: Arc<Inner>,
    record: Record,
    id: TryId,
    deadline: Instant,
    call: Call,
}

impl Delivery {
    async fn run(mut self) {
        let deliveries = Arc::clone(&self.inner.deliveries);
        let Ok(_permit) = deliveries.try_acquire() else {
            let node = self.inner.node.clone();
            return self.refuse(&Overload::Node { node }.into()).await;
        };
        let (call, connection) = match self.admit() {
            Ok(admitted) => admitted,
            Err(error) => return self.refuse(&error).await,
        };
        let Ok(session) = self.inner.link.session_now() else { return };
        match session.decide(self.id, &self.inner.replies).await {
            Ok(Decision::Ours) => tracing::debug!(%call, "call accepted"),
            Ok(Decision::Theirs(_)) => {
                tracing::debug!(%call, "given up by its caller");
                return;
            }
            // Undecided, so it does not run.
            Err(error) if error.is_refusal() => {
                let refusal = self.unreachable(&error);
                return self.refuse_for_now(&session, error.is_transient(), &refusal).await;
            }
            Err(error) => {
                // It may be decided, so it must not run.
                tracing::warn!(%call, %error, "call dropped");
                return;
            }
        }
        let cancelled = Cancellable::new(&self.inner, self.id);
        let payload = self.call.payload.take().unwrap_or_default();
        // The caller gets the acceptance before the end: both travel on one connection, in order.
        let accepted = network::Payload::default();
        let telling =
            self.publish(&session, AnswerKind::ANSWER_ACCEPTED, CallStatus::ANSWERED, accepted);
        let running = self.execute(&session, &connection, payload, &cancelled);
        let running = timeout_at(self.deadline, running);
        let (_told, ended) = tokio::join!(telling, running);
        let ended = ended.unwrap_or_else(|_elapsed| {
            Err(CallError::Timeout { target: self.call.target.clone() }.into())
        });
        self.end(ended, &cancelled).await;
    }

    /// This node cannot take the call.
    fn unreachable(&self, error: &dyn std::error::Error) -> CallError {
        let (target, node) = (self.call.target.clone(), self.inner.node.clone());
        CallError::Unreachable { target, cause: Unreached::Node { node, error: error.to_string() } }
    }

    /// Checks the call before it is accepted, and connects to the instance.
    fn admit(&self) -> Result<(CallId, Connection), CallError> {
        check_version(&self.call).map_err(|error| self.unreachable(&error))?;
        let id = self.call.id().map_err(|error| self.unreachable(&error))?;
        let caller = self.call.caller.get_or_default().identity();
        if !may_call(&caller, &self.record.identity, &self.record.allow) {
            return Err(refusal(&caller, &self.record.identity, &self.record.allow).into());
        }
        let length = self.call.payload.get_or_default().length();
        if length > self.record.max_payload {
            let what = format!("payload for {}", self.call.target);
            return Err(CallError::too_large(&what, length, self.record.max_payload));
        }
        let caller = self.call.caller.get_or_default();
        let connection = Connection::open(&self.record, caller, &self.call.target)?;
        Ok((id, connection))
    }

    /// Runs the call in the instance.
    async fn execute(
        &self,
        session: &RedisSession,
        connection: &Connection,
        payload: network::Payload,
        cancelled: &Cancellable,
    ) -> Result<Answered, Failure> {
        let target = self.call.target.clone();
        let payload = match payload.claim.into_option() {
            None => Payload::Inline(payload.inline),
            Some(claim) => self.take(session, &claim, cancelled).await?,
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        let request = Request {
            call_id: self.call.call_id.clone(),
            target: target.clone(),
            remaining_us: remaining::encode(Some(left)),
            traceparent: self.call.traceparent.clone(),
            tracestate: self.call.tracestate.clone(),
            sent_mono_ns: arrival_of(&self.call.traceparent),
            attempt: self.call.attempt,
            run: self.call.run.clone(),
            join: self.call.join.clone(),
            metadata: self.call.metadata.clone(),
            ..Request::default()
        };
        Ok(connection.run(&self.record, &request, payload).await?)
    }

    /// Takes the call's payload, as long as its caller may still send it.
    async fn take(
        &self,
        session: &RedisSession,
        claim: &Claim,
        cancelled: &Cancellable,
    ) -> Result<Payload, Failure> {
        let not_run = |reason: &dyn std::fmt::Display, later| {
            let cause = Unreached::Payload { error: reason.to_string() };
            let error = CallError::Unreachable { target: self.call.target.clone(), cause };
            Failure { error, later }
        };
        let reason = tokio::select! {
            taken = self.inner.claims.take(session, claim, self.record.max_payload) => {
                return taken.map_err(|error| not_run(&error, error.is_transient()));
            }
            () = cancelled.wait() => "its caller gave the call up",
            () = self.abandoned(session) => "its caller's shim is gone",
        };
        tracing::debug!(call = %self.call, reason, "stopped taking a request");
        self.inner.claims.refuse(session, claim).await;
        Err(not_run(&reason, false))
    }

    /// Publishes the end until Redis takes it or the caller no longer waits.
    async fn end(&self, ended: Result<Answered, Failure>, cancelled: &Cancellable) {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        while Instant::now() < self.deadline {
            let Ok(session) = self.inner.link.session(self.deadline).await else { return };
            let told = match &ended {
                Err(failure) => self.failed(&session, failure).await,
                Ok(Answered { payload: Payload::Inline(bytes), metadata }) => {
                    let payload = network::Payload::of_bytes(bytes.clone());
                    self.ended(&session, payload, metadata).await
                }
                Ok(answered) => self.ended_with(&session, answered, cancelled).await,
            };
            if told != AnswerDelivery::RedisAway {
                return;
            }
            sleep(backoff.pause()).await;
        }
        // A timeout is published once: the caller may wait a little longer than this shim.
        if let (Err(failure), Ok(session)) = (&ended, self.inner.link.session_now()) {
            self.failed(&session, failure).await;
        }
    }

    async fn ended(
        &self,
        session: &RedisSession,
        payload: network::Payload,
        metadata: &[Metadata],
    ) -> AnswerDelivery {
        let status = CallStatus::answered_with(metadata.to_vec());
        self.publish(session, AnswerKind::ANSWER_ENDED, status, payload).await
    }

    async fn failed(&self, session: &RedisSession, failure: &Failure) -> AnswerDelivery {
        let (outcome, message) = (failure.error.outcome(), message_of(&failure.error));
        let kind = AnswerKind::ANSWER_ENDED;
        let mut answer = Answer::of(&self.inner.replies, self.id, kind, outcome, message);
        answer.later = failure.later;
        self.send(session, &answer).await
    }

    /// Publishes a large response and sends its chunks while the caller's shim takes them.
    async fn ended_with(
        &self,
        session: &RedisSession,
        answered: &Answered,
        cancelled: &Cancellable,
    ) -> AnswerDelivery {
        let Answered { payload, metadata } = answered;
        let kept = self.deadline.saturating_duration_since(Instant::now());
        let mut chunks = match self.inner.claims.begin(session, payload.len(), kept).await {
            Ok(chunks) => chunks,
            Err(error) => {
                tracing::warn!(%error, "a response could not be put into Redis; trying again");
                return AnswerDelivery::RedisAway;
            }
        };
        let claim = network::Payload::of_claim(chunks.claim().clone());
        let told = self.ended(session, claim, metadata).await;
        if told != AnswerDelivery::Delivered {
            return told;
        }
        let reason = tokio::select! {
            put = chunks.run(payload) => match put {
                Ok(()) => return AnswerDelivery::Delivered,
                Err(error @ ClaimError::Network(_)) => {
                    tracing::warn!(%error, "a response is not put into Redis; trying again");
                    chunks.clear_away().await;
                    return self.withdraw(session).await;
                }
                Err(error) => error.to_string(),
            },
            () = cancelled.wait() => "its caller gave the call up".to_owned(),
            () = self.abandoned(session) => "the caller's shim is gone".to_owned(),
            () = sleep_until(self.deadline) => "the deadline has passed".to_owned(),
        };
        tracing::debug!(reason, "a response is not put to its end");
        chunks.clear_away().await;
        AnswerDelivery::Delivered
    }

    /// Tells the caller's shim that the announced response does not come, so that it takes the next one.
    async fn withdraw(&self, session: &RedisSession) -> AnswerDelivery {
        let kind = AnswerKind::ANSWER_WITHDRAWN;
        let outcome = CallStatus::of(Errno::Broken.code(), Detail::DETAIL_NONE);
        match self.publish(session, kind, outcome, network::Payload::default()).await {
            AnswerDelivery::NoReceiver => AnswerDelivery::NoReceiver,
            AnswerDelivery::Delivered | AnswerDelivery::RedisAway => AnswerDelivery::RedisAway,
        }
    }

    /// Returns when the caller's shim no longer listens.
    async fn abandoned(&self, session: &RedisSession) {
        let mut absent = 0;
        while absent < LOOKS_MAX {
            sleep(LOOK_EVERY).await;
            let listening = session.listeners(&self.call.reply_to).await;
            absent = if listening == Ok(0) { absent + 1 } else { 0 };
        }
    }

    async fn refuse(&self, error: &CallError) {
        let Ok(session) = self.inner.link.session_now() else { return };
        self.refuse_for_now(&session, false, error).await;
    }

    /// Refuses the call; with `later`, the caller may retry the same instance.
    async fn refuse_for_now(&self, session: &RedisSession, later: bool, error: &CallError) {
        let kind = AnswerKind::ANSWER_REFUSED;
        let (from, outcome) = (&self.inner.replies, error.outcome());
        let mut answer = Answer::of(from, self.id, kind, outcome, message_of(error));
        // A refusal has the same format in every version; it names the caller's.
        answer.version = self.call.version;
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
        match session.publish(&self.call.reply_to, &encode(answer)).await {
            Ok(0) => {
                tracing::debug!(instance = self.record.instance, "the caller's shim is gone");
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

struct Failure {
    error: CallError,
    /// It certainly did not run, and the same instance may run it later.
    later: bool,
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { error, later: false }
    }
}

/// A call that its caller can cancel while this value exists.
struct Cancellable {
    inner: Arc<Inner>,
    id: TryId,
    told: watch::Receiver<bool>,
}

impl Cancellable {
    fn new(inner: &Arc<Inner>, id: TryId) -> Self {
        let (sender, told) = watch::channel(false);
        inner.cancellable().insert(id, sender);
        Self { inner: Arc::clone(inner), id, told }
    }

    /// Returns when the caller has cancelled the call.
    async fn wait(&self) {
        let mut told = self.told.clone();
        if told.wait_for(|cancelled| *cancelled).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        self.inner.cancellable().remove(&self.id);
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

/// The moment at which a traced call arrived on this host: what it waits from here on is the callee's queue.
fn arrival_of(traceparent: &str) -> u64 {
    if TraceContext::is_sampled(traceparent) { monotonic_ns() } else { 0 }
}

fn message_of(error: &CallError) -> network::Payload {
    network::Payload::of_bytes(error.wire_message().into_bytes())
}
