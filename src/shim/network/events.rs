//! One-way messages (`emit`): put into the callee's stream by the caller's shim, handled by any instance's.
//!
//! A message is acknowledged to its caller when Redis has it, and leaves the stream when a handler returned.
//! In between it may be handled more than once: its handler failed, or was lost before it could be noted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout, timeout_at};

use super::calls::{PATIENCE, PAUSE_MAX, PAUSE_MIN};
use super::instance::Connection;
use super::{Caller, Inner, Network};
use crate::coordinator::registry::Record;
use crate::dispatcher::selection::{may_call, refusal};
use crate::modes::networked::claims::shaped;
use crate::modes::networked::streams::{self, Entry};
use crate::modes::networked::{Backoff, NetworkError, Session};
use crate::modes::{CallError, Overload, Payload, TooLarge};
use crate::sys::random::bytes16;
use crate::wire::envelope::Request;
use crate::wire::network::{self, Event, KEPT_VERSION, decode, encode};
use crate::wire::remaining;

/// Largest payload of a one-way message in bytes: it stays in Redis' memory until it is handled.
pub const EVENT_MAX: u64 = 1 << 20;
/// Messages that one instance handles at a time.
const HANDLED_MAX: usize = 4;
/// How often an instance looks for new messages when there were none.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it looks for messages that others left.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);
/// How often a shim says that a message is still being handled.
const KEEP_EVERY: Duration = Duration::from_secs(2);
/// After this long without such a word, another instance takes it; also the pause after a failure.
const RECLAIM_IDLE: Duration = Duration::from_secs(6);
/// Longest time that a handler may take.
const HANDLE_MAX: Duration = Duration::from_secs(60);
/// A message whose handler failed this often goes to the dead letters.
pub const ATTEMPTS_MAX: u64 = 5;

impl Network {
    /// Puts a message into `caller.callee`'s stream; when this returns, it will be handled at least once.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] and others: it will not be. [`CallError::Broken`]: not known.
    pub async fn emit(
        &self,
        caller: &Caller,
        target: &str,
        traceparent: &str,
        payload: Payload,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let unreachable = |error: NetworkError| CallError::Unreachable {
            target: target.to_owned(),
            message: error.to_string(),
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
            event_id: bytes16().to_vec(),
            caller: Some(from).into(),
            target: target.to_owned(),
            traceparent: traceparent.to_owned(),
            group: caller.group.clone(),
            ..Event::default()
        };
        let unknown = |message: String| CallError::Broken { target: target.to_owned(), message };
        match timeout_at(deadline, append(&session, &stream, &encode(&event), &bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.is_refusal() => Err(unreachable(error)),
            Ok(Err(error)) => Err(unknown(format!("not known whether Redis has it: {error}"))),
            Err(_elapsed) => Err(unknown("Redis did not confirm it in time".to_owned())),
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

/// Appends a message; waits a little while Redis refuses it for now.
async fn append(
    session: &Session,
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

impl Consumer {
    /// Takes messages until Redis fails.
    async fn consume(self: &Arc<Self>, session: &Session) -> NetworkError {
        let mut look = interval(LOOK_EVERY);
        let mut reclaimed = Instant::now();
        loop {
            match self.take(session, &mut reclaimed).await {
                Ok(0) => {
                    look.tick().await;
                }
                Ok(_) => {}
                // A refusal may pass: a group that was removed is made again.
                Err(NetworkError::Command { command, reason }) => {
                    tracing::warn!(command, reason, "messages cannot be taken");
                    sleep(RECLAIM_EVERY).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Begins to handle what there is, and returns how many messages that were.
    async fn take(
        self: &Arc<Self>,
        session: &Session,
        reclaimed: &mut Instant,
    ) -> Result<usize, NetworkError> {
        // Never closed. One free handler at least; whoever waits longer leaves messages to others.
        let Ok(first) = Arc::clone(&self.handlers).acquire_owned().await else { return Ok(0) };
        drop(first);
        let room = self.handlers.available_permits().max(1);
        let node = &self.inner.node;
        let mut entries = Vec::new();
        if reclaimed.elapsed() >= RECLAIM_EVERY {
            *reclaimed = Instant::now();
            entries = streams::reclaim(session, &self.stream, node, RECLAIM_IDLE, room).await?;
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

    /// Handles one message and notes its end. One that stays pending is taken again by whoever looks.
    async fn handle(&self, session: &Session, entry: Entry) {
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
        session: &Session,
        entry: &Entry,
        attempt: u64,
        error: &CallError,
    ) -> Result<(), NetworkError> {
        let (function, id) = (&self.record.identity, &entry.id);
        let not_run = matches!(error, CallError::Unreachable { .. } | CallError::Overloaded { .. });
        let hopeless = matches!(error, CallError::Refused { .. } | CallError::Invalid { .. });
        if !hopeless && (not_run || attempt < ATTEMPTS_MAX) {
            tracing::info!(%function, id, attempt, %error, "a message stays");
            return Ok(());
        }
        tracing::warn!(%function, id, attempt, %error, "a message goes to the dead letters");
        streams::bury(session, function, entry, &error.to_string()).await
    }

    async fn run(&self, entry: &Entry, attempt: u64) -> Result<Payload, CallError> {
        let invalid =
            |error: &dyn std::error::Error| CallError::Invalid { message: error.to_string() };
        let event: Event = decode(&entry.envelope).map_err(|error| invalid(&error))?;
        let caller = event.caller.get_or_default();
        if !may_call(&caller.identity(), &self.record.identity, &self.record.allow) {
            let message = refusal(&caller.identity(), &self.record.identity, &self.record.allow);
            return Err(CallError::Refused { message });
        }
        let payload = shaped(entry.payload.clone()).map_err(|error| invalid(&error))?;
        let (connection, record) = self.connect(&event, caller)?;
        let request = Request {
            call_id: event.event_id.clone(),
            target: event.target.clone(),
            remaining_us: remaining::encode(Some(HANDLE_MAX)),
            traceparent: event.traceparent.clone(),
            attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
            ..Request::default()
        };
        connection.run(&record, &request, payload).await
    }

    /// Connects to the instance that handles a message. As with calls, one of the sender's own pod or workflow comes
    /// first, if there is one on this host: another may be of another version.
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
