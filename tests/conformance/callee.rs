//! The suite's callee behind a real receiver, in a thread of this process; used by every mode that ends at one.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cwasi::modes::local::incoming::ParsedMessage;
use cwasi::modes::local::receiver::ConnectionEvent;
use cwasi::modes::local::{IncomingRequest, Receiver, respond, send_payload};
use cwasi::modes::{OutgoingPayload, Payload};
use cwasi::sys::pool::SegmentPool;
use cwasi::sys::segment::Segment;
use cwasi::sys::seqpacket;
use cwasi::wire::envelope::Response;
use cwasi::wire::ids::Identity;

use crate::{MAX_PAYLOAD, callee};

/// A receiver and its thread.
pub struct Callee {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Callee {
    /// Listens.
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

    /// Its receiver.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("r.sock")
    }

    /// Its directory.
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
        let mut busy = receiver.accept().unwrap() > 0;
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
                    drop(respond(connection.fd.as_fd(), id, &Err(error), None));
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
        let answer = match callee(&payload) {
            Some(Ok(bytes)) if lends => {
                let response = Response { call_id: id.0.to_vec(), ..Response::default() };
                let bytes = OutgoingPayload::Bytes(&bytes);
                drop(send_payload(connection.as_fd(), &response, bytes, Some(&pool), None));
                return;
            }
            Some(Ok(bytes)) if bytes.len() > 64 * 1024 => {
                Ok(Payload::Segment(Segment::copy_of(&bytes).unwrap()))
            }
            Some(Ok(bytes)) => Ok(Payload::Inline(bytes)),
            Some(Err(error)) => Err(error),
            None => return,
        };
        // A caller that went away is no failure of the callee.
        drop(respond(connection.as_fd(), id, &answer, None));
    });
}
