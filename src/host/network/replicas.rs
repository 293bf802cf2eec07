//! Announces this daemon's instances to other nodes while they run. Runs in the shim daemon.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, interval, timeout, timeout_at};

use super::events::{HANDLED_MAX, Source};
use super::{Inner, Network};
use cwasi_config::triggers::Trigger;
use cwasi_coordinator::registry::Record;
use cwasi_networked::{NetworkError, RedisSession, instance_channel, locations};
use cwasi_wire::network::Location;

/// Longest time that the start or end of an instance waits for Redis.
const ANNOUNCE_MAX: Duration = Duration::from_secs(1);

/// Stops an instance's tasks: calls, messages, and one for each trigger.
pub(super) type ServedInstances = HashMap<String, Vec<oneshot::Sender<()>>>;

/// Redis does not let a function have a trigger.
#[derive(Debug, thiserror::Error)]
#[error(
    "cwasi.triggers={trigger}: {source}; the user of redis_url needs the permission for this name, and the key of a \
     stream must hold nothing else"
)]
pub struct TriggerFault {
    pub trigger: Trigger,
    #[source]
    pub source: NetworkError,
}

impl Inner {
    fn served(&self) -> MutexGuard<'_, ServedInstances> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Makes an instance callable from other nodes. Returns when Redis has the announcement. If Redis is away,
    /// returns after a moment, and announces the instance later.
    pub async fn serve(&self, record: Record) {
        let (sender, announced) = oneshot::channel();
        let mut stops = Vec::new();
        let mut stopped = || {
            let (stop, stopped) = oneshot::channel();
            stops.push(stop);
            stopped
        };
        let handlers = Arc::new(Semaphore::new(HANDLED_MAX));
        let messages = Source::messages(&record.identity);
        let streams = record.triggers.iter().filter_map(|it| Source::of(it, &record.identity));
        for source in std::iter::once(messages).chain(streams) {
            let (network, handlers) = (self.clone(), Arc::clone(&handlers));
            tokio::spawn(network.consume_until(record.clone(), source, handlers, stopped()));
        }
        let is_channel = |it: &&Trigger| matches!(it, Trigger::RedisChannel(_));
        for channel in record.triggers.iter().filter(is_channel) {
            let (network, record) = (self.clone(), record.clone());
            tokio::spawn(network.listen_until(record, channel.clone(), stopped()));
        }
        let calls = stopped();
        self.inner.served().insert(record.instance.clone(), stops);
        tokio::spawn(self.clone().serve_until(record, calls, sender));
        if timeout(ANNOUNCE_MAX, announced).await.is_err() {
            tracing::warn!(
                "an instance is not announced to other nodes yet: Redis is away, or does not take it"
            );
        }
    }

    /// Makes the groups in which an instance reads its triggers' streams, so that an entry of the moment after its
    /// start is read, and tries to listen to its channels. If Redis is away, the instance does so later.
    ///
    /// # Errors
    /// When Redis refuses: a key that is no stream, or a permission that is missing.
    pub async fn prepare(&self, record: &Record) -> Result<(), TriggerFault> {
        let until = Instant::now() + ANNOUNCE_MAX;
        for trigger in &record.triggers {
            match timeout_at(until, self.prepare_one(record, trigger, until)).await {
                Ok(Err(source @ NetworkError::Command { .. })) => {
                    return Err(TriggerFault { trigger: trigger.clone(), source });
                }
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!(%trigger, "begins later: Redis is away, or does not take it");
                }
            }
        }
        Ok(())
    }

    async fn prepare_one(
        &self,
        record: &Record,
        trigger: &Trigger,
        until: Instant,
    ) -> Result<(), NetworkError> {
        let session = self.inner.link.session(until).await?;
        match Source::of(trigger, &record.identity) {
            Some(stream) => stream.reader().make_group(&session).await,
            None => self.inner.link.listen_to_others(trigger.name(), 1).await.map(drop),
        }
    }

    /// Withdraws an instance. After it returns, other nodes no longer call it, unless Redis is away.
    pub async fn withdraw(&self, record: &Record) {
        let Some(stop) = self.inner.served().remove(&record.instance) else { return };
        self.withdraw_direct(&record.instance);
        // The task may have ended with the runtime.
        for stop in stop {
            let _ended = stop.send(());
        }
        self.inner.occupied.remove(&record.instance);
        let Ok(session) = self.inner.link.session_now() else { return };
        let withdrawing = locations::withdraw(&session, &record.identity, &record.instance);
        if !matches!(timeout(ANNOUNCE_MAX, withdrawing).await, Ok(Ok(()))) {
            tracing::debug!(instance = record.instance, "location expires instead");
        }
    }

    async fn serve_until(
        self,
        record: Record,
        mut stopped: oneshot::Receiver<()>,
        announced: oneshot::Sender<()>,
    ) {
        let mut location = Location {
            identity: record.identity.clone(),
            node: self.inner.node.clone(),
            instance: record.instance.clone(),
            allow: record.allow.clone(),
            max_payload: record.max_payload,
            max_head: record.max_head,
            http: record.http,
            link: self.serve_direct(&record).await,
        };
        let mut listener = self.inner.link.listen(&instance_channel(&record.instance)).await;
        let mut announced = Some(announced);
        if !self.has_redis()
            && let Some(announced) = announced.take()
        {
            // Other nodes ask.
            let _waiting = announced.send(());
        }
        let mut epoch = 0;
        let mut beat = interval(locations::HEARTBEAT);
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                session = self.inner.link.session_after(epoch) => {
                    epoch = session.epoch;
                    if announce(&session, &location).await
                        && let Some(announced) = announced.take()
                    {
                        // The start may no longer wait.
                        let _waiting = announced.send(());
                    }
                }
                _ = beat.tick() => {
                    if location.link.is_none() {
                        location.link = self.serve_direct(&record).await;
                    }
                    if let Ok(session) = self.inner.link.session_now() {
                        announce(&session, &location).await;
                        self.report_occupied(&session, &record).await;
                    }
                }
                message = listener.next() => {
                    let Some(message) = message else { return };
                    self.deliver(&record, &message, Instant::now());
                }
            }
        }
    }
}

/// False if Redis did not take it; the next heartbeat repeats it.
async fn announce(session: &RedisSession, location: &Location) -> bool {
    let announced = locations::announce(session, location).await;
    if let Err(error) = &announced {
        tracing::warn!(instance = location.instance, %error, "not announced to other nodes");
    }
    announced.is_ok()
}
