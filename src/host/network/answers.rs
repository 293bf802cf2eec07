//! Answers from other hosts to this host's workers: sent at once, or queued while their worker does not read. Runs in
//! the shim daemon.
//!
//! Invariant: a slow worker does not delay other workers. Queued answers are bounded over all connections of the
//! daemon, by the same rule as in a sandbox init ([`SendQueue`]), and wait until their calls' deadlines at most.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::sys::resource::{Resource, getrlimit};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{BridgeCaller, CallResponse};
use crate::readiness;
use cwasi_modes::CallError;
use cwasi_modes::local::send_queue::{SendLimits, SendQueue};
use cwasi_modes::local::{error_answer, found_no_room, send_as_is};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_sys::seqpacket;
use cwasi_wire::envelope::{CallStatus, Path, Response};
use cwasi_wire::ids::CallId;

/// Divisor of the daemon's descriptor limit: the share for queued answers, as in a sandbox init.
const DESCRIPTORS_SHARE: u64 = 4;

/// The shim's end of a worker's connection.
#[derive(Debug)]
pub struct WorkerConnection {
    /// The worker's function and its callee.
    pub caller: BridgeCaller,
    /// Watched for requests only: a worker that reads its answers wakes nobody while nothing waits for room.
    pub requests: AsyncFd<OwnedFd>,
    /// The same socket, watched for room since an answer found none.
    room: OnceLock<AsyncFd<OwnedFd>>,
    /// Wakes [`Answers::deliver`] when an answer is queued.
    waits: Notify,
    /// True after the log said that this worker reads too late.
    is_known_late: AtomicBool,
}

impl WorkerConnection {
    /// A connection without queued answers, on `socket`.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub fn new(caller: BridgeCaller, socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            caller,
            requests: readiness::watch_reads(socket)?,
            room: OnceLock::new(),
            waits: Notify::new(),
            is_known_late: AtomicBool::new(false),
        })
    }

    fn watch_room(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        if let Some(watched) = self.room.get() {
            return Ok(watched);
        }
        let watched = readiness::watch_room(self.requests.get_ref().try_clone()?)?;
        Ok(self.room.get_or_init(|| watched))
    }

    /// Waits until the worker may have read something.
    async fn room(&self) {
        let Ok(watched) = self.watch_room() else {
            // Descriptors have run out: the next attempt comes by time.
            return std::future::pending().await;
        };
        if let Ok(mut ready) = watched.writable().await {
            // Cleared before the next attempt, so that reads from now on wake again.
            ready.clear_ready();
        }
    }

    fn log(&self, text: &str) {
        let BridgeCaller { identity, callee, .. } = &self.caller;
        if self.is_known_late.swap(true, Relaxed) {
            tracing::debug!(caller = %identity, %callee, "{text}");
        } else {
            tracing::warn!(caller = %identity, %callee, "{text}");
        }
    }
}

impl AsFd for WorkerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.get_ref().as_fd()
    }
}

/// Queued answers for the daemon's workers.
#[derive(Debug)]
pub struct Answers(Mutex<SendQueue<Arc<WorkerConnection>>>);

impl Default for Answers {
    fn default() -> Self {
        let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        let descriptors = usize::try_from(soft / DESCRIPTORS_SHARE).unwrap_or(usize::MAX);
        // A connection says when it has room, so no answer may wait for anything else.
        let limits = SendLimits { unread: u64::MAX, ..SendLimits::within(None, descriptors) };
        Self(Mutex::new(SendQueue::new(limits)))
    }
}

impl Answers {
    fn waiting(&self) -> MutexGuard<'_, SendQueue<Arc<WorkerConnection>>> {
        // A panic elsewhere leaves it consistent: counts change together with the queue.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one call, and says how it went. If the connection is full, queues the answer until `deadline`.
    pub fn send(
        &self,
        to: &Arc<WorkerConnection>,
        id: CallId,
        (ended, path): (Result<CallResponse, CallError>, Path),
        deadline: Instant,
    ) {
        let (status, payload) = match ended {
            Ok(CallResponse { payload, metadata }) => {
                (CallStatus::answered_with(metadata), payload)
            }
            Err(error) => error_answer(&error),
        };
        let response = Response { path: path.into(), ..Response::of(id, status) };
        let now = Some(Deadline::PASSED);
        let sent = send_as_is(to.as_fd(), &response, payload.outgoing(), &[], now);
        if !found_no_room(&sent) {
            // Sent, or the worker is gone.
            return;
        }
        let until = Deadline::from(deadline.into_std());
        let mut waiting = self.waiting();
        // Retried under the lock: an ended connection must not get a queued answer.
        waiting.send(to, response, payload, until);
        let complaint = waiting.complaint.take();
        drop(waiting);
        to.waits.notify_one();
        if let Some((late, text)) = complaint {
            late.log(&text);
        }
    }

    /// Sends queued answers whenever the worker has read something. Never returns.
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
            () = sleep_until(again.to_instant().into()) => {}
            }
        }
    }

    /// Ends a connection: drops its queued answers and accepts no more.
    pub fn end(&self, to: &Arc<WorkerConnection>) {
        seqpacket::end(to.as_fd());
        self.waiting().forget(to);
    }
}

#[cfg(test)]
mod tests {
    use cwasi_modes::Payload;
    use std::time::Duration;

    use cwasi_abi::Errno;

    use super::*;
    use cwasi_modes::local::load::Load;
    use cwasi_modes::local::open_frame;
    use cwasi_wire::control::ModeHint;
    use cwasi_wire::envelope::Response;
    use cwasi_wire::frame::FRAME_MAX;
    use cwasi_wire::ids::Identity;

    const BOUNDS: SendLimits = SendLimits {
        caller: Load { messages: 1000, bytes: 1 << 20, descriptors: 10 },
        total: Load { messages: 2000, bytes: 2 << 20, descriptors: 10 },
        unread: u64::MAX,
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
        let caller = BridgeCaller {
            callee: identity.sibling("b"),
            identity,
            group: String::new(),
            workflow: String::new(),
            instance: "i".into(),
            hint: ModeHint::Networked,
            max_payload: 1 << 20,
            http: false,
            passed_over: Vec::new(),
        };
        (Arc::new(WorkerConnection::new(caller, ours).unwrap()), theirs)
    }

    fn send(answers: &Answers, to: &Arc<WorkerConnection>, count: usize) {
        for _ in 0..count {
            let payload = Payload::Inline(vec![7; LEN]);
            let answered = CallResponse { payload, metadata: Vec::new() };
            let ended = (Ok(answered), Path::PATH_DIRECT);
            answers.send(to, CallId([1; 16]), ended, Instant::now() + PATIENCE);
        }
    }

    /// Errno and length of the next answer.
    fn read(worker: &OwnedFd) -> (i32, u64) {
        let until = Deadline::after(PATIENCE);
        let mut buffer = vec![0; FRAME_MAX];
        let message = seqpacket::receive(worker.as_fd(), &mut buffer, Some(until)).unwrap();
        let bytes = &buffer[..message.len];
        let answer = open_frame::<Response>(bytes, message.descriptors, 0, u64::MAX).unwrap();
        (answer.envelope.errno, answer.payload.len())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_late_worker_gets_a_bounded_number_of_answers() {
        let answers = Arc::new(Answers(Mutex::new(SendQueue::new(BOUNDS))));
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
        let answers = Answers(Mutex::new(SendQueue::new(BOUNDS)));
        let (late, _worker) = connection();
        send(&answers, &late, 10);
        assert!(!answers.waiting().is_empty());
        answers.end(&late);
        send(&answers, &late, 10);
        assert!(answers.waiting().is_empty());
    }
}
