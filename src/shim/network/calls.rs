//! One call over the network, from its request to exactly one end.
//!
//! A call is published to one instance at a time as a *try* with an id of its own. Whoever sets that id's
//! key in Redis first decides: the callee before it runs the call, or the caller when it gives the try up.
//! So a try ends as
//!
//! - *answered*: the response, or the callee's error;
//! - *not accepted*: certain never to run, because nobody listened, the callee refused, or the caller decided
//!   first; the call goes on with another instance while its deadline allows;
//! - *unknown*: accepted, or possibly accepted, and then the callee, its node or Redis was lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::bridge::Caller;
use super::sending::Sending;
use super::{ANSWERS_MAX, Inner, Network};
use crate::dispatcher::selection::may_call;
use crate::modes::networked::session::Decision;
use crate::modes::networked::{NetworkError, Session, instance_channel};
use crate::modes::{CallError, Payload};
use crate::sys::random::bytes16;
use crate::wire::envelope::Join;
use crate::wire::ids::{CallId, Identity};
use crate::wire::network::{self, Answer, AnswerKind, CALL_VERSION, Call, Location, TryId};

/// Most tries of one call at different instances.
const TRIES_MAX: usize = 8;
/// How long a call waits for Redis to come back before it ends as unreachable.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an instance may take to accept before the caller decides.
const ACCEPT_MAX: Duration = Duration::from_secs(2);
/// How often a caller that waits for an answer looks whether the callee's shim is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that find nobody before the call ends: an answer may be on its way.
const LOOKS_MAX: u32 = 2;

/// One call as its bridge got it.
#[derive(Debug)]
pub struct Order {
    /// The call's id.
    pub id: CallId,
    /// Who is called.
    pub callee: Identity,
    /// As the caller names it.
    pub target: String,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// W3C trace context, empty when not traced.
    pub traceparent: String,
    /// Starts at 1.
    pub attempt: u32,
    /// The run of the workflow, as its caller said.
    pub run: Vec<u8>,
    /// Which group it is part of, if it is one.
    pub join: Option<Join>,
    /// The user's bytes.
    pub payload: Payload,
}

/// What came of giving a try up.
enum Verdict {
    /// It will never run.
    NotAccepted,
    /// The callee, by the channel of its shim, was first.
    Accepted(String),
    /// Redis does not say.
    Unknown,
}

/// How a try ended.
pub(super) enum End {
    Answered(Result<Payload, CallError>),
    /// Certainly not run.
    NotAccepted(CallError),
}

impl Order {
    pub(super) fn unreachable(&self, message: impl ToString) -> CallError {
        CallError::Unreachable { target: self.target.clone(), message: message.to_string() }
    }

    fn unknown(&self, message: impl ToString) -> CallError {
        CallError::Broken { target: self.target.clone(), message: message.to_string() }
    }

    fn timeout(&self) -> CallError {
        CallError::Timeout { target: self.target.clone() }
    }
}

impl Network {
    /// Runs one call to its end.
    ///
    /// # Errors
    /// Exactly one [`CallError`]; [`CallError::Unreachable`] only when no instance has run or will run it.
    pub async fn call(&self, caller: &Caller, order: &Order) -> Result<Payload, CallError> {
        let mut tried = Vec::new();
        let mut last = None;
        for _ in 0..TRIES_MAX {
            if Instant::now() >= order.deadline {
                return Err(order.timeout());
            }
            let patience = order.deadline.min(Instant::now() + PATIENCE);
            let session = self.inner.link.session(patience).await;
            let session = session.map_err(|error| order.unreachable(error))?;
            let location = match self.next_location(&session, caller, &tried).await {
                Ok(Some(location)) => location,
                Ok(None) => break,
                Err(error) => {
                    last = Some(order.unreachable(error));
                    continue;
                }
            };
            let length = order.payload.len();
            if length > location.max_payload {
                let what = format!("payload for {}", order.target);
                return Err(CallError::too_large(&what, length, location.max_payload));
            }
            let sending = Sending::begin(&self.inner, &session, order);
            let sending = match timeout_at(order.deadline, sending).await {
                Ok(Ok(sending)) => sending,
                Ok(Err(error)) => {
                    last = Some(order.unreachable(error));
                    continue;
                }
                Err(_elapsed) => return Err(order.timeout()),
            };
            tried.push(location.instance.clone());
            let attempt = Try::new(&self.inner, &session, order, caller, &location);
            match attempt.run(sending).await {
                End::Answered(result) => return result,
                End::NotAccepted(error) => {
                    tracing::debug!(call = %order.id, instance = location.instance, %error, "not accepted");
                    last = Some(error);
                }
            }
        }
        self.inner.routes.forget(&order.callee);
        Err(last.unwrap_or_else(|| order.unreachable("no instance is announced in Redis")))
    }

    /// The next instance to try: in turn over all calls of this daemon.
    async fn next_location(
        &self,
        session: &Session,
        caller: &Caller,
        tried: &[String],
    ) -> Result<Option<Location>, NetworkError> {
        let mut locations = self.inner.routes.of(session, &caller.callee).await?;
        locations.retain(|location| {
            !tried.contains(&location.instance)
                && may_call(&caller.identity, &caller.callee, &location.allow)
        });
        if locations.is_empty() {
            return Ok(None);
        }
        let turn = self.inner.rotation.fetch_add(1, Ordering::Relaxed) % locations.len();
        Ok(Some(locations.swap_remove(turn)))
    }
}

/// One publication of a call.
pub(super) struct Try<'a> {
    id: TryId,
    inner: &'a Arc<Inner>,
    session: &'a Session,
    pub(super) order: &'a Order,
    caller: &'a Caller,
    location: &'a Location,
    answers: mpsc::Receiver<Answer>,
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        self.inner.waiting().remove(&self.id);
    }
}

impl<'a> Try<'a> {
    fn new(
        inner: &'a Arc<Inner>,
        session: &'a Session,
        order: &'a Order,
        caller: &'a Caller,
        location: &'a Location,
    ) -> Self {
        let id = TryId(bytes16());
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        inner.waiting().insert(id, sender);
        Self { id, inner, session, order, caller, location, answers }
    }

    pub(super) async fn publish_and_wait(&mut self, message: &[u8]) -> End {
        let channel = instance_channel(&self.location.instance);
        let published = timeout_at(self.order.deadline, self.session.publish(&channel, message));
        let callee = match published.await {
            Ok(Ok(0)) => {
                self.inner.routes.drop_stale(self.session, self.location).await;
                let message = format!("nobody listens for {} any more", self.instance());
                return End::NotAccepted(self.order.unreachable(message));
            }
            Ok(Ok(_)) => None,
            // Redis said no, so nobody got it.
            Ok(Err(error @ NetworkError::Command { .. })) => {
                return End::NotAccepted(self.order.unreachable(error));
            }
            Ok(Err(NetworkError::Away { reason })) => match self.give_up().await {
                Verdict::NotAccepted => return End::NotAccepted(self.not_in_time()),
                Verdict::Accepted(callee) => Some(callee),
                Verdict::Unknown => return End::Answered(Err(self.order.unknown(reason))),
            },
            Err(_elapsed) => return self.past_deadline(false),
        };
        self.wait(callee).await
    }

    /// Removes the key of a try that the callee has done with. One that was given up keeps it until it expires:
    /// a callee that wakes up late must find it.
    fn forget(&self) {
        let (session, id) = (self.session.clone(), self.id);
        tokio::spawn(async move {
            if let Err(error) = session.forget_try(id).await {
                tracing::debug!(%error, "a try's key expires instead");
            }
        });
    }

    /// Waits for answers until the try has ended. `callee`: the channel of the shim that accepted it, if known.
    async fn wait(&mut self, mut callee: Option<String>) -> End {
        let mut accept_by = self.order.deadline.min(Instant::now() + ACCEPT_MAX);
        let mut next_look = Instant::now() + LOOK_EVERY;
        let mut absent = 0;
        let link = self.inner.link.clone();
        let lost = link.ended(self.session.epoch);
        tokio::pin!(lost);
        loop {
            tokio::select! {
                biased;
                answer = self.answers.recv() => {
                    let Some(answer) = answer else { return self.past_deadline(callee.is_some()) };
                    if answer.kind.enum_value() == Ok(AnswerKind::ANSWER_ACCEPTED) {
                        callee = Some(answer.from);
                        continue;
                    }
                    return self.end(answer).await;
                }
                reason = &mut lost => {
                    let message = format!("the connection to Redis was lost while {} had the call: {reason}", self.instance());
                    return End::Answered(Err(self.order.unknown(message)));
                }
                () = sleep_until(self.order.deadline) => return self.past_deadline(callee.is_some()),
                () = sleep_until(accept_by), if callee.is_none() => match self.give_up().await {
                    Verdict::NotAccepted => return End::NotAccepted(self.not_in_time()),
                    Verdict::Accepted(shim) => callee = Some(shim),
                    // The link notices within seconds; until then the answer may still come.
                    Verdict::Unknown => accept_by = Instant::now() + ACCEPT_MAX,
                },
                () = sleep_until(next_look), if callee.is_some() => {
                    next_look = Instant::now() + LOOK_EVERY;
                    let listening = self.session.listeners(callee.as_deref().unwrap_or_default()).await;
                    absent = if listening == Ok(0) { absent + 1 } else { 0 };
                    if absent >= LOOKS_MAX {
                        let message = format!("node {} is gone, {} had the call", self.location.node, self.instance());
                        return End::Answered(Err(self.order.unknown(message)));
                    }
                }
            }
        }
    }

    /// Decides that the try is not accepted, unless the callee was first.
    async fn give_up(&self) -> Verdict {
        match timeout_at(self.order.deadline, self.session.decide(self.id, "caller")).await {
            Ok(Ok(Decision::Ours)) => Verdict::NotAccepted,
            Ok(Ok(Decision::Theirs(callee))) => Verdict::Accepted(callee),
            Ok(Err(_)) | Err(_) => Verdict::Unknown,
        }
    }

    fn not_in_time(&self) -> CallError {
        self.order.unreachable(format!("{} did not accept the call in time", self.instance()))
    }

    /// The caller waits no longer; a callee that has not begun will not.
    fn past_deadline(&self, accepted: bool) -> End {
        if !accepted {
            let (session, id) = (self.session.clone(), self.id);
            tokio::spawn(async move {
                if let Err(error) = session.decide(id, "caller").await {
                    tracing::debug!(%error, "a call that is too late may still run");
                }
            });
        }
        End::Answered(Err(self.order.timeout()))
    }

    /// The last answer's meaning.
    async fn end(&self, answer: Answer) -> End {
        self.forget();
        let refused = answer.kind.enum_value() == Ok(AnswerKind::ANSWER_REFUSED);
        let payload = answer.payload.into_option().unwrap_or_default();
        if answer.errno == 0 && !refused {
            return End::Answered(self.response(payload).await);
        }
        let message = String::from_utf8_lossy(&payload.inline).into_owned();
        let error = CallError::from_wire(answer.errno, message, &self.order.target);
        match error {
            error @ CallError::Unreachable { .. } => End::NotAccepted(error),
            error @ CallError::Overloaded { .. } if refused => End::NotAccepted(error),
            error => End::Answered(Err(error)),
        }
    }

    async fn response(&self, payload: network::Payload) -> Result<Payload, CallError> {
        let length = payload.length();
        if length > self.caller.max_payload {
            if let Some(claim) = payload.claim.as_ref() {
                self.inner.claims.refuse(self.session, claim).await;
            }
            let what = format!("response of {}", self.order.target);
            return Err(CallError::too_large(&what, length, self.caller.max_payload));
        }
        let Some(claim) = payload.claim.into_option() else {
            return Ok(Payload::Inline(payload.inline));
        };
        let taking = self.inner.claims.take(self.session, &claim, self.caller.max_payload);
        match timeout_at(self.order.deadline, taking).await {
            Ok(Ok(payload)) => Ok(payload),
            Ok(Err(error)) => {
                Err(self.order.unknown(format!("its response cannot be fetched: {error}")))
            }
            Err(_elapsed) => {
                self.inner.claims.refuse(self.session, &claim).await;
                Err(self.order.timeout())
            }
        }
    }

    pub(super) fn message(&self, payload: network::Payload) -> Call {
        let (caller, order) = (self.caller, self.order);
        let remaining = order.deadline.saturating_duration_since(Instant::now());
        let node = &self.inner.node;
        let from = network::Caller::of(&caller.identity, &caller.workflow, &caller.instance, node);
        Call {
            version: CALL_VERSION,
            try_id: self.id.0.to_vec(),
            reply_to: self.inner.replies.clone(),
            caller: Some(from).into(),
            call_id: order.id.0.to_vec(),
            target: order.target.clone(),
            remaining_us: u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX),
            traceparent: order.traceparent.clone(),
            attempt: order.attempt,
            run: order.run.clone(),
            join: order.join.clone().into(),
            payload: Some(payload).into(),
            ..Call::default()
        }
    }

    fn instance(&self) -> String {
        format!("instance {} on node {}", self.location.instance, self.location.node)
    }
}
