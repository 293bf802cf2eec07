//! A worker as the sandbox has it, and callees of its guest.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use cwasi_engine_tests::{AnyInstance, AnyModule};
use cwasi_host_functions::{Dispatch, Level, LogSink};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_vm::reactor::{self, HandlerInput, HandlerOutcome, InstanceBlocks, Preallocation};
use cwasi_vm::{Context, Entry, Host, Instance as _, InstanceSpec, Module as _, Start};

use crate::guests::load;

/// Runs requests of one guest, each in an instance that is as a fresh one, and ready ahead.
pub struct Worker {
    module: AnyModule,
    spec: InstanceSpec,
    host: Host,
    next: Option<(AnyInstance, InstanceBlocks)>,
    /// The last one, and what was kept in it before its request.
    used: Option<(AnyInstance, InstanceBlocks)>,
    /// How long a place the next is asked for ahead of its request, and the last was.
    ahead: Preallocation,
    asked: u64,
    /// Instances that served again.
    renewed: usize,
    /// Requests start from the snapshot of an instance, as with `cwasi.isolation=snapshot`.
    snapshots: bool,
    lines: Lines,
}

impl Worker {
    /// A worker of the guest `name` with these arguments.
    pub fn new(name: &str, args: &[&str]) -> Self {
        Self::of(load(name), name, args)
    }

    pub fn of(module: AnyModule, name: &str, args: &[&str]) -> Self {
        let args = [&[name], args].concat().into_iter().map(str::to_owned).collect();
        let lines = Lines::default();
        let log = Box::new(lines.clone());
        let context = Context { function: name.to_owned(), ..Context::default() };
        let host = Host::new(context, Box::new(Callees), log);
        let spec = InstanceSpec { args, ..InstanceSpec::default() };
        let ahead = Preallocation::within(None);
        let (next, used) = (None, None);
        let (asked, renewed, snapshots) = (0, 0, false);
        Self { module, spec, host, next, used, ahead, asked, renewed, snapshots, lines }
    }

    /// From the next instance on.
    pub fn takes_snapshots(&mut self, snapshots: bool) {
        self.snapshots = snapshots;
    }

    pub fn spec_mut(&mut self) -> &mut InstanceSpec {
        self.forget();
        &mut self.spec
    }

    /// Drops the instances that are there.
    pub fn forget(&mut self) {
        (self.next, self.used) = (None, None);
    }

    /// How often no instance had to be made.
    pub fn renewed(&self) -> usize {
        self.renewed
    }

    /// Makes the next instance ready.
    pub fn prepare(&mut self) {
        if self.next.is_some() {
            return;
        }
        self.renew();
        if self.next.is_none() {
            self.next = Some(self.fresh());
        }
    }

    /// Makes the last instance the next one, if it can be.
    fn renew(&mut self) {
        if let Some((mut instance, kept)) = self.used.take()
            && self.asked == self.ahead.len()
            && instance.renew()
        {
            self.renewed += 1;
            self.next = Some((instance, kept));
        }
    }

    fn fresh(&mut self) -> (AnyInstance, InstanceBlocks) {
        let mut instance = self.module.instantiate(&self.spec, &mut self.host).unwrap();
        let mut kept = InstanceBlocks::default();
        if self.module.check(&Entry::Reactor).is_ok() {
            reactor::prepare(&mut instance, &mut kept, self.ahead, &mut self.host).unwrap();
        }
        self.asked = self.ahead.len();
        instance.remember(match self.snapshots {
            true => Start::Snapshot,
            false => Start::Alike(self.asked),
        });
        (instance, kept)
    }

    /// One request of a reactor.
    pub fn request(&mut self, payload: &[u8]) -> Ended {
        self.request_with(&Payload::Inline(payload.to_vec()))
    }

    /// And nothing of it is there any more.
    pub fn request_with(&mut self, payload: &Payload) -> Ended {
        let ended = self.request_only(payload);
        self.renew();
        ended
    }

    /// And its instance is still as the request left it.
    pub fn request_only(&mut self, payload: &Payload) -> Ended {
        self.prepare();
        let (mut instance, ahead) = self.next.take().unwrap();
        let mut kept = ahead;
        self.host.begin(context());
        let ended = reactor::handle_again(&mut instance, &mut kept, payload, &mut self.host).into();
        self.host.end();
        self.ahead.learn(kept.needed());
        self.used = Some((instance, ahead));
        ended
    }

    /// One request in an instance that is kept for the next.
    pub fn request_kept<'i>(
        &mut self,
        kept: &mut InstanceBlocks,
        payload: impl Into<HandlerInput<'i>>,
    ) -> Ended {
        self.prepare();
        let (mut instance, _) = self.next.take().unwrap();
        self.host.begin(context());
        let ended = reactor::handle_again(&mut instance, kept, payload, &mut self.host).into();
        self.host.end();
        self.next = Some((instance, InstanceBlocks::default()));
        ended
    }

    /// One group of parts, in a fresh instance.
    pub fn request_parts(&mut self, expected: u32, parts: &[(u32, Payload)]) -> Ended {
        let parts: Vec<_> = parts.iter().map(|(number, payload)| (*number, payload)).collect();
        let parts = &parts;
        let ended = self
            .request_kept(&mut InstanceBlocks::default(), HandlerInput::Parts { expected, parts });
        self.next = None;
        ended
    }

    /// Log lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.0.borrow().clone()
    }
}

/// [`HandlerOutcome`] without the borrow.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Answered(Vec<u8>),
    InPlace(Vec<u8>),
    Failed(String),
    Exited(u32),
    Trapped(String),
}

impl Ended {
    pub fn text(&self) -> String {
        match self {
            Self::Answered(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not answered: {other:?}"),
        }
    }

    /// The answer, however it came.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Answered(bytes) | Self::InPlace(bytes) => bytes,
            other => panic!("not answered: {other:?}"),
        }
    }

    pub fn trap(&self) -> &str {
        match self {
            Self::Trapped(message) => message,
            other => panic!("no trap: {other:?}"),
        }
    }
}

impl From<HandlerOutcome<'_>> for Ended {
    fn from(handled: HandlerOutcome<'_>) -> Self {
        match handled {
            HandlerOutcome::Answered(bytes) => Self::Answered(bytes.to_vec()),
            HandlerOutcome::InPlace(segment) => Self::InPlace(segment.to_vec().unwrap()),
            HandlerOutcome::Returned(payload) => Self::InPlace(payload.into_vec().unwrap()),
            HandlerOutcome::Failed(message) => Self::Failed(message),
            HandlerOutcome::Exited(code) => Self::Exited(code),
            HandlerOutcome::Trapped(trap) => Self::Trapped(trap.to_string()),
            HandlerOutcome::Undeliverable(reason) => panic!("{reason}"),
        }
    }
}

fn context() -> Context {
    Context {
        function: "tested".into(),
        workflow: "life".into(),
        invocation_id: "0123456789abcdef0123456789abcdef".into(),
        deadline: Some(Deadline::after(Duration::from_secs(60))),
        attempt: 1,
        caller: "test".into(),
        traceparent: String::new(),
        tracestate: String::new(),
        run: None,
        metadata: Vec::new(),
        max_head: None,
    }
}

/// Functions that the guest can call: `echo` and `reverse` in the host, and `greeter`, a real guest, in a
/// process of its own.
struct Callees;

impl Dispatch for Callees {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> CallResult {
        assert!(deadline.is_some());
        let payload = payload.keep(None).unwrap().into_vec().unwrap();
        let response = match target {
            "echo" => payload,
            "reverse" => payload.iter().rev().copied().collect(),
            _ => {
                let message = format!("no function {target} in this test");
                return Err(CallError::NoSuchFunction { message });
            }
        };
        Ok(Payload::Inline(response))
    }
}

/// Log lines of a guest.
#[derive(Clone, Default)]
pub struct Lines(Rc<RefCell<Vec<String>>>);

impl LogSink for Lines {
    fn log(&mut self, level: Level, context: &Context, message: &str) {
        self.0.borrow_mut().push(format!("{} {}: {message}", level.name(), context.function));
    }
}
