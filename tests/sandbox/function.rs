//! A function in its sandbox, as its shim and its callers see it.
#![expect(unsafe_code, reason = "an ioctl")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cwasi_modes::local::{LocalError, LocalMode, LocalRoute};
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;
use cwasi_wire::control::{
    self, CONTROL_MESSAGE_MAX, Entry, FunctionLaunch, ModeHint, Role, SandboxMessage, Workload,
};
use cwasi_wire::envelope::{Hello, Join, Request, Response};
use cwasi_wire::frame::FRAME_MAX;
use cwasi_wire::ids::Identity;
use cwasi_wire::trace::TraceStart;

use crate::fixture::{Container, Fixture, WAIT, eventually};
use crate::frames::{receive_frame, send_frame};

/// Largest payload in these tests.
pub const PAYLOAD_MAX: u64 = 128 << 20;

fn soon() -> Option<Deadline> {
    Some(Deadline::after(WAIT))
}

pub fn identity(function: &str) -> Identity {
    Identity { namespace: "test".into(), pod_namespace: String::new(), function: function.into() }
}

/// A launch with nothing special.
pub fn launch(role: Role, artifact: &Path, entry: Entry) -> FunctionLaunch {
    FunctionLaunch {
        identity: identity("f"),
        group: String::new(),
        trust: String::new(),
        workflow: String::new(),
        instance: "0123456789abcdef".into(),
        role,
        mode: ModeHint::Auto,
        artifact: artifact.into(),
        module_digest: String::new(),
        entry,
        isolation: cwasi_wire::control::Isolation::Request,
        embedded: Vec::new(),
        not_embedded: std::collections::BTreeMap::new(),
        awaits_code: false,
        log_has_times: false,
        args: vec!["f".into()],
        env: Vec::new(),
        preopens: Vec::new(),
        files: None,
        concurrency: 1,
        workers_max: 1,
        cpu_milli: None,
        queue: 8,
        timeout_ms: None,
        max_payload: PAYLOAD_MAX,
        max_head: 65_536,
        pool_max: 64 << 20,
        memory_max: None,
        container_memory: None,
        max_requests: 0,
        idle_ms: None,
        fan_in: None,
        egress: None,
        trace: TraceStart::UNSAMPLED,
    }
}

pub fn command(export: &str) -> Entry {
    Entry::Command { export: export.into() }
}

pub struct Function<'a> {
    pub container: Container<'a>,
    pub broker: OwnedFd,
    pub receiver: std::path::PathBuf,
}

impl<'a> Function<'a> {
    pub fn create(fixture: &'a Fixture, id: &str, launch: FunctionLaunch) -> Result<Self, String> {
        let bundle = fixture.bundle(id, &["/f.wasm"], |_| {});
        Self::create_in(fixture, id, bundle, launch)
    }

    pub fn create_in(
        fixture: &'a Fixture,
        id: &str,
        bundle: std::path::PathBuf,
        launch: FunctionLaunch,
    ) -> Result<Self, String> {
        let (broker, theirs) = seqpacket::pair().unwrap();
        let receiver = fixture.dir.path().join(format!("{id}.sock"));
        let listener =
            (launch.role == Role::Secondary).then(|| seqpacket::listener(&receiver).unwrap());
        let mut more = vec![theirs.as_fd()];
        more.extend(listener.iter().map(AsFd::as_fd));
        let workload = Workload::Function(Box::new(launch));
        let container = fixture.create(id, bundle, workload, &more)?;
        Ok(Self { container, broker, receiver })
    }

    /// Created, started and ready.
    pub fn start(fixture: &'a Fixture, id: &str, launch: FunctionLaunch) -> Self {
        let function = Self::create(fixture, id, launch).unwrap();
        function.container.start();
        assert_eq!(function.message(), SandboxMessage::Ready);
        function
    }

    /// What the sandbox says to its shim next.
    pub fn message(&self) -> SandboxMessage {
        let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
        let received = seqpacket::receive(self.broker.as_fd(), &mut buffer, soon()).unwrap();
        control::decode(&buffer[..received.len]).unwrap()
    }

    /// A caller that its shim has introduced.
    pub fn caller(&self) -> Caller {
        let connection = seqpacket::connect_to(&self.receiver).unwrap();
        let hello = Hello::of(&identity("tester"), "", "i");
        send_frame(connection.as_fd(), &hello, b"", soon()).unwrap();
        Caller::over(connection)
    }

    /// A caller of the function's trust group, and the pool that it lends from.
    pub fn lending_caller(&self) -> (LocalMode, LocalRoute, SegmentPool) {
        let connection = seqpacket::connect_to(&self.receiver).unwrap();
        let hello = Hello::of(&identity("tester"), "w", "i").lending(true);
        send_frame(connection.as_fd(), &hello, b"", soon()).unwrap();
        let instance = "0123456789abcdef".to_owned();
        let route = LocalRoute { instance, connection, max_request: PAYLOAD_MAX, lends: true };
        let pool = SegmentPool::new(PAYLOAD_MAX);
        let mut mode = LocalMode::new(PAYLOAD_MAX);
        mode.pool = Some(pool.clone());
        (mode, route, pool)
    }

    /// A caller, unless there is no listener any more.
    pub fn caller_if_listening(&self) -> Option<OwnedFd> {
        seqpacket::connect_to(&self.receiver).ok()
    }

    /// Removes it, whatever it does.
    pub fn end(&self) {
        self.container.delete();
        self.container.wait();
    }

    /// Pids of its workers, in the host's pid namespace.
    pub fn workers(&self) -> Vec<i32> {
        let pid = self.container.pid;
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap()
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect()
    }
}

/// Errno and message, or the response.
pub type Outcome = Result<Vec<u8>, (i32, String)>;

static CALLERS: AtomicU64 = AtomicU64::new(0);

pub struct Caller {
    pub connection: OwnedFd,
    /// Its calls' ids are its own.
    number: u64,
    next: u64,
}

impl Caller {
    /// A caller on a connection that is introduced.
    pub fn over(connection: OwnedFd) -> Self {
        Self { connection, number: CALLERS.fetch_add(1, Ordering::Relaxed), next: 0 }
    }

    /// Number of the next request.
    pub fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The call id of a request.
    pub fn id(&self, number: u64) -> Vec<u8> {
        [number.to_le_bytes(), self.number.to_le_bytes()].concat()
    }

    /// Sends a request without waiting; returns its number.
    pub fn send(&mut self, payload: &[u8], timeout_ms: u64) -> u64 {
        self.send_as(Request::default(), payload, timeout_ms)
    }

    /// Sends a part of a group without waiting; returns its number as a request.
    pub fn send_part(&mut self, join: &Join, payload: &[u8], timeout_ms: u64) -> u64 {
        let (run, join) = (vec![9; 16], Some(join.clone()).into());
        self.send_as(Request { run, join, ..Request::default() }, payload, timeout_ms)
    }

    fn send_as(&mut self, what: Request, payload: &[u8], timeout_ms: u64) -> u64 {
        self.try_send_as(what, payload, timeout_ms).unwrap()
    }

    /// Sends a request without waiting, unless the connection has ended.
    pub fn try_send(&mut self, payload: &[u8], timeout_ms: u64) -> Option<u64> {
        self.try_send_as(Request::default(), payload, timeout_ms).ok()
    }

    fn try_send_as(
        &mut self,
        what: Request,
        payload: &[u8],
        timeout_ms: u64,
    ) -> Result<u64, LocalError> {
        let number = self.next_number();
        let request = Request {
            call_id: self.id(number),
            target: "f".into(),
            remaining_us: timeout_ms * 1000,
            attempt: 1,
            ..what
        };
        send_frame(self.connection.as_fd(), &request, payload, soon())?;
        Ok(number)
    }

    /// Waits until everything that was sent has been read.
    pub fn until_read(&self) {
        eventually("requests that are read", || {
            let mut unread: libc::c_int = 1;
            // SAFETY:
            // - TIOCOUTQ writes one int, to a place that lives until the call returns.
            let asked = unsafe {
                libc::ioctl(self.connection.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread)
            };
            (asked == 0 && unread == 0).then_some(())
        });
    }

    pub fn receive(&self) -> (u64, Outcome) {
        let mut buffer = vec![0; FRAME_MAX];
        let answer =
            receive_frame::<Response>(&self.connection, &mut buffer, u64::MAX, soon()).unwrap();
        let bytes = answer.payload.into_vec().unwrap();
        let outcome = match answer.envelope.errno {
            0 => Ok(bytes),
            errno => Err((errno, String::from_utf8(bytes).unwrap())),
        };
        (u64::from_le_bytes(answer.envelope.call_id[..8].try_into().unwrap()), outcome)
    }

    pub fn call(&mut self, payload: &[u8]) -> Outcome {
        self.call_within(payload, 20_000)
    }

    pub fn call_within(&mut self, payload: &[u8], timeout_ms: u64) -> Outcome {
        let number = self.send(payload, timeout_ms);
        loop {
            // A worker that was killed right after it answered leaves a second answer, from init. Callers
            // drop answers to calls that are over.
            let (answered, outcome) = self.receive();
            if answered == number {
                return outcome;
            }
            assert!(answered < number);
        }
    }
}
