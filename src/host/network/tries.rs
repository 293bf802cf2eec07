//! One publication of a call to one instance: a *try*, with an id of its own. Runs in the shim daemon.
//!
//! The first process to set the id's key in Redis decides: the callee before it runs the call, or the caller when it
//! gives up the try. A try ends as
//!
//! - *answered*: the response, or the callee's error;
//! - *not accepted*: it certainly never runs, because no shim listened, the callee refused, or the caller decided
//!   first. The call continues with another instance until its deadline;
//! - *unknown*: it was or may have been accepted, and then the callee, its node or Redis was lost.
//!
//! A try that ends before the callee has finished is cancelled: the callee's shim then stops its transfers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Inner;
use super::bridge::BridgeCaller;
use super::outgoing::{CallResponse, OutgoingCall};
use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::{CallError, Payload};
use cwasi_networked::session::Decision;
use cwasi_networked::{RedisSession, instance_channel};
use cwasi_sys::random::bytes16;
use cwasi_wire::network::{self, Answer, AnswerKind, CALL_VERSION, Call, Location, TryId};
use cwasi_wire::remaining;

/// Longest wait for an instance's acceptance.
const ACCEPT_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a callee's withdrawal of a response when a chunk is missing.
const WITHDRAWN_MAX: Duration = Duration::from_secs(1);
/// Interval at which a waiting caller polls the callee's shim.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Failed polls in a row before the call ends: an answer may be on its way.
const FAILED_POLLS_MAX: u32 = 2;

/// Result of giving up a try.
enum GiveUpResult {
    /// It will never run.
    NotAccepted,
    /// The callee decided first; the channel of its shim.
    Accepted(String),
    /// Redis does not answer.
    Unknown,
}

/// The next step of a call after a try that was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Elsewhere,
    /// Try any announced instance: this location was dropped.
    WhenAnnounced,
    /// Try any instance later: Redis refused a command.
    AfterPause,
}

impl Retry {
    /// `transient`: a retry may succeed.
    pub(super) const fn when(transient: bool) -> Self {
        if transient { Self::AfterPause } else { Self::Elsewhere }
    }
}

/// How a try ended.
pub(super) enum TryOutcome {
    Answered(Result<CallResponse, CallError>),
    /// It certainly did not run.
    NotAccepted(Retry, CallError),
}

/// One publication of a call.
pub(super) struct Try<'a> {
    id: TryId,
    inner: &'a Arc<Inner>,
    session: &'a RedisSession,
    pub(super) call: &'a OutgoingCall,
    caller: &'a BridgeCaller,
    location: &'a Location,
    answers: mpsc::Receiver<Answer>,
    /// Channel of the accepting shim, once known.
    callee: Option<String>,
    /// The callee has finished, and this side has its answer.
    settled: bool,
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        self.cancel();
        self.inner.pending.remove(self.id);
    }
}

impl<'a> Try<'a> {
    pub(super) fn new(
        inner: &'a Arc<Inner>,
        session: &'a RedisSession,
        call: &'a OutgoingCall,
        caller: &'a BridgeCaller,
        location: &'a Location,
    ) -> Self {
        let id = TryId(bytes16());
        let answers = inner.pending.insert(id);
        Self { id, inner, session, call, caller, location, answers, callee: None, settled: false }
    }

    pub(super) async fn publish_and_wait(&mut self, message: &[u8]) -> TryOutcome {
        let channel = instance_channel(&self.location.instance);
        let published = timeout_at(self.call.deadline, self.session.publish(&channel, message));
        match published.await {
            Ok(Ok(0)) => {
                self.inner.routes.drop_stale(self.session, self.location).await;
                let cause = Unreached::NoListener { instance: self.instance() };
                return TryOutcome::NotAccepted(Retry::WhenAnnounced, self.call.unreachable(cause));
            }
            Ok(Ok(_)) => {}
            // Redis refused the message, so no shim got it.
            Ok(Err(error)) if error.is_refusal() => {
                return TryOutcome::NotAccepted(
                    Retry::when(error.is_transient()),
                    self.call.unsent(error),
                );
            }
            Ok(Err(error)) => match self.give_up().await {
                GiveUpResult::NotAccepted => return self.not_in_time(),
                GiveUpResult::Accepted(callee) => self.callee = Some(callee),
                GiveUpResult::Unknown => {
                    let cause = Break::Network { error: error.to_string() };
                    return TryOutcome::Answered(Err(self.call.unknown(cause)));
                }
            },
            Err(_elapsed) => return self.past_deadline(),
        }
        self.wait().await
    }

    /// Removes the key of a finished try. The key of a given-up try stays until it expires, because a late callee
    /// must find it.
    fn forget(&self) {
        let (session, id) = (self.session.clone(), self.id);
        tokio::spawn(async move {
            if let Err(error) = session.forget_try(id).await {
                tracing::debug!(%error, "a try's key expires instead");
            }
        });
    }

    /// Waits for answers until the try has ended.
    async fn wait(&mut self) -> TryOutcome {
        let mut accept_by = self.call.deadline.min(Instant::now() + ACCEPT_MAX);
        let mut next_poll = Instant::now() + POLL_EVERY;
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
                    let cause = Break::RedisLost { instance: self.instance(), error: reason };
                    return TryOutcome::Answered(Err(self.call.unknown(cause)));
                }
                () = sleep_until(self.call.deadline) => return self.past_deadline(),
                () = sleep_until(accept_by), if self.callee.is_none() => match self.give_up().await {
                    GiveUpResult::NotAccepted => return self.not_in_time(),
                    GiveUpResult::Accepted(shim) => self.callee = Some(shim),
                    // The link notices a lost connection within seconds; until then the answer may come.
                    GiveUpResult::Unknown => accept_by = Instant::now() + ACCEPT_MAX,
                },
                () = sleep_until(next_poll), if self.callee.is_some() => {
                    next_poll = Instant::now() + POLL_EVERY;
                    let callee = self.callee.as_deref().unwrap_or_default();
                    let listening = self.session.listeners(callee).await;
                    absent = if listening == Ok(0) { absent + 1 } else { 0 };
                    if absent >= FAILED_POLLS_MAX {
                        let (node, instance) = (self.location.node.clone(), self.instance());
                        let cause = Break::NodeGone { node, instance };
                        return TryOutcome::Answered(Err(self.call.unknown(cause)));
                    }
                }
            }
        }
    }

    /// Decides that the try is not accepted, unless the callee decided first.
    async fn give_up(&self) -> GiveUpResult {
        match timeout_at(self.call.deadline, self.session.decide(self.id, "caller")).await {
            Ok(Ok(Decision::Ours)) => GiveUpResult::NotAccepted,
            Ok(Ok(Decision::Theirs(callee))) => GiveUpResult::Accepted(callee),
            Ok(Err(_)) | Err(_) => GiveUpResult::Unknown,
        }
    }

    /// True if the try's connection to Redis is lost.
    pub(super) fn has_lost_redis(&self) -> bool {
        let current = self.inner.link.session_now();
        current.map_or(true, |current| current.epoch != self.session.epoch)
    }

    fn not_in_time(&self) -> TryOutcome {
        let cause = Unreached::NotInTime { instance: self.instance() };
        TryOutcome::NotAccepted(Retry::Elsewhere, self.call.unreachable(cause))
    }

    /// The deadline has passed. A callee that has not begun will not run the call.
    fn past_deadline(&self) -> TryOutcome {
        if self.callee.is_none() {
            let (session, id) = (self.session.clone(), self.id);
            tokio::spawn(async move {
                if let Err(error) = session.decide(id, "caller").await {
                    tracing::debug!(%error, "a call that is too late may still run");
                }
            });
        }
        TryOutcome::Answered(Err(self.call.timeout()))
    }

    /// Cancels the call at the callee's shim, which stops waiting or sending. [`Network`](super::Network) does the same
    /// when a shim accepts the call later.
    pub(super) fn cancel(&mut self) {
        if self.settled {
            return;
        }
        // Later answers belong to no call.
        self.inner.pending.remove(self.id);
        while let Ok(answer) = self.answers.try_recv() {
            self.callee = Some(answer.from);
        }
        if let Some(callee) = self.callee.take() {
            self.inner.cancel(self.session, &callee, self.id);
        }
    }

    /// Handles an answer; `None` if others follow.
    async fn take(&mut self, mut answer: Answer) -> Option<TryOutcome> {
        self.callee = Some(answer.from.clone());
        let payload = answer.payload.take().unwrap_or_default();
        let refused = match answer.kind.enum_value() {
            Ok(AnswerKind::ANSWER_ENDED) => false,
            Ok(AnswerKind::ANSWER_REFUSED) => true,
            _ => return None,
        };
        if answer.errno == 0 && !refused {
            let response = self.response(payload).await?;
            self.forget();
            let metadata = answer.outcome().metadata;
            return Some(TryOutcome::Answered(
                response.map(|payload| CallResponse { payload, metadata }),
            ));
        }
        self.forget();
        self.settled = true;
        Some(ended(&answer, &payload.inline, &self.call.target))
    }

    /// The announced response; `None` if the callee's shim withdrew it and announces it again.
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
        let taking = self.inner.claims.receive(self.session, &claim, max);
        let taking = timeout_at(self.call.deadline, taking);
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
                        Err(self.call.unknown(Break::Response { error: error.to_string() }))
                    }
                    Err(_elapsed) => {
                        self.inner.claims.refuse(self.session, &claim).await;
                        Err(self.call.timeout())
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

    /// True if the callee's shim withdrew the response: Redis may have refused a chunk but stored its announcement.
    async fn is_withdrawn(&mut self) -> bool {
        let until = self.call.deadline.min(Instant::now() + WITHDRAWN_MAX);
        while let Ok(Some(answer)) = timeout_at(until, self.answers.recv()).await {
            if answer.kind.enum_value() == Ok(AnswerKind::ANSWER_WITHDRAWN) {
                return true;
            }
        }
        false
    }

    fn too_large(&self, length: u64) -> CallError {
        let what = format!("response of {}", self.call.target);
        CallError::too_large(&what, length, self.caller.max_payload)
    }

    pub(super) fn message(&self, payload: network::Payload) -> Call {
        let reply_to = self.inner.replies.clone();
        Call { reply_to, ..call_message(self.inner, self.caller, self.call, self.id, payload) }
    }

    fn instance(&self) -> String {
        format!("instance {} on node {}", self.location.instance, self.location.node)
    }
}

/// The message of a try, without what depends on its path.
pub(super) fn call_message(
    inner: &Inner,
    caller: &BridgeCaller,
    call: &OutgoingCall,
    id: TryId,
    payload: network::Payload,
) -> Call {
    let left = call.deadline.saturating_duration_since(Instant::now());
    let BridgeCaller { identity, workflow, instance, .. } = caller;
    let from = network::Caller::of(identity, workflow, instance, &inner.node);
    Call {
        version: CALL_VERSION,
        try_id: id.0.to_vec(),
        caller: Some(from).into(),
        call_id: call.id.0.to_vec(),
        target: call.target.clone(),
        remaining_us: remaining::encode(Some(left)),
        traceparent: call.traceparent.clone(),
        tracestate: call.tracestate.clone(),
        attempt: call.attempt,
        run: call.run.clone(),
        join: call.join.clone().into(),
        metadata: call.metadata.clone(),
        max_head: call.max_head,
        payload: Some(payload).into(),
        ..Call::default()
    }
}

/// How a try has ended that was refused, or whose callee answered an error with this message.
pub(super) fn ended(answer: &Answer, message: &[u8], target: &str) -> TryOutcome {
    let refused = answer.kind.enum_value() == Ok(AnswerKind::ANSWER_REFUSED);
    let message = String::from_utf8_lossy(message).into_owned();
    let error = CallError::from_wire(answer.outcome(), message, target);
    match error {
        error @ CallError::Unreachable { .. } => {
            TryOutcome::NotAccepted(Retry::when(answer.later), error)
        }
        error @ CallError::Overloaded { .. } if refused => {
            TryOutcome::NotAccepted(Retry::when(answer.later), error)
        }
        error => TryOutcome::Answered(Err(error)),
    }
}
