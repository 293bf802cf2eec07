//! Function embedding under the suite: a caller's VM with the callee in it, on a thread of its own, a fresh
//! instance for each call. The guest's call comes to the dispatcher (`FunctionCalls`), which finds that it is embedded.

use cwasi_testbed::engines;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

use cwasi_dispatcher::{Dispatcher, EmbeddedCalls, Resolve, ResolvedRoute, RouteQuery, Settings};
use cwasi_engine_tests::{AnyEngine, compile};
use cwasi_modes::{CallError, OutgoingPayload, Payload};
use cwasi_sandbox::dispatch::FunctionCalls;
use cwasi_sys::clock::Deadline;
use cwasi_vm::{
    Context, Engine, EngineOptions, HandlerOutcome, Host, InstanceSpec, Level, LogSink, Module,
    reactor,
};
use cwasi_wire::control::{EdgeReport, EmbeddedModule, ModeHint};
use cwasi_wire::envelope::{CallStatus, Detail};

use crate::{Caller, Fixture, MAX_PAYLOAD};

struct NoLog;

impl LogSink for NoLog {
    fn log(&mut self, _: Level, _: &Context, _: &str) {}
}

/// Passes its payload on to `callee` and answers with the errno as a byte and what came back behind it.
const CALLER: &str = r#"(module
    (import "cwasi" "request_dispatcher" (func $call (param i32 i32 i32 i32 i32) (result i32)))
    (import "cwasi" "response_read" (func $read (param i32 i32 i32) (result i32)))
    (memory (export "memory") 256)
    (data (i32.const 64) "callee")
    (global $next (mut i32) (i32.const 4096))
    (func (export "cwasi.home"))
    (func $alloc (export "cwasi_alloc") (param i32 i32) (result i32) (local $at i32)
        (local.set $at (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
        (global.set $next (i32.add (local.get $at) (local.get 0)))
        (local.get $at))
    (func (export "cwasi_handle") (param $p i32) (param $n i32) (param $out i32) (result i32)
        (local $errno i32) (local $at i32) (local $len i32)
        (local.set $errno
            (call $call (i32.const 64) (i32.const 6) (local.get $p) (local.get $n) (i32.const 32)))
        (local.set $len (i32.load (i32.const 36)))
        (local.set $at (call $alloc (i32.add (local.get $len) (i32.const 1)) (i32.const 1)))
        (i32.store8 (local.get $at) (local.get $errno))
        (if (call $read (i32.load (i32.const 32)) (i32.add (local.get $at) (i32.const 1)) (local.get $len))
            (then unreachable))
        (i32.store (local.get $out) (local.get $at))
        (i32.store offset=4 (local.get $out) (i32.add (local.get $len) (i32.const 1)))
        (i32.const 0)))"#;

/// [`CALLER`], but the call is started, and waited for with its handle at 28.
fn starting_caller() -> String {
    let imports = r#"(import "cwasi" "dispatch_start" (func $start (param i32 i32 i32 i32 i32 i32) (result i32)))
    (import "cwasi" "dispatch_wait" (func $wait (param i32 i32 i32 i32) (result i32)))"#;
    let call = r#"(if (call $start (i32.const 64) (i32.const 6) (local.get $p) (local.get $n) (i32.const 0) (i32.const 24))
            (then unreachable))
        (if (call $wait (i32.const 24) (i32.const 1) (i32.const -1) (i32.const 28))
            (then unreachable))
        (local.set $errno (i32.load (i32.const 40)))"#;
    let (before, rest) = CALLER.split_once("(import").unwrap();
    let (_, rest) = rest.split_once("\n").unwrap();
    let (head, rest) = rest.split_once("(local.set $errno").unwrap();
    let (_, tail) = rest.split_once("(local.set $len").unwrap();
    format!("{before}{imports}\n{head}{call}\n        (local.set $len{tail}")
}

/// What [`crate::callee`] does, as far as a callee in its caller's VM can.
const CALLEE: &str = r#"(module
    (memory (export "memory") 128)
    (data (i32.const 64) "no such plate")
    (global $next (mut i32) (i32.const 4096))
    (func (export "cwasi_alloc") (param i32 i32) (result i32) (local $at i32)
        (local.set $at (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
        (global.set $next (i32.add (local.get $at) (local.get 0)))
        (local.get $at))
    (func $answer (param $out i32) (param $p i32) (param $n i32) (param $status i32) (result i32)
        (i32.store (local.get $out) (local.get $p))
        (i32.store offset=4 (local.get $out) (local.get $n))
        (local.get $status))
    (func $reverse (param $p i32) (param $n i32) (local $to i32)
        (local.set $to (i32.const 4194304))
        (block $done (loop $again
            (br_if $done (i32.eqz (local.get $n)))
            (local.set $n (i32.sub (local.get $n) (i32.const 1)))
            (i32.store8 (local.get $to) (i32.load8_u (i32.add (local.get $p) (local.get $n))))
            (local.set $to (i32.add (local.get $to) (i32.const 1)))
            (br $again))))
    (func (export "cwasi_handle") (param $p i32) (param $n i32) (param $out i32) (result i32)
        (local $what i32)
        (if (local.get $n) (then (local.set $what (i32.load8_u (local.get $p)))))
        (if (i32.eq (local.get $what) (i32.const 101)) ;; e
            (then (return (call $answer (local.get $out) (local.get $p) (local.get $n) (i32.const 0)))))
        (if (i32.eq (local.get $what) (i32.const 114)) ;; r
            (then
                (call $reverse (local.get $p) (local.get $n))
                (return (call $answer (local.get $out) (i32.const 4194304) (local.get $n) (i32.const 0)))))
        (if (i32.eq (local.get $what) (i32.const 102)) ;; f
            (then (return (call $answer (local.get $out) (i32.const 64) (i32.const 13) (i32.const 1)))))
        (if (i32.eq (local.get $what) (i32.const 116)) (then unreachable)) ;; t
        (if (i32.eq (local.get $what) (i32.const 98)) ;; b
            (then (return (call $answer (local.get $out) (i32.const 4096) (i32.const TOO_LARGE) (i32.const 0)))))
        (call $answer (local.get $out) (i32.const 0) (i32.const 0) (i32.const 0))))"#;

struct Artifacts {
    calling: PathBuf,
    starting: PathBuf,
    callee: PathBuf,
}

/// A folder of this process: some tests run this program again. Nothing runs after the last test, so each process
/// removes the folders of those that have ended.
fn directory() -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance-embedded");
    std::fs::create_dir_all(&all).unwrap();
    for of_process in std::fs::read_dir(&all).unwrap().flatten() {
        if !Path::new("/proc").join(of_process.file_name()).exists() {
            // Another process may remove it, too.
            let _removed = std::fs::remove_dir_all(of_process.path());
        }
    }
    let own = all.join(std::process::id().to_string());
    std::fs::create_dir_all(&own).unwrap();
    own
}

/// The modules, compiled once.
fn artifacts() -> &'static Artifacts {
    static BUILT: OnceLock<Artifacts> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = directory();
        let build = |name: &str, text: &str| {
            let wasm = directory.join(format!("{name}.wasm"));
            std::fs::write(&wasm, wat::parse_str(text).unwrap()).unwrap();
            compile(engines::tested(), &wasm)
        };
        let callee = CALLEE.replace("TOO_LARGE", &(MAX_PAYLOAD + 1).to_string());
        Artifacts {
            calling: build("calling", CALLER),
            starting: build("starting", &starting_caller()),
            callee: build("callee", &callee),
        }
    })
}

/// Nothing is asked for that is not embedded.
struct Nowhere;

impl Resolve for Nowhere {
    fn resolve(
        &mut self,
        question: &RouteQuery<'_>,
        _: Option<Deadline>,
    ) -> Result<ResolvedRoute, CallError> {
        Err(CallError::NoSuchFunction { message: question.target.to_owned() })
    }

    fn report(&mut self, _: Vec<EdgeReport>) {}
}

struct CallRequest {
    payload: Vec<u8>,
    deadline: Option<Deadline>,
}

/// A caller's life: one instance per request, until the sender is dropped.
fn live(
    caller: &Path,
    requests: &Receiver<CallRequest>,
    answers: &Sender<Result<Vec<u8>, CallError>>,
) {
    let callee = &artifacts().callee;
    let embedded = [EmbeddedModule {
        name: "callee".into(),
        artifact: callee.clone(),
        digest: String::new(),
        dispatch: true,
        reason: "a test".into(),
    }];
    let settings =
        Settings { caller: "caller".into(), max_payload: MAX_PAYLOAD, timeout_ms: 60_000 };
    let mut dispatcher = Dispatcher::new(settings, Nowhere);
    let calls = EmbeddedCalls::new(ModeHint::Auto, MAX_PAYLOAD, &embedded, dispatcher.edges());
    let calls = FunctionCalls::new(dispatcher, calls);
    let mut host = Host::new(Context::default(), Box::new(calls), Box::new(NoLog));
    let engine = AnyEngine::new(EngineOptions::default()).unwrap();
    let module = engine.load_with(caller, &embedded).unwrap();
    for request in requests {
        let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        host.begin(Context { deadline: request.deadline, ..Context::default() });
        let payload = Payload::Inline(request.payload);
        let answer = match reactor::handle(&mut instance, &payload, &mut host) {
            HandlerOutcome::Answered(bytes) => match bytes.split_first().unwrap() {
                (0, response) => Ok(response.to_vec()),
                (errno, text) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    let (errno, detail) = (i32::from(*errno), Detail::DETAIL_NONE);
                    Err(CallError::from_wire(CallStatus::of(errno, detail), text, "callee"))
                }
            },
            HandlerOutcome::Trapped(trap) => Err(CallError::Trapped { message: trap.to_string() }),
            other => panic!("{other:?}"),
        };
        host.end();
        if answers.send(answer).is_err() {
            return;
        }
    }
}

/// There is nothing to start: the callee comes with each caller.
pub struct Embedded;

impl Embedded {
    fn caller_of(artifact: &'static Path) -> EmbeddedCaller {
        let (requests, taken) = channel();
        let (given, answers) = channel();
        std::thread::spawn(move || live(artifact, &taken, &given));
        EmbeddedCaller { requests, answers }
    }
}

/// The same with calls that are started and waited for.
pub struct EmbeddedStarted;

impl Fixture for EmbeddedStarted {
    type Caller = EmbeddedCaller;

    fn start() -> Self {
        artifacts();
        Self
    }

    fn caller(&self) -> EmbeddedCaller {
        Embedded::caller_of(&artifacts().starting)
    }
}

impl Fixture for Embedded {
    type Caller = EmbeddedCaller;

    fn start() -> Self {
        artifacts();
        Self
    }

    fn caller(&self) -> EmbeddedCaller {
        Self::caller_of(&artifacts().calling)
    }
}

/// A caller's VM on its thread.
pub struct EmbeddedCaller {
    requests: Sender<CallRequest>,
    answers: Receiver<Result<Vec<u8>, CallError>>,
}

impl Caller for EmbeddedCaller {
    fn call(
        &mut self,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> Result<Vec<u8>, CallError> {
        // The caller's request brings it: the call itself is made from the guest's memory.
        let payload = match payload {
            OutgoingPayload::Bytes(bytes) => bytes.to_vec(),
            OutgoingPayload::Segment(segment) => segment.to_vec().unwrap(),
        };
        self.requests.send(CallRequest { payload, deadline }).unwrap();
        self.answers.recv().unwrap()
    }
}

crate::conformance!(Embedded);

#[test]
fn nothing_leaks() {
    let case = crate::suite::nothing_leaks::<Embedded>;
    crate::in_a_process_of_its_own("embedded::nothing_leaks", case);
}

#[test]
fn a_call_after_its_deadline_is_not_made() {
    let mut caller = Embedded::start().caller();
    let ended = caller.call(OutgoingPayload::Bytes(b"e"), Some(Deadline::at_ns(1)));
    assert!(matches!(ended, Err(CallError::Timeout { .. })), "{ended:?}");
}

mod in_flight {
    use super::EmbeddedStarted;

    crate::conformance!(EmbeddedStarted);

    #[test]
    fn nothing_leaks() {
        let case = crate::suite::nothing_leaks::<EmbeddedStarted>;
        crate::in_a_process_of_its_own("embedded::in_flight::nothing_leaks", case);
    }
}
