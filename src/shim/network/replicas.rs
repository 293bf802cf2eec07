//! This daemon's instances on the network: announced while they run, heard, withdrawn at their end.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, interval, timeout};

use super::{Inner, Network};
use crate::coordinator::registry::Record;
use crate::modes::networked::{Session, instance_channel, locations};
use crate::wire::network::Location;

/// Longest time that the start or end of an instance waits for Redis to take note.
const NOTE_MAX: Duration = Duration::from_secs(1);

/// Ends of an instance's two tasks: calls and messages.
type Served = std::collections::HashMap<String, [oneshot::Sender<()>; 2]>;

impl Inner {
    fn served(&self) -> MutexGuard<'_, Served> {
        // Single insertions and removals: a panic elsewhere leaves it whole.
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Makes an instance callable from other nodes. Returns when Redis has taken note, or after a moment when
    /// it is away: then it is told when it returns.
    pub async fn serve(&self, record: Record) {
        let (stop, stopped) = oneshot::channel();
        let (stop_messages, no_messages) = oneshot::channel();
        let (told, announced) = oneshot::channel();
        self.inner.served().insert(record.instance.clone(), [stop, stop_messages]);
        tokio::spawn(self.clone().consume_until(record.clone(), no_messages));
        tokio::spawn(self.clone().serve_until(record, stopped, told));
        if timeout(NOTE_MAX, announced).await.is_err() {
            tracing::warn!(
                "an instance is not announced to other nodes yet: Redis is away, or does not take it"
            );
        }
    }

    /// Takes an instance back; nobody is sent to it any more when this returns, unless Redis is away.
    pub async fn withdraw(&self, record: &Record) {
        let Some(stop) = self.inner.served().remove(&record.instance) else { return };
        // Its task may have ended with the runtime.
        for stop in stop {
            let _ended = stop.send(());
        }
        let Ok(session) = self.inner.link.session_now() else { return };
        let withdrawing = locations::withdraw(&session, &record.identity, &record.instance);
        if !matches!(timeout(NOTE_MAX, withdrawing).await, Ok(Ok(()))) {
            tracing::debug!(instance = record.instance, "location expires instead");
        }
    }

    async fn serve_until(
        self,
        record: Record,
        mut stopped: oneshot::Receiver<()>,
        told: oneshot::Sender<()>,
    ) {
        let location = Location {
            identity: record.identity.clone(),
            node: self.inner.node.clone(),
            instance: record.instance.clone(),
            allow: record.allow.clone(),
            max_payload: record.max_payload,
        };
        let mut listener = self.inner.link.listen(&instance_channel(&record.instance)).await;
        let mut told = Some(told);
        let mut epoch = 0;
        let mut beat = interval(locations::HEARTBEAT);
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                session = self.inner.link.session_after(epoch) => {
                    epoch = session.epoch;
                    if announce(&session, &location).await
                        && let Some(told) = told.take()
                    {
                        // The start may have waited long enough.
                        let _waiting = told.send(());
                    }
                }
                _ = beat.tick() => {
                    if let Ok(session) = self.inner.link.session_now() {
                        announce(&session, &location).await;
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

/// False when Redis did not take it; it is told again with the next heartbeat.
async fn announce(session: &Session, location: &Location) -> bool {
    let announced = locations::announce(session, location).await;
    if let Err(error) = &announced {
        tracing::warn!(instance = location.instance, %error, "not announced to other nodes");
    }
    announced.is_ok()
}
