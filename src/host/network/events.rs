//! Messages on their way in: the shim of any instance takes them from the function's stream, and from the streams that
//! are its triggers, and has them handled. Runs in the shim daemon.
//!
//! A message is done after its handler returned. It may be handled more than once: its handler failed, or its end could
//! not be recorded.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, interval, sleep, timeout};

use super::entries::Invocation;
use super::instance::Connection;
use super::{CallResponse, Inner, Network};
use cwasi_config::triggers::Trigger;
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::selection::may_call;
use cwasi_modes::CallError;
use cwasi_networked::streams::ends::Ended;
use cwasi_networked::streams::{self, StreamEntry, StreamReader};
use cwasi_networked::{NetworkError, RedisSession};
use cwasi_wire::envelope::Request;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::{Event, decode};
use cwasi_wire::remaining;

/// Messages that one instance handles at a time, of all its streams.
pub(super) const HANDLED_MAX: usize = 4;
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

/// A stream that an instance reads.
#[derive(Debug)]
pub(super) struct Source {
    reader: StreamReader,
    /// `None`: the function's one-way messages.
    trigger: Option<Trigger>,
}

impl Source {
    /// The one-way messages of a function.
    pub(super) fn messages(function: &Identity) -> Self {
        Self { reader: StreamReader::of_messages(function), trigger: None }
    }

    /// A stream that is a trigger of a function; `None` for one that is no stream.
    pub(super) fn of(trigger: &Trigger, function: &Identity) -> Option<Self> {
        let Trigger::RedisStream(stream) = trigger else { return None };
        let reader = StreamReader::of_trigger(function, stream);
        Some(Self { reader, trigger: Some(trigger.clone()) })
    }

    pub(super) const fn reader(&self) -> &StreamReader {
        &self.reader
    }
}

impl Network {
    /// Handles the messages of one stream in an instance, until `stopped`. `handlers` is that of all its streams.
    pub(super) async fn consume_until(
        self,
        record: Record,
        source: Source,
        handlers: Arc<Semaphore>,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let inner = Arc::clone(&self.inner);
        let consumer = Arc::new(Consumer { inner, record, source, handlers });
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
            tracing::info!(stream = consumer.stream(), reason, "messages are taken again soon");
            tokio::select! {
                _ = &mut stopped => return,
                () = sleep(RECLAIM_EVERY) => {}
            }
        }
    }
}

/// Who sent a one-way message, if that can be read.
fn sender_of(entry: &StreamEntry) -> Option<Identity> {
    let event: Event = decode(entry.envelope()).ok()?;
    Some(event.caller.get_or_default().identity())
}

struct Consumer {
    inner: Arc<Inner>,
    record: Record,
    source: Source,
    handlers: Arc<Semaphore>,
}

/// The last search for messages that a dead consumer left: when, and where the next one begins.
struct Reclaimed {
    at: Instant,
    cursor: String,
}

impl Consumer {
    const fn reader(&self) -> &StreamReader {
        &self.source.reader
    }

    fn stream(&self) -> &str {
        self.reader().key()
    }

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
                    let (function, stream) = (&self.record.identity, self.stream());
                    tracing::warn!(%function, stream, command, reason, "messages cannot be taken");
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
        let free = self.free_handlers().await;
        let node = &self.inner.node;
        let mut entries = Vec::new();
        if reclaimed.at.elapsed() >= RECLAIM_EVERY {
            reclaimed.at = Instant::now();
            self.reader().prolong(session, self.inner.limits.kept).await?;
            let (idle, cursor) = (RECLAIM_IDLE, &mut reclaimed.cursor);
            entries = self.reader().reclaim(session, node, idle, free.len(), cursor).await?;
        }
        if entries.is_empty() {
            entries = self.reader().next(session, node, free.len()).await?;
        }
        let count = entries.len();
        for (entry, handler) in entries.into_iter().zip(free) {
            let (consumer, session) = (Arc::clone(self), session.clone());
            tokio::spawn(async move {
                consumer.handle(&session, entry).await;
                drop(handler);
            });
        }
        Ok(count)
    }

    /// The handlers that are free now, at least one: other instances have the messages for which there is none.
    async fn free_handlers(&self) -> Vec<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        let first = Arc::clone(&self.handlers).acquire_owned().await;
        let more = std::iter::from_fn(|| Arc::clone(&self.handlers).try_acquire_owned().ok());
        first.into_iter().chain(more).collect()
    }

    /// Handles one message and records its end. Without a record, any instance takes it again.
    async fn handle(&self, session: &RedisSession, entry: StreamEntry) {
        let attempt = self.reader().deliveries(session, &entry.id).await.unwrap_or(1);
        let counts = &self.inner.trigger_counts;
        let open = self.source.trigger.as_ref().map(|it| counts.begin(it, &self.record));
        let traceparent = open.as_ref().map(|open| open.traceparent()).unwrap_or_default();
        let invocation = self.read(&entry);
        let length = invocation.as_ref().map_or(0, |it| it.payload.len());
        let running = timeout(HANDLE_MAX, self.run(invocation, attempt, traceparent));
        let keeping = async {
            loop {
                sleep(KEEP_EVERY).await;
                if self.reader().keep(session, &self.inner.node, &entry.id).await.is_err() {
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
        if let Some(open) = open {
            open.end(length, ended.as_ref().map(|_| ()));
        }
        let recorded = match ended {
            Ok(_) => {
                let sender = sender_of(&entry);
                self.reader().done(session, self.ended(sender.as_ref()), &entry).await
            }
            Err(error) => self.failed(session, &entry, attempt, &error).await,
        };
        if let Err(error) = recorded {
            tracing::warn!(stream = self.stream(), id = entry.id, %error, "a message will be handled again");
        }
    }

    const fn ended<'a>(&'a self, sender: Option<&'a Identity>) -> Ended<'a> {
        Ended { callee: &self.record.identity, sender }
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
        let hopeless = matches!(
            error,
            CallError::Refused { .. } | CallError::Invalid { .. } | CallError::TooLarge { .. }
        );
        if !hopeless && (not_run || attempt < ATTEMPTS_MAX) {
            tracing::info!(%function, id, attempt, %error, "a message failed and stays in its stream");
            if not_run {
                let node = &self.inner.node;
                self.reader().uncount(session, node, (id, attempt)).await?;
            }
            return Ok(());
        }
        tracing::warn!(%function, id, attempt, %error, "a message goes to the dead letters");
        let sender = sender_of(entry);
        let ended = self.ended(sender.as_ref());
        self.reader().dead_letter(session, ended, entry, &error.to_string()).await
    }

    fn read(&self, entry: &StreamEntry) -> Result<Invocation, CallError> {
        match &self.source.trigger {
            None => Invocation::of_message(entry, &self.record),
            Some(trigger) => Invocation::of_entry(entry, trigger, &self.record, &self.inner.node),
        }
    }

    /// Runs the handler. `traceparent` is that of a trigger, whose messages have none.
    async fn run(
        &self,
        invocation: Result<Invocation, CallError>,
        attempt: u64,
        traceparent: String,
    ) -> Result<CallResponse, CallError> {
        let invocation = invocation?;
        let (connection, record) = self.connect(&invocation)?;
        let mut request = Request {
            remaining_us: remaining::encode(Some(HANDLE_MAX)),
            attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
            ..invocation.request
        };
        if !traceparent.is_empty() {
            request.traceparent = traceparent;
        }
        connection.run(&record, &request, invocation.payload).await
    }

    /// Connects to the instance that handles a message. An instance of the sender's pod or workflow on this host
    /// comes first, as for calls: another may be of another version.
    fn connect(&self, invocation: &Invocation) -> Result<(Connection, Record), CallError> {
        let (callee, Invocation { caller, group, request, .. }) =
            (&self.record.identity, invocation);
        let own = |record: &Record| !group.is_empty() && record.group == *group;
        if !group.is_empty() && !own(&self.record) {
            let records = self.inner.registry.instances(callee).unwrap_or_default();
            let may = |record: &Record| may_call(&caller.identity(), callee, &record.allow);
            for record in records.into_iter().filter(|record| own(record) && may(record)) {
                match Connection::open(&record, caller, &request.target) {
                    Ok(connection) => return Ok((connection, record)),
                    Err(error) => {
                        tracing::debug!(instance = record.instance, %error, "another handles it");
                    }
                }
            }
        }
        let connection = Connection::open(&self.record, caller, &request.target)?;
        Ok((connection, self.record.clone()))
    }
}
