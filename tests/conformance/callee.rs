//! The suite's callee behind a real receiver, in a thread of this process; used by every mode that ends at one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cwasi_modes::local::incoming::ParsedMessage;
use cwasi_modes::local::receiver::ConnectionEvent;
use cwasi_modes::local::{IncomingRequest, Receiver, error_answer, send_as_is, send_payload};
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, OutgoingPayload};
use cwasi_sys::seqpacket;
use cwasi_wire::envelope::{CallStatus, Response};
use cwasi_wire::ids::{CallId, Identity};

use crate::{MAX_PAYLOAD, callee};

/// A receiver and its thread.
pub struct Callee {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Callee {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = seqpacket::listener(&dir.path().join("r.sock")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let server = Some(std::thread::spawn(move || {
            serve(Receiver::new(listener, MAX_PAYLOAD).unwrap(), &flag)
        }));
        Self { dir, stop, server }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("r.sock")
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends it; open connections are closed.
    pub fn kill(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

impl Drop for Callee {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An identity in the suite's namespace.
pub fn identity(function: &str) -> Identity {
    Identity {
        namespace: "tests".to_owned(),
        pod_namespace: String::new(),
        function: function.to_owned(),
    }
}

/// Answers to `w` and `n` must not hold up others, so each request has a thread, as it has a worker.
fn serve(mut receiver: Receiver, stop: &AtomicBool) {
    let pool = SegmentPool::new(4 * MAX_PAYLOAD);
    while !stop.load(Ordering::Relaxed) {
        receiver.accept().unwrap();
        let mut busy = false;
        let ids: Vec<_> = receiver.ready().collect();
        for id in ids {
            match receiver.next_event(id) {
                ConnectionEvent::Idle => {}
                ConnectionEvent::Message(ParsedMessage::Request(incoming)) => {
                    busy = true;
                    answer(*incoming, pool.clone());
                }
                ConnectionEvent::Message(ParsedMessage::Refused { connection, id, error }) => {
                    busy = true;
                    refuse(connection.fd.as_fd(), id, &error);
                }
                ConnectionEvent::Introduced | ConnectionEvent::Closed { .. } => busy = true,
            }
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn answer(incoming: IncomingRequest, pool: SegmentPool) {
    let connection: OwnedFd = incoming.connection.fd.as_fd().try_clone_to_owned().unwrap();
    let (id, payload, lends) = (incoming.id, incoming.payload, incoming.connection.lends);
    std::thread::spawn(move || {
        let payload = payload.into_vec().unwrap();
        match callee(&payload) {
            Some(Ok(bytes)) => {
                let response = Response::of(id, CallStatus::ANSWERED);
                let (bytes, pool) = (OutgoingPayload::Bytes(&bytes), lends.then_some(&pool));
                // A caller that went away is no failure of the callee.
                drop(send_payload(connection.as_fd(), &response, bytes, pool, None));
            }
            Some(Err(error)) => refuse(connection.as_fd(), id, &error),
            None => {}
        }
    });
}

fn refuse(connection: BorrowedFd<'_>, id: CallId, error: &CallError) {
    let (status, text) = error_answer(error);
    drop(send_as_is(connection, &Response::of(id, status), text.outgoing(), &[], None));
}
