//! One-way messages on their way in: the shim of any instance takes them from the function's stream and has them
//! handled. Runs in the shim daemon.
//!
//! A message leaves the stream after its handler returned. It may be handled more than once: its handler failed, or its
//! end could not be recorded.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, interval, sleep, timeout};

use super::instance::Connection;
use super::{CallResponse, Inner, Network};
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::selection::{may_call, refusal};
use cwasi_modes::CallError;
use cwasi_modes::causes::Invalid;
use cwasi_networked::claims::shaped;
use cwasi_networked::streams::{self, StreamEntry};
use cwasi_networked::{NetworkError, RedisSession, stream_key};
use cwasi_wire::envelope::Request;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::{self, Event, decode};
use cwasi_wire::remaining;

/// Messages that one instance handles at a time.
const HANDLED_MAX: usize = 4;
/// Interval at which an instance polls an empty stream.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// Interval at which it looks for messages that others left, and keeps the stream from expiring.
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
    /// Handles the messages of a function in one of its instances, until `stopped`.
    pub(super) async fn consume_until(self, record: Record, mut stopped: oneshot::Receiver<()>) {
        let consumer = Consumer {
            inner: Arc::clone(&self.inner),
            stream: stream_key(&record.identity),
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

/// Who sent an entry, if that can be read.
fn sender_of(entry: &StreamEntry) -> Option<Identity> {
    let event: Event = decode(&entry.envelope).ok()?;
    Some(event.caller.get_or_default().identity())
}

struct Consumer {
    inner: Arc<Inner>,
    record: Record,
    stream: String,
    handlers: Arc<Semaphore>,
}

/// The last search for messages that a dead consumer left: when, and where the next one begins.
struct Reclaimed {
    at: Instant,
    cursor: String,
}

impl Consumer {
    /// Takes messages until Redis fails.
    async fn consume(self: &Arc<Self>, session: &RedisSession) -> NetworkError {
        let mut poll = interval(POLL_EVERY);
        let mut reclaimed = Reclaimed { at: Instant::now(), cursor: streams::BEGINNING.to_owned() };
        loop {
            match self.take(session, &mut reclaimed).await {
                Ok(0) => {
                    poll.tick().await;
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
            streams::prolong(session, &self.stream, self.inner.limits.kept).await?;
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
        let recorded = match ended {
            Ok(_) => {
                let (callee, sender) = (&self.record.identity, sender_of(&entry));
                streams::done(session, callee, sender.as_ref(), &entry).await
            }
            Err(error) => self.failed(session, &entry, attempt, &error).await,
        };
        if let Err(error) = recorded {
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
        let sender = sender_of(entry);
        streams::dead_letter(session, function, sender.as_ref(), entry, &error.to_string()).await
    }

    async fn run(&self, entry: &StreamEntry, attempt: u64) -> Result<CallResponse, CallError> {
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
