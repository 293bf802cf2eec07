//! Answers to workers of this host that called another host: sent at once, or held while their worker does not read.
//!
//! A worker that computes takes its answers late. Until their calls' deadlines they wait here and hold up no other
//! worker. What waits is bounded by the rule that holds on one host too ([`Outbox`]), over all connections of this
//! daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::resource::{Resource, getrlimit};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::Caller;
use crate::modes::local::outbox::{Bounds, Outbox, Reply, wire};
use crate::modes::local::{found_no_room, respond_with};
use crate::modes::{CallError, Payload};
use crate::sys::clock::{from_monotonic, monotonic_ns, to_monotonic};
use crate::sys::seqpacket;
use crate::wire::envelope::Outcome;
use crate::wire::ids::CallId;

/// The share of the daemon's descriptors that answers which wait may hold: a quarter, as in a sandbox init.
const DESCRIPTORS_SHARE: u64 = 4;

/// This shim's end of a worker's connection.
#[derive(Debug)]
pub struct WorkerConnection {
    /// Whose worker it is, and whom it calls.
    pub caller: Caller,
    /// The socket.
    pub socket: AsyncFd<OwnedFd>,
    /// Tells [`Answers::deliver`] that an answer waits.
    waits: Notify,
    /// A line in the log has said that this worker reads too late.
    is_known_late: AtomicBool,
}

impl WorkerConnection {
    /// A connection for which nothing waits.
    pub fn new(caller: Caller, socket: AsyncFd<OwnedFd>) -> Self {
        let is_known_late = AtomicBool::new(false);
        Self { caller, socket, waits: Notify::new(), is_known_late }
    }

    /// Waits until the worker may have read something.
    async fn room(&self) {
        if let Ok(mut ready) = self.socket.writable().await {
            // What is read from now on is told again.
            ready.clear_ready();
        }
    }

    fn log(&self, text: &str) {
        let Caller { identity, callee, .. } = &self.caller;
        if self.is_known_late.swap(true, Relaxed) {
            tracing::debug!(caller = %identity, %callee, "{text}");
        } else {
            tracing::warn!(caller = %identity, %callee, "{text}");
        }
    }
}

impl AsFd for WorkerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}

/// Answers that wait for workers of this daemon.
#[derive(Debug)]
pub struct Answers(Mutex<Outbox<Arc<WorkerConnection>>>);

impl Default for Answers {
    fn default() -> Self {
        let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        let segments = usize::try_from(soft / DESCRIPTORS_SHARE).unwrap_or(usize::MAX);
        Self(Mutex::new(Outbox::new(Bounds::within(None, segments))))
    }
}

impl Answers {
    fn waiting(&self) -> MutexGuard<'_, Outbox<Arc<WorkerConnection>>> {
        // A panic elsewhere leaves it whole: what is counted is counted with what is kept.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one call. Without room, the answer waits for its worker until `deadline`.
    pub fn send(
        &self,
        to: &Arc<WorkerConnection>,
        id: CallId,
        ended: Result<Payload, CallError>,
        deadline: Instant,
    ) {
        let (outcome, payload) = match ended {
            Ok(payload) => (Outcome::ANSWERED, payload),
            Err(error) => wire(&error),
        };
        let sent = respond_with(to.as_fd(), id, outcome, payload.outgoing(), Some(0));
        if !found_no_room(&sent) {
            // Sent, or the worker is gone.
            return;
        }
        let until = Some(to_monotonic(deadline.into_std()));
        let reply = Reply { reply_to: Arc::clone(to), id };
        let mut waiting = self.waiting();
        // Once more under the lock: a connection that ended meanwhile gets nothing that would wait for ever.
        waiting.send(&reply, outcome, payload, until);
        let complaint = waiting.take_complaint();
        drop(waiting);
        to.waits.notify_one();
        if let Some((late, text)) = complaint {
            late.log(&text);
        }
    }

    /// Sends what waits for this worker whenever it has read something. Never ends by itself.
    pub async fn deliver(&self, to: &Arc<WorkerConnection>) {
        loop {
            let again = self.waiting().flush_one(to, monotonic_ns());
            let Some(again) = again else {
                to.waits.notified().await;
                continue;
            };
            tokio::select! {
                () = to.room() => {}
                () = to.waits.notified() => {}
                () = sleep_until(from_monotonic(again).into()) => {}
            }
        }
    }

    /// Ends a connection: what waits for its worker is dropped, and nothing more will wait.
    pub fn end(&self, to: &Arc<WorkerConnection>) {
        seqpacket::end(to.as_fd());
        self.waiting().forget(to);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cwasi_abi::Errno;

    use super::*;
    use crate::modes::local::receive_frame;
    use crate::sys::readiness;
    use crate::wire::control::ModeHint;
    use crate::wire::envelope::Response;
    use crate::wire::frame::FRAME_MAX;
    use crate::wire::ids::Identity;

    const BOUNDS: Bounds = Bounds {
        caller_answers: 1000,
        caller_bytes: 1 << 20,
        answers: 2000,
        bytes: 2 << 20,
        segments: 10,
    };
    const SENT: usize = 40;
    const LEN: usize = 60_000;
    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A connection, and the worker's end of it.
    fn connection() -> (Arc<WorkerConnection>, OwnedFd) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let identity =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "a".into() };
        let caller = Caller {
            callee: identity.sibling("b"),
            identity,
            group: String::new(),
            workflow: String::new(),
            instance: "i".into(),
            hint: ModeHint::Networked,
            max_payload: 1 << 20,
            passed_over: Vec::new(),
        };
        (Arc::new(WorkerConnection::new(caller, readiness::watch(ours).unwrap())), theirs)
    }

    fn send(answers: &Answers, to: &Arc<WorkerConnection>, count: usize) {
        for _ in 0..count {
            let payload = Payload::Inline(vec![7; LEN]);
            answers.send(to, CallId([1; 16]), Ok(payload), Instant::now() + PATIENCE);
        }
    }

    /// Errno and length of the next answer.
    fn read(worker: &OwnedFd) -> (i32, u64) {
        let until = monotonic_ns() + u64::try_from(PATIENCE.as_nanos()).unwrap();
        let mut buffer = vec![0; FRAME_MAX];
        let answer = receive_frame::<Response>(worker, &mut buffer, u64::MAX, Some(until));
        let answer = answer.unwrap();
        (answer.envelope.errno, answer.payload.len())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_that_reads_late_gets_what_may_wait_and_an_error_for_the_rest() {
        let answers = Arc::new(Answers(Mutex::new(Outbox::new(BOUNDS))));
        let ((late, worker), (other, others)) = (connection(), connection());
        send(&answers, &late, SENT);
        send(&answers, &other, 1);
        assert_eq!(read(&others), (0, LEN as u64), "it does not wait for the late one");
        let (delivering, to) = (Arc::clone(&answers), Arc::clone(&late));
        let delivering = tokio::spawn(async move { delivering.deliver(&to).await });
        let reading = tokio::task::spawn_blocking(move || {
            let read: Vec<_> = (0..SENT).map(|_| read(&worker)).collect();
            (worker, read)
        });
        let (_worker, read) = reading.await.unwrap();
        let whole = read.iter().filter(|answer| **answer == (0, LEN as u64)).count();
        let too_large = Errno::PayloadTooLarge.code();
        let dropped = read.iter().filter(|(errno, _)| *errno == too_large).count();
        assert_eq!(whole + dropped, SENT, "{read:?}");
        let waited = (1 << 20) / LEN;
        assert!(whole >= waited && dropped > 0, "{whole} whole");
        assert!(late.is_known_late.load(Relaxed) && !other.is_known_late.load(Relaxed));
        delivering.abort();
    }

    #[tokio::test]
    async fn nothing_waits_for_a_connection_that_has_ended() {
        let answers = Answers(Mutex::new(Outbox::new(BOUNDS)));
        let (late, _worker) = connection();
        send(&answers, &late, 10);
        assert!(!answers.waiting().is_empty());
        answers.end(&late);
        send(&answers, &late, 10);
        assert!(answers.waiting().is_empty());
    }
}
