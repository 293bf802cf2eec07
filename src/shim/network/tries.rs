//! One publication of a call to one instance: a *try*, with an id of its own.
//!
//! Whoever sets that id's key in Redis first decides: the callee before it runs the call, or the caller when it gives
//! the try up. So a try ends as
//!
//! - *answered*: the response, or the callee's error;
//! - *not accepted*: certain never to run, because nobody listened, the callee refused, or the caller decided
//!   first; the call goes on with another instance while its deadline allows;
//! - *unknown*: accepted, or possibly accepted, and then the callee, its node or Redis was lost.
//!
//! A try that ends before the callee has done with it is cancelled: the callee's shim then takes and puts no further
//! chunks of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::bridge::Caller;
use super::order::Order;
use super::{ANSWERS_MAX, Inner};
use crate::modes::networked::session::Decision;
use crate::modes::networked::{Session, instance_channel};
use crate::modes::{CallError, Payload};
use crate::sys::random::bytes16;
use crate::wire::network::{self, Answer, AnswerKind, CALL_VERSION, Call, Location, TryId};
use crate::wire::remaining;

/// How long an instance may take to accept before the caller decides.
const ACCEPT_MAX: Duration = Duration::from_secs(2);
/// How long a caller that lacks a chunk of a response waits for the callee's word that it could not put it.
const WITHDRAWN_MAX: Duration = Duration::from_secs(1);
/// How often a caller that waits for an answer looks whether the callee's shim is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row that find nobody before the call ends: an answer may be on its way.
const LOOKS_MAX: u32 = 2;

/// What came of giving a try up.
enum Verdict {
    /// It will never run.
    NotAccepted,
    /// The callee, by the channel of its shim, was first.
    Accepted(String),
    /// Redis does not say.
    Unknown,
}

/// Where a call goes after a try that was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// To another instance.
    Elsewhere,
    /// To any instance that is announced then: this one's location was dropped.
    WhenAnnounced,
    /// To any instance, this one too, a little later: Redis refused something.
    AfterPause,
}

impl Again {
    /// `transient`: the same may succeed a little later.
    pub(super) const fn when(transient: bool) -> Self {
        if transient { Self::AfterPause } else { Self::Elsewhere }
    }
}

/// How a try ended.
pub(super) enum End {
    Answered(Result<Payload, CallError>),
    /// Certainly not run.
    NotAccepted(Again, CallError),
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
    /// Channel of the shim that accepted it, once that is known.
    callee: Option<String>,
    /// The callee has done with it, and this side has what it sent.
    settled: bool,
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        self.inner.waiting().remove(&self.id);
    }
}

impl<'a> Try<'a> {
    pub(super) fn new(
        inner: &'a Arc<Inner>,
        session: &'a Session,
        order: &'a Order,
        caller: &'a Caller,
        location: &'a Location,
    ) -> Self {
        let id = TryId(bytes16());
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        inner.waiting().insert(id, sender);
        Self { id, inner, session, order, caller, location, answers, callee: None, settled: false }
    }

    pub(super) async fn publish_and_wait(&mut self, message: &[u8]) -> End {
        let channel = instance_channel(&self.location.instance);
        let published = timeout_at(self.order.deadline, self.session.publish(&channel, message));
        match published.await {
            Ok(Ok(0)) => {
                self.inner.routes.drop_stale(self.session, self.location).await;
                let message = format!("nobody listens for {} any more", self.instance());
                return End::NotAccepted(Again::WhenAnnounced, self.order.unreachable(message));
            }
            Ok(Ok(_)) => {}
            // Redis said no, so nobody got it.
            Ok(Err(error)) if error.is_refusal() => {
                return End::NotAccepted(
                    Again::when(error.is_transient()),
                    self.order.unreachable(error),
                );
            }
            Ok(Err(error)) => match self.give_up().await {
                Verdict::NotAccepted => return self.not_in_time(),
                Verdict::Accepted(callee) => self.callee = Some(callee),
                Verdict::Unknown => return End::Answered(Err(self.order.unknown(error))),
            },
            Err(_elapsed) => return self.past_deadline(),
        }
        self.wait().await
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

    /// Waits for answers until the try has ended.
    async fn wait(&mut self) -> End {
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
                    let Some(answer) = answer else { return self.past_deadline() };
                    if let Some(end) = self.take(answer).await {
                        return end;
                    }
                }
                reason = &mut lost => {
                    let message = format!("the connection to Redis was lost while {} had the call: {reason}", self.instance());
                    return End::Answered(Err(self.order.unknown(message)));
                }
                () = sleep_until(self.order.deadline) => return self.past_deadline(),
                () = sleep_until(accept_by), if self.callee.is_none() => match self.give_up().await {
                    Verdict::NotAccepted => return self.not_in_time(),
                    Verdict::Accepted(shim) => self.callee = Some(shim),
                    // The link notices within seconds; until then the answer may still come.
                    Verdict::Unknown => accept_by = Instant::now() + ACCEPT_MAX,
                },
                () = sleep_until(next_look), if self.callee.is_some() => {
                    next_look = Instant::now() + LOOK_EVERY;
                    let callee = self.callee.as_deref().unwrap_or_default();
                    let listening = self.session.listeners(callee).await;
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

    /// True when the connection to Redis that the try began with is lost.
    pub(super) fn has_lost_redis(&self) -> bool {
        let current = self.inner.link.session_now();
        current.map_or(true, |current| current.epoch != self.session.epoch)
    }

    fn not_in_time(&self) -> End {
        let message = format!("{} did not accept the call in time", self.instance());
        End::NotAccepted(Again::Elsewhere, self.order.unreachable(message))
    }

    /// The caller waits no longer; a callee that has not begun will not.
    fn past_deadline(&self) -> End {
        if self.callee.is_none() {
            let (session, id) = (self.session.clone(), self.id);
            tokio::spawn(async move {
                if let Err(error) = session.decide(id, "caller").await {
                    tracing::debug!(%error, "a call that is too late may still run");
                }
            });
        }
        End::Answered(Err(self.order.timeout()))
    }

    /// Tells the callee's shim, if there is something left that it may wait for, or still put.
    ///
    /// One that accepts the call only after this is told then ([`Network::hear`](super::Network)).
    pub(super) fn cancel(&mut self) {
        if self.settled {
            return;
        }
        // From here on, answers are nobody's.
        self.inner.waiting().remove(&self.id);
        while let Ok(answer) = self.answers.try_recv() {
            self.callee = Some(answer.from);
        }
        if let Some(callee) = self.callee.take() {
            self.inner.cancel(self.session, &callee, self.id);
        }
    }

    /// What an answer means; `None` when others follow.
    async fn take(&mut self, answer: Answer) -> Option<End> {
        let outcome = answer.outcome();
        self.callee = Some(answer.from);
        let payload = answer.payload.into_option().unwrap_or_default();
        let refused = match answer.kind.enum_value() {
            Ok(AnswerKind::ANSWER_ENDED) => false,
            Ok(AnswerKind::ANSWER_REFUSED) => true,
            _ => return None,
        };
        if answer.errno == 0 && !refused {
            let response = self.response(payload).await?;
            self.forget();
            return Some(End::Answered(response));
        }
        self.forget();
        self.settled = true;
        let message = String::from_utf8_lossy(&payload.inline).into_owned();
        let error = CallError::from_wire(outcome, message, &self.order.target);
        let again = Again::when(answer.later);
        Some(match error {
            error @ CallError::Unreachable { .. } => End::NotAccepted(again, error),
            error @ CallError::Overloaded { .. } if refused => End::NotAccepted(again, error),
            error => End::Answered(Err(error)),
        })
    }

    /// The response that an end announced; `None` when the callee's shim could not put it, and announces it anew.
    async fn response(&mut self, payload: network::Payload) -> Option<Result<Payload, CallError>> {
        let (length, max) = (payload.length(), self.caller.max_payload);
        let Some(claim) = payload.claim.into_option() else {
            self.settled = true;
            if length > max {
                return Some(Err(self.too_large(length)));
            }
            return Some(Ok(Payload::Inline(payload.inline)));
        };
        if length > max {
            self.inner.claims.refuse(self.session, &claim).await;
            return Some(Err(self.too_large(length)));
        }
        let taking = self.inner.claims.take(self.session, &claim, max);
        let taking = timeout_at(self.order.deadline, taking);
        tokio::pin!(taking);
        loop {
            tokio::select! {
                taken = &mut taking => return Some(match taken {
                    Ok(Ok(payload)) => {
                        self.settled = true;
                        Ok(payload)
                    }
                    Ok(Err(error)) => {
                        if error.is_transient() && self.is_withdrawn().await {
                            return None;
                        }
                        Err(self.order.unknown(format!("its response cannot be fetched: {error}")))
                    }
                    Err(_elapsed) => {
                        self.inner.claims.refuse(self.session, &claim).await;
                        Err(self.order.timeout())
                    }
                }),
                Some(answer) = self.answers.recv() => {
                    if answer.kind.enum_value() == Ok(AnswerKind::ANSWER_WITHDRAWN) {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether the callee's shim says that it could not put the response: Redis may have refused a chunk, and taken the
    /// word that it is there.
    async fn is_withdrawn(&mut self) -> bool {
        let until = self.order.deadline.min(Instant::now() + WITHDRAWN_MAX);
        while let Ok(Some(answer)) = timeout_at(until, self.answers.recv()).await {
            if answer.kind.enum_value() == Ok(AnswerKind::ANSWER_WITHDRAWN) {
                return true;
            }
        }
        false
    }

    fn too_large(&self, length: u64) -> CallError {
        let what = format!("response of {}", self.order.target);
        CallError::too_large(&what, length, self.caller.max_payload)
    }

    pub(super) fn message(&self, payload: network::Payload) -> Call {
        let (caller, order) = (self.caller, self.order);
        let left = order.deadline.saturating_duration_since(Instant::now());
        let node = &self.inner.node;
        let from = network::Caller::of(&caller.identity, &caller.workflow, &caller.instance, node);
        Call {
            version: CALL_VERSION,
            try_id: self.id.0.to_vec(),
            reply_to: self.inner.replies.clone(),
            caller: Some(from).into(),
            call_id: order.id.0.to_vec(),
            target: order.target.clone(),
            remaining_us: remaining::encode(Some(left)),
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
