//! Announces this daemon's instances to other nodes while they run. Runs in the shim daemon.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, interval, timeout};

use super::{Inner, Network};
use cwasi_coordinator::registry::Record;
use cwasi_networked::{RedisSession, instance_channel, locations};
use cwasi_wire::network::Location;

/// Longest time that the start or end of an instance waits for Redis.
const ANNOUNCE_MAX: Duration = Duration::from_secs(1);

/// Stops an instance's two tasks: calls and messages.
type ServedInstances = std::collections::HashMap<String, [oneshot::Sender<()>; 2]>;

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
        let (stop, stopped) = oneshot::channel();
        let (stop_messages, no_messages) = oneshot::channel();
        let (sender, announced) = oneshot::channel();
        self.inner.served().insert(record.instance.clone(), [stop, stop_messages]);
        tokio::spawn(self.clone().consume_until(record.clone(), no_messages));
        tokio::spawn(self.clone().serve_until(record, stopped, sender));
        if timeout(ANNOUNCE_MAX, announced).await.is_err() {
            tracing::warn!(
                "an instance is not announced to other nodes yet: Redis is away, or does not take it"
            );
        }
    }

    /// Withdraws an instance. After it returns, other nodes no longer call it, unless Redis is away.
    pub async fn withdraw(&self, record: &Record) {
        let Some(stop) = self.inner.served().remove(&record.instance) else { return };
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
        let location = Location {
            identity: record.identity.clone(),
            node: self.inner.node.clone(),
            instance: record.instance.clone(),
            allow: record.allow.clone(),
            max_payload: record.max_payload,
            http: record.http,
        };
        let mut listener = self.inner.link.listen(&instance_channel(&record.instance)).await;
        let mut announced = Some(announced);
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
