//! One-way messages (`emit`): the caller's shim stores them in the callee's stream, the shim of any instance handles
//! them. Runs in the shim daemon.
//!
//! A message is acknowledged to its caller when Redis has it, and leaves the stream after its handler returned. It
//! may be handled more than once: its handler failed, or its end could not be recorded.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout, timeout_at};

use super::calls::{PATIENCE, PAUSE_MAX, PAUSE_MIN};
use super::instance::Connection;
use super::{Answered, BridgeCaller, Inner, Network};
use crate::coordinator::registry::Record;
use crate::dispatcher::selection::{may_call, refusal};
use crate::modes::causes::{Break, Invalid, Unreached};
use crate::modes::networked::claims::shaped;
use crate::modes::networked::streams::{self, StreamEntry};
use crate::modes::networked::{Backoff, NetworkError, RedisSession};
use crate::modes::{CallError, Overload, Payload, TooLarge};
use crate::wire::envelope::{Metadata, Request};
use crate::wire::ids::CallId;
use crate::wire::network::{self, Event, KEPT_VERSION, decode, encode};
use crate::wire::remaining;
use crate::wire::trace_headers::TraceHeaders;

/// Largest payload of a one-way message in bytes: it stays in Redis's memory until it is handled.
pub const EVENT_MAX: u64 = 1 << 20;
/// Messages that one instance handles at a time.
const HANDLED_MAX: usize = 4;
/// Interval at which an instance polls an empty stream.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Interval at which it looks for messages that others left.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a shim renews its claim on a message.
const KEEP_EVERY: Duration = Duration::from_secs(2);
/// Age of an unrenewed claim at which another instance takes the message; also the pause after a failure.
const RECLAIM_IDLE: Duration = Duration::from_secs(6);
/// Longest run of a handler.
const HANDLE_MAX: Duration = Duration::from_secs(60);
/// Failed attempts after which a message becomes a dead letter.
pub const ATTEMPTS_MAX: u64 = 5;

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
        let unreachable = |error: NetworkError| CallError::Unreachable {
            target: target.to_owned(),
            cause: Unreached::Unsent { error: error.to_string() },
        };
        if payload.len() > EVENT_MAX {
            let (target, length) = (target.to_owned(), payload.len());
            return Err(TooLarge::Message { target, length, limit: EVENT_MAX }.into());
        }
        let session = self.inner.link.session(deadline).await.map_err(unreachable)?;
        let stream = streams::stream_key(&caller.callee);
        let waiting = timeout_at(deadline, streams::length(&session, &stream)).await;
        let waiting =
            waiting.map_err(|_elapsed| CallError::Timeout { target: target.to_owned() })?;
        if waiting.map_err(unreachable)? >= streams::ENTRIES_MAX {
            let (target, limit) = (target.to_owned(), streams::ENTRIES_MAX);
            return Err(Overload::Messages { target, limit }.into());
        }
        let bytes = payload.into_vec().map_err(|error| CallError::Internal {
            message: format!("message to {target}: {error}"),
        })?;
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
            metadata,
            ..Event::default()
        };
        let unknown = |cause| CallError::Broken { target: target.to_owned(), cause };
        match timeout_at(deadline, append(&session, &stream, &encode(&event), &bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.is_refusal() => Err(unreachable(error)),
            Ok(Err(error)) => Err(unknown(Break::Unconfirmed { error: error.to_string() })),
            Err(_elapsed) => Err(unknown(Break::Silent)),
        }
    }

    /// Handles the messages of a function in one of its instances, until `stopped`.
    pub(super) async fn consume_until(self, record: Record, mut stopped: oneshot::Receiver<()>) {
        let consumer = Consumer {
            inner: Arc::clone(&self.inner),
            stream: streams::stream_key(&record.identity),
            record,
            handlers: Arc::new(Semaphore::new(HANDLED_MAX)),
        };
        let consumer = Arc::new(consumer);
        loop {
            let taking = async {
                let session = self.inner.link.session_after(0).await;
                tokio::select! {
                    error = consumer.consume(&session) => error.to_string(),
                    reason = self.inner.link.ended(session.epoch) => reason,
                }
            };
            let reason = tokio::select! {
                _ = &mut stopped => return,
                reason = taking => reason,
            };
            tracing::info!(stream = consumer.stream, reason, "messages are taken again soon");
            tokio::select! {
                _ = &mut stopped => return,
                () = sleep(RECLAIM_EVERY) => {}
            }
        }
    }
}

/// Appends a message; waits a little while Redis refuses it.
async fn append(
    session: &RedisSession,
    stream: &str,
    envelope: &[u8],
    payload: &[u8],
) -> Result<(), NetworkError> {
    let until = Instant::now() + PATIENCE;
    let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    loop {
        let appended = streams::append(session, stream, envelope, payload).await;
        let again = Instant::now() + backoff.pause();
        match appended {
            Err(error) if error.is_refusal() && error.is_transient() && again < until => {
                sleep_until(again).await;
            }
            appended => return appended,
        }
    }
}

struct Consumer {
    inner: Arc<Inner>,
    record: Record,
    stream: String,
    handlers: Arc<Semaphore>,
}

/// The last look for messages that a dead consumer left: when, and where the next one begins.
struct Reclaimed {
    at: Instant,
    cursor: String,
}

impl Consumer {
    /// Takes messages until Redis fails.
    async fn consume(self: &Arc<Self>, session: &RedisSession) -> NetworkError {
        let mut look = interval(LOOK_EVERY);
        let mut reclaimed = Reclaimed { at: Instant::now(), cursor: streams::BEGINNING.to_owned() };
        loop {
            match self.take(session, &mut reclaimed).await {
                Ok(0) => {
                    look.tick().await;
                }
                Ok(_) => {}
                // A refusal may be temporary: a removed group is created again.
                Err(NetworkError::Command { command, reason }) => {
                    tracing::warn!(command, reason, "messages cannot be taken");
                    sleep(RECLAIM_EVERY).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Starts handlers for the waiting messages; returns their number.
    async fn take(
        self: &Arc<Self>,
        session: &RedisSession,
        reclaimed: &mut Reclaimed,
    ) -> Result<usize, NetworkError> {
        // The semaphore is never closed. At least one handler is free; otherwise messages are left to other
        // instances.
        let Ok(first) = Arc::clone(&self.handlers).acquire_owned().await else { return Ok(0) };
        drop(first);
        let room = self.handlers.available_permits().max(1);
        let node = &self.inner.node;
        let mut entries = Vec::new();
        if reclaimed.at.elapsed() >= RECLAIM_EVERY {
            reclaimed.at = Instant::now();
            let cursor = &mut reclaimed.cursor;
            entries =
                streams::reclaim(session, &self.stream, node, RECLAIM_IDLE, room, cursor).await?;
        }
        if entries.is_empty() {
            entries = streams::next(session, &self.stream, node, room).await?;
        }
        let count = entries.len();
        for entry in entries {
            let Ok(permit) = Arc::clone(&self.handlers).acquire_owned().await else { break };
            let (consumer, session) = (Arc::clone(self), session.clone());
            tokio::spawn(async move {
                consumer.handle(&session, entry).await;
                drop(permit);
            });
        }
        Ok(count)
    }

    /// Handles one message and records its end. Without a record, any instance takes it again.
    async fn handle(&self, session: &RedisSession, entry: StreamEntry) {
        let attempt = streams::deliveries(session, &self.stream, &entry.id).await.unwrap_or(1);
        let running = timeout(HANDLE_MAX, self.run(&entry, attempt));
        let keeping = async {
            loop {
                sleep(KEEP_EVERY).await;
                if streams::keep(session, &self.stream, &self.inner.node, &entry.id).await.is_err()
                {
                    return;
                }
            }
        };
        let ended = tokio::select! {
            ended = running => ended.unwrap_or_else(|_elapsed| {
                Err(CallError::Timeout { target: self.record.identity.function.clone() })
            }),
            () = async { keeping.await; std::future::pending().await } => return,
        };
        let noted = match ended {
            Ok(_) => streams::done(session, &self.stream, &entry.id).await,
            Err(error) => self.failed(session, &entry, attempt, &error).await,
        };
        if let Err(error) = noted {
            tracing::warn!(stream = self.stream, id = entry.id, %error, "a message will be handled again");
        }
    }

    async fn failed(
        &self,
        session: &RedisSession,
        entry: &StreamEntry,
        attempt: u64,
        error: &CallError,
    ) -> Result<(), NetworkError> {
        let (function, id) = (&self.record.identity, &entry.id);
        let not_run = matches!(error, CallError::Unreachable { .. } | CallError::Overloaded { .. });
        let hopeless = matches!(error, CallError::Refused { .. } | CallError::Invalid { .. });
        if !hopeless && (not_run || attempt < ATTEMPTS_MAX) {
            tracing::info!(%function, id, attempt, %error, "a message failed and stays in its stream");
            return Ok(());
        }
        tracing::warn!(%function, id, attempt, %error, "a message goes to the dead letters");
        streams::bury(session, function, entry, &error.to_string()).await
    }

    async fn run(&self, entry: &StreamEntry, attempt: u64) -> Result<Answered, CallError> {
        let invalid =
            |error: &dyn std::error::Error| Invalid::Malformed { error: error.to_string() };
        let event: Event = decode(&entry.envelope).map_err(|error| invalid(&error))?;
        let caller = event.caller.get_or_default();
        if !may_call(&caller.identity(), &self.record.identity, &self.record.allow) {
            let (caller, callee) = (caller.identity(), &self.record.identity);
            return Err(refusal(&caller, callee, &self.record.allow).into());
        }
        let payload = shaped(entry.payload.clone()).map_err(|error| invalid(&error))?;
        let (connection, record) = self.connect(&event, caller)?;
        let request = Request {
            call_id: event.event_id.clone(),
            target: event.target.clone(),
            remaining_us: remaining::encode(Some(HANDLE_MAX)),
            traceparent: event.traceparent.clone(),
            tracestate: event.tracestate.clone(),
            metadata: event.metadata.clone(),
            attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
            ..Request::default()
        };
        connection.run(&record, &request, payload).await
    }

    /// Connects to the instance that handles a message. An instance of the sender's pod or workflow on this host
    /// comes first, as for calls: another may be of another version.
    fn connect(
        &self,
        event: &Event,
        caller: &network::Caller,
    ) -> Result<(Connection, Record), CallError> {
        let callee = &self.record.identity;
        let own = |record: &Record| !event.group.is_empty() && record.group == event.group;
        if !event.group.is_empty() && !own(&self.record) {
            let records = self.inner.registry.instances(callee).unwrap_or_default();
            let may = |record: &Record| may_call(&caller.identity(), callee, &record.allow);
            for record in records.into_iter().filter(|record| own(record) && may(record)) {
                match Connection::open(&record, caller, &event.target) {
                    Ok(connection) => return Ok((connection, record)),
                    Err(error) => {
                        tracing::debug!(instance = record.instance, %error, "another handles it");
                    }
                }
            }
        }
        let connection = Connection::open(&self.record, caller, &event.target)?;
        Ok((connection, self.record.clone()))
    }
}
