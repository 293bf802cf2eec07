//! Local buffer under the suite: the real receiver on a real socket, served by a thread.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cwasi::modes::local::receiver::Event;
use cwasi::modes::local::{Answer, Incoming, LocalMode, LocalRoute, Receiver, respond, send_frame};
use cwasi::modes::{Call, CallError, Mode, Payload};
use cwasi::sys::seqpacket;
use cwasi::wire::envelope::Hello;
use cwasi::wire::ids::Identity;

use crate::{Bench, Caller, MAX_PAYLOAD, callee};

/// The callee's receiver in a thread of this process.
pub struct Local {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

/// Answers to `w` and `n` must not hold up others, so each request has a thread, as it has a worker.
fn serve(mut receiver: Receiver, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut busy = receiver.accept().unwrap() > 0;
        let ids: Vec<_> = receiver.connections().map(|(id, _)| id).collect();
        for id in ids {
            match receiver.next_event(id) {
                Event::Idle => {}
                Event::Request(incoming) => {
                    busy = true;
                    answer(*incoming);
                }
                Event::Introduced | Event::Closed { .. } => busy = true,
            }
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn answer(incoming: Incoming) {
    let connection: OwnedFd = incoming.reply_to.as_fd().try_clone_to_owned().unwrap();
    let (id, payload) = (incoming.id, incoming.payload);
    std::thread::spawn(move || {
        let payload = payload.into_vec().unwrap();
        let answer = match callee(&payload) {
            Some(Ok(bytes)) if bytes.len() > 64 * 1024 => Answer::Response(Payload::Segment(
                cwasi::sys::segment::Segment::copy_of(&bytes).unwrap(),
            )),
            Some(Ok(bytes)) => Answer::Response(Payload::Inline(bytes)),
            Some(Err(error)) => Answer::Error(error),
            None => return,
        };
        // A caller that went away is no failure of the callee.
        drop(respond(connection.as_fd(), id, &answer, None));
    });
}

impl Bench for Local {
    type Caller = LocalCaller;

    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = seqpacket::listener(&dir.path().join("r.sock")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let server =
            Some(std::thread::spawn(move || serve(Receiver::new(listener, MAX_PAYLOAD), &flag)));
        Self { dir, stop, server }
    }

    fn caller(&self) -> LocalCaller {
        let connection = seqpacket::connect_to(&self.dir.path().join("r.sock")).unwrap();
        let identity = Identity {
            namespace: "tests".to_owned(),
            pod_namespace: String::new(),
            function: "caller".to_owned(),
        };
        send_frame(connection.as_fd(), &Hello::of(&identity, "", "1"), b"", &[], None).unwrap();
        let route = LocalRoute { instance: "1".to_owned(), connection, max_request: MAX_PAYLOAD };
        LocalCaller { mode: LocalMode::new(MAX_PAYLOAD), route }
    }

    fn kill(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }

    fn can_be_killed() -> bool {
        true
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A caller with a connection of its own.
pub struct LocalCaller {
    mode: LocalMode,
    route: LocalRoute,
}

impl Caller for LocalCaller {
    fn call(&mut self, call: &Call<'_>) -> Result<Payload, CallError> {
        self.mode.call(&mut self.route, call)
    }
}

crate::conformance!(Local);

/// Counted in a process of its own, where no other test opens descriptors.
#[test]
fn nothing_leaks() {
    if std::env::var_os("CWASI_LEAK_CHILD").is_some() {
        crate::suite::nothing_leaks::<Local>();
        return;
    }
    let status = Command::new("/proc/self/exe")
        .arg0("conformance")
        .args(["--exact", "local::nothing_leaks", "--test-threads=1"])
        .env("CWASI_LEAK_CHILD", "1")
        .status()
        .unwrap();
    assert!(status.success());
}
