//! Calls under way: our tries, which wait for answers, and incoming calls, which their callers may cancel.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use cwasi_wire::network::{Answer, TryId};

/// Queued answers of one try: accepted, ended, and extra ones of a faulty peer.
const ANSWERS_MAX: usize = 4;

/// Our tries that wait for answers.
#[derive(Debug, Default)]
pub(super) struct PendingTries(Mutex<HashMap<TryId, mpsc::Sender<Answer>>>);

impl PendingTries {
    fn lock(&self) -> MutexGuard<'_, HashMap<TryId, mpsc::Sender<Answer>>> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a try; returns its answers.
    pub(super) fn insert(&self, id: TryId) -> mpsc::Receiver<Answer> {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        self.lock().insert(id, sender);
        answers
    }

    pub(super) fn remove(&self, id: TryId) {
        self.lock().remove(&id);
    }

    /// Passes an answer to its try. Returns it when the try has ended.
    pub(super) fn pass(&self, id: TryId, answer: Answer) -> Option<Answer> {
        // Locked until it is sent: a removed try has got all its answers.
        let tries = self.lock();
        let Some(waiting) = tries.get(&id) else { return Some(answer) };
        // Full: the call has all answers that it needs.
        let _late = waiting.try_send(answer);
        None
    }
}

/// Incoming calls that their callers can still cancel.
#[derive(Debug, Default)]
pub(super) struct IncomingCalls(Mutex<HashMap<TryId, watch::Sender<bool>>>);

impl IncomingCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<TryId, watch::Sender<bool>>> {
        // As above.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call, which can be cancelled while the returned value exists.
    pub(super) fn watch(&self, id: TryId) -> Cancellation<'_> {
        let (sender, cancelled) = watch::channel(false);
        self.lock().insert(id, sender);
        Cancellation { calls: self, id, cancelled }
    }

    /// The caller has cancelled a call.
    pub(super) fn cancel(&self, id: TryId) {
        if let Some(cancelled) = self.lock().get(&id) {
            cancelled.send_replace(true);
        }
    }
}

/// The cancellation of one incoming call.
pub(super) struct Cancellation<'a> {
    calls: &'a IncomingCalls,
    id: TryId,
    cancelled: watch::Receiver<bool>,
}

impl Cancellation<'_> {
    /// Returns when the caller has cancelled the call.
    pub(super) async fn wait(&self) {
        let mut cancelled = self.cancelled.clone();
        if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Cancellation<'_> {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.id);
    }
}
