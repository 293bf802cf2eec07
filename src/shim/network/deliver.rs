//! A call that came over the network for one of this daemon's instances.
//!
//! The call is decided ([`Session::decide`]) before it is run, so one that its caller has given up, or that
//! came twice, is dropped. From then on its end is published, whatever it is, as long as anybody waits. What its caller
//! cancels keeps no place among the payloads that are taken and put; a function that runs already goes on.

use std::sync::Arc;
use std::time::Duration;

use cwasi_abi::Errno;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::instance::Connection;
use super::{Inner, Network};
use crate::coordinator::registry::Record;
use crate::dispatcher::selection::{may_call, refusal};
use crate::modes::networked::claims::ClaimError;
use crate::modes::networked::session::Decision;
use crate::modes::networked::{Backoff, NetworkError, Session};
use crate::modes::{CallError, Overload, Payload};
use crate::wire::envelope::{Detail, Outcome, Request};
use crate::wire::ids::CallId;
use crate::wire::network::{
    self, Answer, AnswerKind, Call, Claim, TryId, check_version, encode, parse,
};
use crate::wire::remaining;

/// First and longest pause between two attempts to publish an end while Redis does not take it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a call runs at most when its caller names no end.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// How often one who puts a response looks whether the caller's shim is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that find nobody before it stops.
const LOOKS_MAX: u32 = 2;

impl Network {
    /// Takes a message from the channel of an instance.
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
            // Nobody has decided, so it does not run.
            Err(error) if error.is_refusal() => {
                let (target, message) = (self.call.target.clone(), self.said(&error));
                let refusal = CallError::Unreachable { target, message };
                return self.refuse_for_now(&session, error.is_transient(), &refusal).await;
            }
            Err(error) => {
                // Not known whether it was decided, so it must not run.
                tracing::warn!(%call, %error, "call dropped");
                return;
            }
        }
        let cancelled = Cancellable::new(&self.inner, self.id);
        let payload = self.call.payload.take().unwrap_or_default();
        // Its caller need not know before the call runs, and learns it before the end: one connection, in order.
        let accepted = network::Payload::default();
        let telling =
            self.publish(&session, AnswerKind::ANSWER_ACCEPTED, Outcome::ANSWERED, accepted);
        let running = self.execute(&session, &connection, payload, &cancelled);
        let running = timeout_at(self.deadline, running);
        let (_told, ended) = tokio::join!(telling, running);
        let ended = ended.unwrap_or_else(|_elapsed| {
            Err(CallError::Timeout { target: self.call.target.clone() }.into())
        });
        self.end(ended, &cancelled).await;
    }

    /// An error as the caller reads it.
    fn said(&self, error: &dyn std::error::Error) -> String {
        format!("node {}: {error}", self.inner.node)
    }

    /// Checks everything that can be checked before the call is accepted, and connects to the instance.
    fn admit(&self) -> Result<(CallId, Connection), CallError> {
        let unreachable =
            |message: String| CallError::Unreachable { target: self.call.target.clone(), message };
        let refused = |error: &dyn std::error::Error| unreachable(self.said(error));
        check_version(&self.call).map_err(|error| refused(&error))?;
        let id = self.call.id().map_err(|error| refused(&error))?;
        let caller = self.call.caller.get_or_default().identity();
        if !may_call(&caller, &self.record.identity, &self.record.allow) {
            let message = refusal(&caller, &self.record.identity, &self.record.allow);
            return Err(CallError::Refused { message });
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
        session: &Session,
        connection: &Connection,
        payload: network::Payload,
        cancelled: &Cancellable,
    ) -> Result<Payload, Failure> {
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
            attempt: self.call.attempt,
            run: self.call.run.clone(),
            join: self.call.join.clone(),
            ..Request::default()
        };
        Ok(connection.run(&self.record, &request, payload).await?)
    }

    /// Takes the call's payload, as long as its caller may still put it.
    async fn take(
        &self,
        session: &Session,
        claim: &Claim,
        cancelled: &Cancellable,
    ) -> Result<Payload, Failure> {
        let not_run = |reason: &dyn std::fmt::Display, later| {
            let message = format!("its payload cannot be fetched: {reason}");
            let error = CallError::Unreachable { target: self.call.target.clone(), message };
            Failure { error, later }
        };
        let reason = tokio::select! {
            taken = self.inner.claims.take(session, claim, self.record.max_payload) => {
                return taken.map_err(|error| not_run(&error, error.is_transient()));
            }
            () = cancelled.wait() => "its caller gave the call up",
            () = self.abandoned(session) => "its caller's shim is gone",
        };
        tracing::debug!(call = %self.call, reason, "a request is not taken to its end");
        self.inner.claims.refuse(session, claim).await;
        Err(not_run(&reason, false))
    }

    /// Publishes the end until Redis took it or nobody waits any more.
    async fn end(&self, ended: Result<Payload, Failure>, cancelled: &Cancellable) {
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        while Instant::now() < self.deadline {
            let Ok(session) = self.inner.link.session(self.deadline).await else { return };
            let told = match &ended {
                Err(failure) => self.failed(&session, failure).await,
                Ok(Payload::Inline(bytes)) => {
                    self.ended(&session, network::Payload::of_bytes(bytes.clone())).await
                }
                Ok(payload) => self.ended_with(&session, payload, cancelled).await,
            };
            if told != Told::Away {
                return;
            }
            sleep(backoff.pause()).await;
        }
        // A deadline that passed is told once: the caller may wait a little longer than we do.
        if let (Err(failure), Ok(session)) = (&ended, self.inner.link.session_now()) {
            self.failed(&session, failure).await;
        }
    }

    async fn ended(&self, session: &Session, payload: network::Payload) -> Told {
        self.publish(session, AnswerKind::ANSWER_ENDED, Outcome::ANSWERED, payload).await
    }

    async fn failed(&self, session: &Session, failure: &Failure) -> Told {
        let (outcome, message) = (failure.error.outcome(), message_of(&failure.error));
        let kind = AnswerKind::ANSWER_ENDED;
        let mut answer = Answer::of(&self.inner.replies, self.id, kind, outcome, message);
        answer.later = failure.later;
        self.send(session, &answer).await
    }

    /// Publishes a large response, and puts its chunks while the caller's shim takes them.
    async fn ended_with(
        &self,
        session: &Session,
        payload: &Payload,
        cancelled: &Cancellable,
    ) -> Told {
        let kept = self.deadline.saturating_duration_since(Instant::now());
        let mut putting = match self.inner.claims.begin(session, payload.len(), kept).await {
            Ok(putting) => putting,
            Err(error) => {
                tracing::warn!(%error, "a response is not put into Redis; trying again");
                return Told::Away;
            }
        };
        let claim = network::Payload::of_claim(putting.claim().clone());
        let told = self.ended(session, claim).await;
        if told != Told::Heard {
            return told;
        }
        let reason = tokio::select! {
            put = putting.run(payload) => match put {
                Ok(()) => return Told::Heard,
                Err(error @ ClaimError::Network(_)) => {
                    tracing::warn!(%error, "a response is not put into Redis; trying again");
                    putting.clear_away().await;
                    return self.withdraw(session).await;
                }
                Err(error) => error.to_string(),
            },
            () = cancelled.wait() => "its caller gave the call up".to_owned(),
            () = self.abandoned(session) => "the caller's shim is gone".to_owned(),
            () = sleep_until(self.deadline) => "the deadline has passed".to_owned(),
        };
        tracing::debug!(reason, "a response is not put to its end");
        putting.clear_away().await;
        Told::Heard
    }

    /// Tells the caller's shim that the announced response does not come, so that it takes the next one.
    async fn withdraw(&self, session: &Session) -> Told {
        let kind = AnswerKind::ANSWER_WITHDRAWN;
        let outcome = Outcome { errno: Errno::Broken.code(), detail: Detail::DETAIL_NONE };
        match self.publish(session, kind, outcome, network::Payload::default()).await {
            Told::Nobody => Told::Nobody,
            Told::Heard | Told::Away => Told::Away,
        }
    }

    /// Returns when nobody listens for our answers any more.
    async fn abandoned(&self, session: &Session) {
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

    /// Refuses the call; with `later`, the caller may try the same instance again.
    async fn refuse_for_now(&self, session: &Session, later: bool, error: &CallError) {
        let kind = AnswerKind::ANSWER_REFUSED;
        let (from, outcome) = (&self.inner.replies, error.outcome());
        let mut answer = Answer::of(from, self.id, kind, outcome, message_of(error));
        // The same in every version, and meant for the caller's.
        answer.version = self.call.version;
        answer.later = later;
        self.send(session, &answer).await;
    }

    /// Sends one answer.
    async fn publish(
        &self,
        session: &Session,
        kind: AnswerKind,
        outcome: Outcome,
        payload: network::Payload,
    ) -> Told {
        let answer = Answer::of(&self.inner.replies, self.id, kind, outcome, payload);
        self.send(session, &answer).await
    }

    async fn send(&self, session: &Session, answer: &Answer) -> Told {
        match session.publish(&self.call.reply_to, &encode(answer)).await {
            Ok(0) => {
                tracing::debug!(instance = self.record.instance, "the caller's shim is gone");
                Told::Nobody
            }
            Ok(_) => Told::Heard,
            Err(error @ NetworkError::Command { .. }) => {
                tracing::warn!(%error, "an answer is not sent");
                Told::Nobody
            }
            Err(_) => Told::Away,
        }
    }
}

/// How a call failed.
struct Failure {
    error: CallError,
    /// It certainly did not run, and the same instance may run it a little later.
    later: bool,
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { error, later: false }
    }
}

/// A call that its caller can cancel while this exists.
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

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The caller's shim has it.
    Heard,
    /// Nobody will.
    Nobody,
    /// Redis is away.
    Away,
}

fn message_of(error: &CallError) -> network::Payload {
    network::Payload::of_bytes(error.wire_message().into_bytes())
}
