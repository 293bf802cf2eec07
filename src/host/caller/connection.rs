//! One connection to an instance, or to the bridge to other hosts, with many calls in flight. Runs where
//! [`super::HostCaller`] does.
//!
//! A task reads the answers and passes each to its call. Answers of calls that were given up are discarded.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, PAYLOAD_MAX};
use rustc_hash::FxHashMap;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::CalleeLimits;
use super::HostAnswer;
use super::counts::CallRoute;
use crate::readiness;
use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::local::{LocalError, ReceivedAnswer, found_no_room, open_answer, send_as_is};
use cwasi_modes::{CallError, ModeKind, Overload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::envelope::{Metadata, Path, Request};
use cwasi_wire::frame::FRAME_MAX;
use cwasi_wire::ids::CallId;

/// Interval at which a call tries again to send while descriptors are short, for which there is no event.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Where a connection leads.
#[derive(Debug)]
pub(super) struct ConnectionRoute {
    /// The callee's name, for messages.
    pub target: String,
    /// The callee's instance; empty over the network.
    pub instance: String,
    pub mode: ModeKind,
    pub reason: Arc<str>,
    /// What the callee takes.
    pub limits: CalleeLimits,
    /// The callee may answer with leased segments.
    pub lends: bool,
}

/// A connection and its calls in flight.
#[derive(Debug)]
pub(super) struct Connection {
    socket: AsyncFd<OwnedFd>,
    route: ConnectionRoute,
    calls: Mutex<Calls>,
}

/// The end of a call, and how it went to another host.
type CallEnd = (Result<(Payload, Vec<Metadata>), CallError>, Path);

#[derive(Debug, Default)]
struct Calls {
    waiting: FxHashMap<CallId, oneshot::Sender<CallEnd>>,
    ended: bool,
}

impl std::ops::Deref for Connection {
    type Target = ConnectionRoute;

    fn deref(&self) -> &ConnectionRoute {
        &self.route
    }
}

impl Connection {
    /// Starts to read answers.
    ///
    /// # Errors
    /// When the reactor takes no more descriptors.
    pub(super) fn start(fd: OwnedFd, route: ConnectionRoute) -> std::io::Result<Arc<Self>> {
        let connection =
            Arc::new(Self { socket: readiness::watch(fd)?, route, calls: Mutex::default() });
        tokio::spawn(Arc::clone(&connection).read());
        Ok(connection)
    }

    /// Number of calls that wait for their answers.
    pub(super) fn in_flight(&self) -> usize {
        self.calls().waiting.len()
    }

    /// The route of a call that begins on it.
    pub(super) fn route(&self) -> CallRoute {
        CallRoute { mode: self.mode, path: Path::PATH_NONE, reason: Arc::clone(&self.reason) }
    }

    /// True when no more answers come.
    pub(super) fn has_ended(&self) -> bool {
        self.calls().ended
    }

    /// Ends the connection when its last call has ended: the peer sees it at once.
    pub(super) fn end_if_idle(&self) -> bool {
        let idle = self.calls().waiting.is_empty();
        if idle {
            seqpacket::end(self.fd());
        }
        idle
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request and waits for its end; completes its route.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] only if the callee did not get it.
    pub(super) async fn call(
        &self,
        id: CallId,
        request: &Request,
        payload: &Payload,
        route: &mut CallRoute,
    ) -> Result<HostAnswer, CallError> {
        let (length, limit) = (payload.len(), self.limits.max_payload);
        if length > limit {
            let what = format!("payload for {}", self.target);
            return Err(CallError::too_large(&what, length, limit));
        }
        let mut waiting = self.register(id)?;
        self.send(request, payload).await?;
        // The reader ends every call before it ends itself.
        let ended = (&mut waiting.answer).await;
        let (result, path) = ended.unwrap_or_else(|_ended| (Err(self.closed()), Path::PATH_NONE));
        if self.mode == ModeKind::Networked {
            route.path = path;
        }
        let (payload, metadata) = result?;
        let CallRoute { mode, path, reason } = route.clone();
        Ok(HostAnswer { payload, metadata, mode, path, reason, trace: None })
    }

    fn register(&self, id: CallId) -> Result<WaitingCall<'_>, CallError> {
        let mut calls = self.calls();
        if calls.ended {
            let (target, cause) = (self.target.clone(), Unreached::Closed);
            return Err(CallError::Unreachable { target, cause });
        }
        if calls.waiting.len() >= CALLS_IN_FLIGHT_MAX {
            return Err(Overload::Callers { callee: self.target.clone() }.into());
        }
        let (sender, answer) = oneshot::channel();
        calls.waiting.insert(id, sender);
        Ok(WaitingCall { connection: self, id, answer })
    }

    /// Sends the request; waits for room as long as the future lives.
    async fn send(&self, request: &Request, payload: &Payload) -> Result<(), CallError> {
        loop {
            let now = Some(Deadline::PASSED);
            let sent = send_as_is(self.fd(), request, payload.outgoing(), &[], now);
            if !found_no_room(&sent) {
                return sent.map_err(|error| self.unsent(error));
            }
            if let Ok(Ok(mut ready)) = timeout(ROOM_CHECK_INTERVAL, self.socket.writable()).await {
                ready.clear_ready();
            }
        }
    }

    fn unsent(&self, error: LocalError) -> CallError {
        let target = self.target.clone();
        match error {
            LocalError::Socket(error) => {
                let cause = Unreached::Unsent { error: error.to_string() };
                CallError::Unreachable { target, cause }
            }
            error => CallError::Internal { message: format!("request to {target}: {error}") },
        }
    }

    /// Passes answers to their calls until the connection ends.
    async fn read(self: Arc<Self>) {
        let mut buffer = vec![0; FRAME_MAX];
        let error = loop {
            match self.next(&mut buffer).await {
                Ok(answer) => self.hand_out(answer),
                Err(error) => break error,
            }
        };
        tracing::debug!(target = self.target, instance = self.instance, %error, "connection ended");
        seqpacket::end(self.fd());
        let mut calls = self.calls();
        calls.ended = true;
        for (_, waiting) in calls.waiting.drain() {
            let _given_up = waiting.send((Err(error.clone()), Path::PATH_NONE));
        }
    }

    async fn next(&self, buffer: &mut [u8]) -> Result<ReceivedAnswer, CallError> {
        loop {
            let mut ready = self.socket.readable().await.map_err(|error| self.broken(&error))?;
            match seqpacket::try_receive(self.fd(), buffer) {
                Ok(None) => ready.clear_ready(),
                Ok(Some(received)) => {
                    let message = &buffer[..received.len];
                    let (lends, target) = (self.lends, self.target.as_str());
                    return open_answer(message, received.descriptors, PAYLOAD_MAX, lends, target);
                }
                Err(SocketError::Closed) => return Err(self.closed()),
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    fn closed(&self) -> CallError {
        CallError::Broken { target: self.target.clone(), cause: Break::Closed }
    }

    fn broken(&self, error: &dyn std::error::Error) -> CallError {
        let (instance, error) = (self.instance.clone(), error.to_string());
        CallError::Broken {
            target: self.target.clone(),
            cause: Break::Instance { instance, error },
        }
    }

    fn hand_out(&self, answer: ReceivedAnswer) {
        let waiting = self.calls().waiting.remove(&answer.id);
        if let Some(waiting) = waiting {
            let ReceivedAnswer { result, metadata, path, .. } = answer;
            let _given_up = waiting.send((result.map(|payload| (payload, metadata)), path));
        }
    }
}

/// A call in flight. When it is dropped, its answer is discarded.
struct WaitingCall<'a> {
    connection: &'a Connection,
    id: CallId,
    answer: oneshot::Receiver<CallEnd>,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.connection.calls().waiting.remove(&self.id);
    }
}
