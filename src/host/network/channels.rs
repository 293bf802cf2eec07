//! Channels that are triggers: the shim of one instance listens, and stores each message as a one-way message for the
//! function. Runs in the shim daemon.
//!
//! Redis keeps no message of a channel: what comes while no shim listens is lost. A stored one is handled by any
//! instance, at least once.

use tokio::sync::oneshot;
use tokio::time::{Duration, Instant, interval, sleep, timeout};

use super::Network;
use super::entries::caller_of;
use cwasi_config::triggers::Trigger;
use cwasi_coordinator::registry::Record;
use cwasi_modes::Payload;
use cwasi_networked::channels::{ChannelLease, RENEW_EVERY};
use cwasi_networked::{NetworkError, RedisSession};
use cwasi_sys::random::bytes16;
use cwasi_wire::network::{self, Event, KEPT_VERSION};

/// Messages of one channel that wait to be stored; further ones are dropped.
const WAITING_MAX: usize = 64;
/// Interval at which an instance asks for a lease that another has.
const TAKE_EVERY: Duration = Duration::from_secs(1);
/// Longest time to store one message: shorter than the lease.
const STORE_MAX: Duration = Duration::from_secs(2);
/// Longest time to give a lease back.
const RELEASE_MAX: Duration = Duration::from_secs(1);

impl Network {
    /// Listens to a channel for an instance while it has the lease, until `stopped`.
    pub(super) async fn listen_until(
        self,
        record: Record,
        trigger: Trigger,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let lease = ChannelLease::new(&record.identity, trigger.name(), &record.instance);
        loop {
            let listening = async {
                let session = self.inner.link.session_after(0).await;
                tokio::select! {
                    ended = self.listen(&session, &lease, &record, &trigger) => ended.err(),
                    reason = self.inner.link.ended(session.epoch) => {
                        Some(NetworkError::Away { reason })
                    }
                }
            };
            let ended = tokio::select! {
                _ = &mut stopped => break,
                ended = listening => ended,
            };
            if let Some(error) = ended {
                let function = &record.identity;
                tracing::warn!(%function, %trigger, %error, "a channel is not listened to");
            }
            tokio::select! {
                _ = &mut stopped => break,
                () = sleep(TAKE_EVERY) => {}
            }
        }
        if let Ok(session) = self.inner.link.session_now() {
            // Otherwise it expires.
            let _released = timeout(RELEASE_MAX, lease.release(&session)).await;
        }
    }

    /// Stores messages while this instance has the lease; returns at once if another has it.
    async fn listen(
        &self,
        session: &RedisSession,
        lease: &ChannelLease,
        record: &Record,
        trigger: &Trigger,
    ) -> Result<(), NetworkError> {
        if !lease.take(session).await? {
            return Ok(());
        }
        let mut listener = self.inner.link.listen_to_others(trigger.name(), WAITING_MAX).await?;
        tracing::info!(function = %record.identity, %trigger, "listening");
        let mut renewal = interval(RENEW_EVERY);
        loop {
            tokio::select! {
                _ = renewal.tick() => {
                    let renewed = timeout(RENEW_EVERY, lease.renew(session)).await;
                    if !renewed.unwrap_or(Ok(false))? {
                        return Ok(());
                    }
                }
                message = listener.next() => {
                    let Some(message) = message else { return Ok(()) };
                    self.store_message(record, trigger, message).await;
                }
            }
        }
    }

    async fn store_message(&self, record: &Record, trigger: &Trigger, message: Vec<u8>) {
        let open = self.inner.trigger_counts.begin(trigger, record);
        let (function, length) = (&record.identity, message.len() as u64);
        let sender = caller_of(trigger, function);
        let caller = network::Caller::of(&sender, "", "", &self.inner.node);
        let event = Event {
            version: KEPT_VERSION,
            event_id: bytes16().to_vec(),
            caller: Some(caller).into(),
            target: function.function.clone(),
            traceparent: open.traceparent(),
            ..Event::default()
        };
        let (names, deadline) = ((&sender, function), Instant::now() + STORE_MAX);
        let stored = self.store_event(names, &event, Payload::Inline(message), deadline).await;
        open.end(length, stored.as_ref().copied());
        if let Err(error) = stored {
            tracing::warn!(%function, %trigger, %error, "a channel's message is lost");
        }
    }
}
