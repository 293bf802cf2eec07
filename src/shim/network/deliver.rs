//! A call that came over the network for one of this daemon's instances.
//!
//! The call is decided ([`Session::decide`]) before it is run, so one that its caller has given up, or that
//! came twice, is dropped. From then on its end is published, whatever it is, as long as anybody waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::instance::Connection;
use super::{Inner, Network};
use crate::coordinator::registry::Record;
use crate::dispatcher::selection::{may_call, refusal};
use crate::modes::networked::session::Decision;
use crate::modes::networked::{NetworkError, Session};
use crate::modes::{CallError, Payload};
use crate::wire::envelope::Request;
use crate::wire::ids::CallId;
use crate::wire::network::{self, Answer, AnswerKind, Call, TryId, check_version, encode, parse};

/// Pause between two attempts to publish an end while Redis is away.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
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
        let wait = match call.remaining_us {
            0 => FOREVER,
            remaining_us => Duration::from_micros(remaining_us).min(FOREVER),
        };
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
            let message = format!("node {} has too many calls under way", self.inner.node);
            return self.refuse(&CallError::Overloaded { message }).await;
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
            Err(error) => {
                // Not known whether it was decided, so it must not run.
                tracing::warn!(%call, %error, "call dropped");
                return;
            }
        }
        let payload = self.call.payload.take().unwrap_or_default();
        // Its caller need not know before the call runs, and learns it before the end: one connection, in order.
        let accepted = network::Payload::default();
        let telling = self.publish(&session, AnswerKind::ANSWER_ACCEPTED, 0, accepted);
        let running = timeout_at(self.deadline, self.execute(&session, &connection, payload));
        let (_told, ended) = tokio::join!(telling, running);
        let ended = ended.unwrap_or_else(|_elapsed| {
            Err(CallError::Timeout { target: self.call.target.clone() })
        });
        self.end(ended).await;
    }

    /// Checks everything that can be checked before the call is accepted, and connects to the instance.
    fn admit(&self) -> Result<(CallId, Connection), CallError> {
        let node = &self.inner.node;
        let unreachable =
            |message: String| CallError::Unreachable { target: self.call.target.clone(), message };
        let refused = |error: &dyn std::error::Error| unreachable(format!("node {node}: {error}"));
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
    ) -> Result<Payload, CallError> {
        let target = self.call.target.clone();
        let not_run = |message: String| CallError::Unreachable { target: target.clone(), message };
        let payload = match payload.claim.into_option() {
            None => Payload::Inline(payload.inline),
            Some(claim) => {
                let taken = self.inner.claims.take(session, &claim, self.record.max_payload).await;
                taken.map_err(|error| not_run(format!("its payload cannot be fetched: {error}")))?
            }
        };
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let request = Request {
            call_id: self.call.call_id.clone(),
            target: target.clone(),
            // At least 1: 0 means "for ever".
            remaining_us: u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX).max(1),
            traceparent: self.call.traceparent.clone(),
            attempt: self.call.attempt,
            run: self.call.run.clone(),
            join: self.call.join.clone(),
            ..Request::default()
        };
        connection.run(&self.record, &request, payload).await
    }

    /// Publishes the end until Redis took it or nobody waits any more.
    async fn end(&self, ended: Result<Payload, CallError>) {
        while Instant::now() < self.deadline {
            let Ok(session) = self.inner.link.session(self.deadline).await else { return };
            let told = match &ended {
                Err(error) => self.ended(&session, error.errno().code(), message_of(error)).await,
                Ok(Payload::Inline(bytes)) => {
                    self.ended(&session, 0, network::Payload::of_bytes(bytes.clone())).await
                }
                Ok(payload) => self.ended_with(&session, payload).await,
            };
            if told != Told::Away {
                return;
            }
            sleep(AGAIN_AFTER).await;
        }
        // A deadline that passed is told once: the caller may wait a little longer than we do.
        if let (Err(error), Ok(session)) = (&ended, self.inner.link.session_now()) {
            self.ended(&session, error.errno().code(), message_of(error)).await;
        }
    }

    async fn ended(&self, session: &Session, errno: i32, payload: network::Payload) -> Told {
        self.publish(session, AnswerKind::ANSWER_ENDED, errno, payload).await
    }

    /// Publishes a large response, and puts its chunks while the caller's shim takes them.
    async fn ended_with(&self, session: &Session, payload: &Payload) -> Told {
        let kept = self.deadline.saturating_duration_since(Instant::now());
        let mut putting = match self.inner.claims.begin(session, payload.len(), kept).await {
            Ok(putting) => putting,
            Err(error) => {
                tracing::warn!(%error, "a response is not put into Redis; trying again");
                return Told::Away;
            }
        };
        let claim = network::Payload::of_claim(putting.claim().clone());
        let told = self.ended(session, 0, claim).await;
        if told != Told::Heard {
            return told;
        }
        let put = tokio::select! {
            put = putting.run(payload) => put.map_err(|error| error.to_string()),
            () = self.abandoned(session) => Err("the caller's shim is gone".to_owned()),
            () = sleep_until(self.deadline) => Err("the deadline has passed".to_owned()),
        };
        if let Err(reason) = put {
            tracing::debug!(reason, "a response is not put to its end");
            putting.clear_away().await;
        }
        Told::Heard
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
        let kind = AnswerKind::ANSWER_REFUSED;
        self.publish(&session, kind, error.errno().code(), message_of(error)).await;
    }

    /// Sends one answer.
    async fn publish(
        &self,
        session: &Session,
        kind: AnswerKind,
        errno: i32,
        payload: network::Payload,
    ) -> Told {
        let mut answer = Answer::of(&self.inner.replies, self.id, kind, errno, payload);
        if kind == AnswerKind::ANSWER_REFUSED {
            // The same in every version, and meant for the caller's.
            answer.version = self.call.version;
        }
        match session.publish(&self.call.reply_to, &encode(&answer)).await {
            Ok(0) => {
                tracing::debug!(instance = self.record.instance, "the caller's shim is gone");
                Told::Nobody
            }
            Ok(_) => Told::Heard,
            Err(NetworkError::Command { command, reason }) => {
                tracing::warn!(command, reason, "Redis does not take an answer");
                Told::Nobody
            }
            Err(NetworkError::Away { .. }) => Told::Away,
        }
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
