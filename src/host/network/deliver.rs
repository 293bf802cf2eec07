//! Runs one network call in one of this daemon's instances; [`reply`](super::reply) answers it. Runs in the shim
//! daemon.
//!
//! The call is decided ([`RedisSession::decide`]) before it runs, so a given-up or duplicate call is dropped.
//! Afterwards its end is published, as long as its caller waits. A cancelled call frees its transfer slot; a running
//! function continues.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::instance::Connection;
use super::outgoing::CallResponse;
use super::pending::Cancellation;
use super::reply::{CallReply, Failure};
use super::{Inner, Network};
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::selection::{may_call, refusal};
use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::{CallError, Overload, Payload};
use cwasi_networked::RedisSession;
use cwasi_networked::session::Decision;
use cwasi_sys::clock::monotonic_ns;
use cwasi_wire::envelope::Request;
use cwasi_wire::ids::CallId;
use cwasi_wire::network::{self, Call, Claim, TryId, check_version, parse};
use cwasi_wire::remaining;
use cwasi_wire::trace::TraceContext;

/// Deadline of a call without one.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

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
        let wait = wait_of(&call);
        let delivery = Delivery {
            reply: CallReply {
                inner: Arc::clone(&self.inner),
                id,
                reply_to: call.reply_to.clone(),
                version: call.version,
                instance: record.instance.clone(),
                deadline: arrived + wait,
            },
            inner: Arc::clone(&self.inner),
            record: record.clone(),
            call,
        };
        tokio::spawn(delivery.run());
    }
}

struct Delivery {
    inner: Arc<Inner>,
    record: Record,
    call: Call,
    reply: CallReply,
}

impl Delivery {
    async fn run(mut self) {
        let deliveries = Arc::clone(&self.inner.deliveries);
        let Ok(_permit) = deliveries.try_acquire() else {
            let node = self.inner.node.clone();
            return self.reply.refuse(&Overload::Node { node }.into()).await;
        };
        let (call, connection) = match self.admit() {
            Ok(admitted) => admitted,
            Err(error) => return self.reply.refuse(&error).await,
        };
        let Ok(session) = self.inner.link.session_now() else { return };
        match session.decide(self.reply.id, &self.inner.replies).await {
            Ok(Decision::Ours) => tracing::debug!(%call, "call accepted"),
            Ok(Decision::Theirs(_)) => {
                tracing::debug!(%call, "given up by its caller");
                return;
            }
            // Undecided, so it does not run.
            Err(error) if error.is_refusal() => {
                let refusal = self.unreachable(&error);
                return self.reply.refuse_for_now(&session, error.is_transient(), &refusal).await;
            }
            Err(error) => {
                // It may be decided, so it must not run.
                tracing::warn!(%call, %error, "call dropped");
                return;
            }
        }
        let inner = Arc::clone(&self.inner);
        let cancelled = inner.incoming.watch(self.reply.id);
        let payload = self.call.payload.take().unwrap_or_default();
        // The caller gets the acceptance before the end: both travel on one connection, in order.
        let accepting = self.reply.accept(&session);
        let running = self.execute(&session, &connection, payload, &cancelled);
        let running = timeout_at(self.reply.deadline, running);
        let ((), ended) = tokio::join!(accepting, running);
        let ended = ended.unwrap_or_else(|_elapsed| {
            Err(CallError::Timeout { target: self.call.target.clone() }.into())
        });
        self.reply.end(ended, &cancelled).await;
    }

    /// This node cannot take the call.
    fn unreachable(&self, error: &dyn std::error::Error) -> CallError {
        unreachable(&self.call, &self.inner.node, error)
    }

    /// Checks the call before it is accepted, and connects to the instance.
    fn admit(&self) -> Result<(CallId, Connection), CallError> {
        let id = admit(&self.call, &self.record, &self.inner.node)?;
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
        cancelled: &Cancellation<'_>,
    ) -> Result<CallResponse, Failure> {
        let payload = match payload.claim.into_option() {
            None => Payload::Inline(payload.inline),
            Some(claim) => self.take(session, &claim, cancelled).await?,
        };
        let request = request_of(&self.call, self.reply.deadline);
        tokio::select! {
            ended = connection.run(&self.record, &request, payload) => Ok(ended?),
            // The instance forgets the request if no worker has it yet.
            () = cancelled.wait() => {
                let (target, cause) = (self.call.target.clone(), Break::Closed);
                Err(CallError::Broken { target, cause }.into())
            }
        }
    }

    /// Takes the call's payload, as long as its caller may still send it.
    async fn take(
        &self,
        session: &RedisSession,
        claim: &Claim,
        cancelled: &Cancellation<'_>,
    ) -> Result<Payload, Failure> {
        let not_run = |reason: &dyn std::fmt::Display, later| {
            let cause = Unreached::Payload { error: reason.to_string() };
            let error = CallError::Unreachable { target: self.call.target.clone(), cause };
            Failure { error, later }
        };
        let reason = tokio::select! {
            taken = self.inner.claims.receive(session, claim, self.record.max_payload) => {
                return taken.map_err(|error| not_run(&error, error.is_transient()));
            }
            () = cancelled.wait() => "its caller gave the call up",
            () = self.reply.abandoned(session) => "its caller's shim is gone",
        };
        tracing::debug!(call = %self.call, reason, "stopped taking a request");
        self.inner.claims.refuse(session, claim).await;
        Err(not_run(&reason, false))
    }
}

/// How long a call's caller waits.
pub(super) fn wait_of(call: &Call) -> Duration {
    call.remaining().unwrap_or(FOREVER).min(FOREVER)
}

/// Checks a call before it is accepted: version, caller, length of the payload.
///
/// # Errors
/// Why the instance does not take it.
pub(super) fn admit(call: &Call, record: &Record, node: &str) -> Result<CallId, CallError> {
    check_version(call).map_err(|error| unreachable(call, node, &error))?;
    let id = call.id().map_err(|error| unreachable(call, node, &error))?;
    let caller = call.caller.get_or_default().identity();
    if !may_call(&caller, &record.identity, &record.allow) {
        return Err(refusal(&caller, &record.identity, &record.allow).into());
    }
    let length = call.payload.get_or_default().length();
    if length > record.max_payload {
        let what = format!("payload for {}", call.target);
        return Err(CallError::too_large(&what, length, record.max_payload));
    }
    Ok(id)
}

fn unreachable(call: &Call, node: &str, error: &dyn std::error::Error) -> CallError {
    let cause = Unreached::Node { node: node.to_owned(), error: error.to_string() };
    CallError::Unreachable { target: call.target.clone(), cause }
}

/// What the instance gets of a call.
pub(super) fn request_of(call: &Call, deadline: Instant) -> Request {
    let left = deadline.saturating_duration_since(Instant::now());
    Request {
        call_id: call.call_id.clone(),
        target: call.target.clone(),
        remaining_us: remaining::encode(Some(left)),
        traceparent: call.traceparent.clone(),
        tracestate: call.tracestate.clone(),
        sent_mono_ns: arrival_of(&call.traceparent),
        attempt: call.attempt,
        run: call.run.clone(),
        join: call.join.clone(),
        metadata: call.metadata.clone(),
        max_head: call.max_head,
        ..Request::default()
    }
}

/// The moment at which a traced call arrived on this host: what it waits from here on is the callee's queue.
fn arrival_of(traceparent: &str) -> u64 {
    if TraceContext::is_sampled(traceparent) { monotonic_ns() } else { 0 }
}
