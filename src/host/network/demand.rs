//! Demand for functions that are started on demand: calls that this daemon holds, and calls that its own instances have.
//! Runs in the shim daemon, and in processes of the host that call.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::Network;
use cwasi_coordinator::registry::Record;
use cwasi_networked::{RedisSession, demand};
use cwasi_wire::control::FunctionReport;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Demand;

/// Shortest time between two messages about held calls.
const REPORT_MIN: Duration = Duration::from_millis(50);

/// Number of held calls by callee.
#[derive(Debug, Default)]
pub(super) struct HeldCalls {
    counts: Mutex<HashMap<Identity, u64>>,
    /// Signalled when a function gets its first held call, or loses its last one.
    changed: Notify,
}

impl HeldCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<Identity, u64>> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call as held while the returned value exists.
    pub(super) fn begin(&self, callee: &Identity) -> HeldCall<'_> {
        let mut counts = self.lock();
        let count = counts.entry(callee.clone()).or_default();
        *count += 1;
        if *count == 1 {
            self.changed.notify_one();
        }
        HeldCall { calls: self, callee: callee.clone() }
    }

    fn counts(&self) -> HashMap<Identity, u64> {
        self.lock().clone()
    }
}

/// One held call.
pub(super) struct HeldCall<'a> {
    calls: &'a HeldCalls,
    callee: Identity,
}

impl Drop for HeldCall<'_> {
    fn drop(&mut self) {
        let mut counts = self.calls.lock();
        let Some(count) = counts.get_mut(&self.callee) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.callee);
            self.calls.changed.notify_one();
        }
    }
}

/// Last reports of this daemon's instances.
#[derive(Debug, Default)]
pub(super) struct Occupied(Mutex<HashMap<String, Occupation>>);

#[derive(Debug, Default)]
struct Occupation {
    report: FunctionReport,
    /// [`FunctionReport::turns`] when it was last published.
    published_turns: u64,
}

impl Occupied {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Occupation>> {
        // As above.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remove(&self, instance: &str) {
        self.lock().remove(instance);
    }

    /// Running and waiting calls, and whether calls have begun since the last time; `None` if there were none.
    fn take(&self, instance: &str) -> Option<(u64, bool)> {
        let mut all = self.lock();
        let occupation = all.get_mut(instance)?;
        let FunctionReport { busy, queued, waiting_parts, .. } = occupation.report;
        let running = busy.saturating_add(queued).saturating_add(waiting_parts);
        let began = occupation.report.turns != occupation.published_turns;
        occupation.published_turns = occupation.report.turns;
        (running > 0 || began).then_some((running, began))
    }
}

impl Network {
    /// Records the report of one of this daemon's instances.
    pub fn observe(&self, instance: &str, report: FunctionReport) {
        self.inner.occupied.lock().entry(instance.to_owned()).or_default().report = report;
    }

    /// Publishes what an instance does, if it does something.
    pub(super) async fn report_occupied(&self, session: &RedisSession, record: &Record) {
        let Some((running, began)) = self.inner.occupied.take(&record.instance) else { return };
        let (identity, source) = (record.identity.clone(), record.instance.clone());
        let demand = Demand { identity, source, waiting: 0, running, began };
        if let Err(error) = demand::publish(session, &demand).await {
            tracing::debug!(instance = record.instance, %error, "its calls are not published");
        }
    }

    /// Publishes the numbers of held calls: at once when there is a first one, then again and again, and that there is
    /// none any more.
    pub(super) async fn report_held(self) {
        let held = &self.inner.held;
        let mut reported = HashMap::new();
        loop {
            let counts = held.counts();
            if counts.is_empty() && reported.is_empty() {
                held.changed.notified().await;
                continue;
            }
            let ended = reported.keys().filter(|callee| !counts.contains_key(*callee));
            let ended = ended.map(|callee: &Identity| (callee, &0));
            for (callee, waiting) in counts.iter().chain(ended) {
                self.publish_held(callee, *waiting).await;
            }
            reported = counts;
            sleep(REPORT_MIN).await;
            tokio::select! {
                () = held.changed.notified() => {}
                () = sleep(demand::REPEAT) => {}
            }
        }
    }

    async fn publish_held(&self, callee: &Identity, waiting: u64) {
        let (identity, source) = (callee.clone(), self.inner.replies.clone());
        let demand = Demand { identity, source, waiting, running: 0, began: false };
        let published = match self.inner.link.session_now() {
            Ok(session) => demand::publish(&session, &demand).await,
            Err(error) => Err(error),
        };
        if let Err(error) = published {
            tracing::debug!(%callee, waiting, %error, "held calls are not published");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(function: &str) -> Identity {
        Identity { namespace: "n".into(), pod_namespace: String::new(), function: function.into() }
    }

    #[test]
    fn held_calls_are_counted_by_callee() {
        let held = HeldCalls::default();
        let (first, second) = (held.begin(&identity("a")), held.begin(&identity("a")));
        let other = held.begin(&identity("b"));
        assert_eq!(held.counts(), HashMap::from([(identity("a"), 2), (identity("b"), 1)]));
        drop((first, other));
        assert_eq!(held.counts(), HashMap::from([(identity("a"), 1)]));
        drop(second);
        assert_eq!(held.counts(), HashMap::new());
    }

    #[test]
    fn an_instance_that_did_nothing_is_not_reported() {
        let occupied = Occupied::default();
        let observe = |report| occupied.lock().entry("i".into()).or_default().report = report;
        assert_eq!(occupied.take("i"), None);
        observe(FunctionReport { workers: 1, ..FunctionReport::default() });
        assert_eq!(occupied.take("i"), None);
        let busy = FunctionReport { busy: 1, queued: 2, turns: 1, ..FunctionReport::default() };
        observe(busy);
        assert_eq!(occupied.take("i"), Some((3, true)));
        // A long call.
        assert_eq!(occupied.take("i"), Some((3, false)));
        // It ended, and others began and ended.
        observe(FunctionReport { turns: 9, ..FunctionReport::default() });
        assert_eq!(occupied.take("i"), Some((0, true)));
        assert_eq!(occupied.take("i"), None);
    }
}
