//! Requests that a test blocks in the suite's callee: it waits for them to arrive there, and says when they are
//! answered.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cwasi_sys::random::bytes16;

/// Longest wait for a request, and longest time that it is blocked.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often each blocked request has arrived, by its payload.
static BLOCKED: Mutex<BTreeMap<Vec<u8>, usize>> = Mutex::new(BTreeMap::new());
static CHANGED: Condvar = Condvar::new();

fn blocked() -> MutexGuard<'static, BTreeMap<Vec<u8>, usize>> {
    BLOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A payload that no other test sends; dropped, its requests are released.
pub struct BlockedRequests(Vec<u8>);

impl BlockedRequests {
    /// One that begins with `what`.
    pub fn new(what: u8) -> Self {
        let payload = [&[what][..], &bytes16()].concat();
        blocked().insert(payload.clone(), 0);
        Self(payload)
    }

    pub fn payload(&self) -> &[u8] {
        &self.0
    }

    /// Waits until it has arrived so often.
    pub fn until_arrived(&self, times: usize) {
        let less = |blocked: &mut BTreeMap<_, _>| blocked[&self.0] < times;
        let (_held, waited) = CHANGED.wait_timeout_while(blocked(), PATIENCE, less).unwrap();
        assert!(!waited.timed_out(), "{times} requests did not arrive");
    }

    /// Lets the callee answer.
    pub fn release(self) {}
}

impl Drop for BlockedRequests {
    fn drop(&mut self) {
        blocked().remove(&self.0);
        CHANGED.notify_all();
    }
}

/// The callee has a request.
pub fn arrive(payload: &[u8]) {
    if let Some(times) = blocked().get_mut(payload) {
        *times += 1;
    }
    CHANGED.notify_all();
}

/// Waits until the test releases it.
pub fn until_released(payload: &[u8]) {
    let kept = |blocked: &mut BTreeMap<_, _>| blocked.contains_key(payload);
    drop(CHANGED.wait_timeout_while(blocked(), PATIENCE, kept));
}
