//! Secondaries: every request its own instance, every fault its own request's error.

use cwasi_config::Engine;
use cwasi_testbed::engines;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cwasi_abi::Errno;
use cwasi_modes::local::{LocalMode, LocalRoute};
use cwasi_modes::{CallError, OutgoingCall, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::random::bytes16;
use cwasi_wire::control::{Entry, FunctionLaunch, Isolation, Role, SandboxMessage};
use cwasi_wire::ids::CallId;
use cwasi_wire::trace_headers::TraceHeaders;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::fixture::{Fixture, descriptors_of, eventually};
use crate::function::{Function, command, launch};
use crate::guests::guests;

pub fn reactor() -> FunctionLaunch {
    launch(Role::Secondary, &guests().reactor, Entry::Reactor)
}

pub fn errno(code: i32) -> Errno {
    Errno::from_code(code).unwrap()
}

/// What a worker holds between requests besides a connection for each caller: stdio, broker, init, the log, the
/// workers' wake-up, copies of stdin and stdout to return to, what watches its callers and init, as the leader and as a
/// follower, and the page map by which instances are renewed; with wasmtime the module's data, too.
pub fn idle_descriptors_len() -> usize {
    12 + usize::from(is_wasmtime())
}

/// Which of the engines' ways a test sees.
pub fn is_wasmtime() -> bool {
    engines::tested() == Engine::Wasmtime
}

/// What a caller learns of endless recursion.
pub fn overflow() -> &'static str {
    if is_wasmtime() { "call stack exhausted" } else { "stack overflow" }
}

/// The descriptors of an idle worker.
pub fn idle_descriptors(
    function: &Function<'_>,
    worker: usize,
    callers: usize,
) -> Vec<(i32, PathBuf)> {
    // One that died is replaced a moment after its caller has the error.
    let pid = eventually("a worker", || function.workers().get(worker).copied());
    let pid = Pid::from_raw(pid);
    // A moment passes before it has what it is given, and lets go of what has ended.
    eventually("an idle worker", || {
        let held = descriptors_of(pid);
        (held.len() == idle_descriptors_len() + callers).then_some(held)
    })
}

#[test]
fn every_request_has_an_instance_of_its_own() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "s", reactor());
    let mut caller = function.caller();
    for _ in 0..5 {
        assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    }
    for size in [0, 1, 65535, 65536, 65537, 1 << 20] {
        let payload = vec![0xab; size];
        assert_eq!(caller.call(&payload).unwrap().len(), size);
    }
    assert_eq!(function.workers().len(), 1, "one worker served them all");
    function.container.signal(Signal::SIGTERM);
    assert_eq!(function.container.wait(), 143);
    function.container.delete();
    assert!(fixture.cgroups("s").is_empty());
}

/// What `_initialize` has made of random numbers, as each request sees it, and what the function's stderr says.
fn draws(fixture: &Fixture, id: &str, isolation: Isolation) -> (Vec<Vec<u8>>, String) {
    let launch = launch(Role::Secondary, &guests().random, Entry::Reactor);
    let launch = FunctionLaunch { isolation, concurrency: 2, ..launch };
    let mut function = Function::start(fixture, id, launch);
    let mut caller = function.caller();
    let drawn = (0..40)
        .map(|_| {
            assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
            caller.call(b"n").unwrap()
        })
        .collect();
    function.end();
    (drawn, function.container.errors())
}

#[test]
fn requests_start_from_bytes_of_their_own_or_from_their_workers_snapshot() {
    let fixture = Fixture::new();
    let different =
        |drawn: &[Vec<u8>]| drawn.iter().collect::<std::collections::BTreeSet<_>>().len();
    let (drawn, said) = draws(&fixture, "request", Isolation::Request);
    assert_eq!(different(&drawn), drawn.len());
    if is_wasmtime() {
        assert_eq!(said, "", "whatever instances start with, they are made anew");
    } else {
        let line =
            "each request gets an instance made anew: its instances start with different bytes";
        assert_eq!(said.matches(line).count(), 1, "once, and how to change it: {said}");
        assert!(said.contains("cwasi.isolation=snapshot"), "{said}");
    }
    let (drawn, said) = draws(&fixture, "snapshot", Isolation::Snapshot);
    // A worker takes one when it starts, and others when it learns how long payloads are.
    assert!(different(&drawn) <= 4, "{drawn:?}");
    assert_eq!(said, "");
}

/// The engine counts what guests allocate; the kernel bounds the process.
#[test]
fn a_workers_memory_has_a_ceiling_if_the_function_has_one() {
    let fixture = Fixture::new();
    let ceiling = |id: &str, memory_max: Option<u64>| {
        let launch = FunctionLaunch { memory_max, max_payload: 1 << 20, ..reactor() };
        let function = Function::start(&fixture, id, launch);
        assert_eq!(function.caller().call(b"c"), Ok(b"1".to_vec()));
        let worker = eventually("a worker", || function.workers().first().copied());
        let limits = std::fs::read_to_string(format!("/proc/{worker}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
        line.split_whitespace().nth(3).unwrap().parse::<u64>().ok()
    };
    assert_eq!(ceiling("free", None), None, "unlimited");
    let (small, large) = (ceiling("small", Some(4 << 20)), ceiling("large", Some(68 << 20)));
    // The process itself has the same in both.
    let difference = large.unwrap() - small.unwrap();
    assert!(difference.abs_diff(2 * (64 << 20)) < 4 << 20, "{difference}");
}

/// Its guest never frees anything.
#[test]
fn an_instance_that_is_kept_is_replaced_when_its_memory_is_used_up() {
    let fixture = Fixture::new();
    let launch =
        FunctionLaunch { isolation: Isolation::Instance, memory_max: Some(4 << 20), ..reactor() };
    let function = Function::start(&fixture, "kept", launch);
    let mut caller = function.caller();
    let mut counts = |expected: &[u8]| {
        for count in expected {
            assert_eq!(caller.call(b"c"), Ok(vec![*count]));
        }
    };
    counts(b"12");
    // One that no instance has memory for leaves the instance's state alone.
    let error = |payload: usize| {
        let mut caller = function.caller();
        let (code, message) = caller.call(&vec![b'e'; payload]).unwrap_err();
        assert_eq!(errno(code), Errno::Failed);
        assert!(message.contains("no memory in the guest for"), "{message}");
        assert!(message.contains("cwasi.memory"), "{message}");
    };
    [5 << 20, 6 << 20, 5 << 20].into_iter().for_each(error);
    counts(b"34");
    // One that a fresh instance has memory for gets one.
    let large = vec![b'e'; 2_300_000];
    for _ in 0..5 {
        assert!(function.caller().call(&large).unwrap() == large);
    }
    counts(b"23");
    // And no request finds it full.
    let payload = vec![b'e'; 100_000];
    for _ in 0..200 {
        assert!(function.caller().call(&payload).unwrap() == payload);
    }
    assert_eq!(function.workers().len(), 1, "one worker served them all");
    function.end();
}

#[test]
fn each_fault_is_one_requests_error_and_the_next_is_served() {
    let fixture = Fixture::new();
    let mut function = Function::start(&fixture, "faults", reactor());
    let mut caller = function.caller();
    let cases: [(&[u8], u64, Errno, &str); 6] = [
        (b"o", 20_000, Errno::Trapped, "out of bounds"),
        (b"r", 20_000, Errno::Trapped, overflow()),
        (b"l", 2500, Errno::Timeout, "deadline"),
        (b"p", 2500, Errno::Timeout, "deadline"),
        (b"x", 20_000, Errno::Failed, "exit(3)"),
        (b"f", 20_000, Errno::Failed, "deliberate failure"),
    ];
    for (payload, timeout_ms, expected, text) in cases {
        let (code, message) = caller.call_within(payload, timeout_ms).unwrap_err();
        assert_eq!(errno(code), expected, "{message}");
        assert!(message.contains(text), "{message}");
        assert!(!message.contains("killed"), "that is errno 11: {message}");
        assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    }
    for _ in 0..1000 {
        assert_eq!(errno(caller.call(b"o").unwrap_err().0), Errno::Trapped);
    }
    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    function.end();
    let said = function.container.errors();
    assert_eq!(
        said.matches("did not end in time").count(),
        2,
        "an operator reads who hung: {said}"
    );
}

#[test]
fn an_unread_stderr_delays_no_call() {
    let fixture = Fixture::new();
    let mut function = Function::start(&fixture, "full", reactor());
    let mut caller = function.caller();
    for _ in 0..2000 {
        assert_eq!(errno(caller.call(b"o").unwrap_err().0), Errno::Trapped);
    }
    assert_eq!(errno(caller.call(b"r").unwrap_err().0), Errno::Trapped);
    function.container.stderr = std::fs::File::open("/dev/null").unwrap();
    for fault in [b"o", b"r"] {
        assert_eq!(errno(caller.call(fault).unwrap_err().0), Errno::Trapped);
    }
    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    function.container.signal(Signal::SIGTERM);
    assert_eq!(function.container.wait(), 143);
}

#[test]
fn a_payload_of_100_mib_comes_back_whole() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "large", reactor());
    let mut payload = vec![b'e'; 100 << 20];
    for (index, chunk) in payload.chunks_mut(4096).enumerate() {
        chunk[1] = u8::try_from(index % 251).unwrap();
    }
    assert!(function.caller().call(&payload).unwrap() == payload);
    function.end();
}

#[test]
fn a_command_reads_stdin_and_answers_on_stdout() {
    let fixture = Fixture::new();
    let entry = command("_start");
    let mut function =
        Function::start(&fixture, "cmd", launch(Role::Secondary, &guests().command, entry));
    let mut caller = function.caller();
    for size in [0_usize, 1, 70_000, 3 << 20] {
        let payload = vec![b'a'; size];
        let response = caller.call(&payload).unwrap();
        assert_eq!(response.len(), size + 4);
        assert!(response.starts_with(b"got:"));
    }
    let (code, message) = caller.call(b"x").unwrap_err();
    assert_eq!(errno(code), Errno::Failed, "{message}");
    let says = "f: exit code 5; end of its stderr: why; end of its stdout: err";
    assert!(message.ends_with(says), "{message}");
    let (code, message) = caller.call(b"t").unwrap_err();
    assert_eq!(errno(code), Errno::Trapped);
    // Nothing of the command before is in it.
    assert!(message.ends_with("unreachable; end of its stderr: why"), "{message}");
    assert_eq!(caller.call(b"again"), Ok(b"got:again".to_vec()));
    function.end();
    assert_eq!(function.container.output(), "", "responses only");
    let errors = function.container.errors();
    assert!(errors.starts_with("err\nerr\nerr\nerr\nwhy\nwhy\n"), "all of it: {errors}");
}

#[test]
fn workers_and_queue_are_bounded_and_answer_at_once() {
    let fixture = Fixture::new();
    let bounded = FunctionLaunch { concurrency: 2, queue: 1, ..reactor() };
    let function = Function::start(&fixture, "bounds", bounded);
    assert_eq!(function.workers().len(), 2);
    let mut caller = function.caller();
    function.until_idle(2);
    let running = [caller.send(b"l", 5000), caller.send(b"l", 5000)];
    function.until_busy(2);
    let waiting = caller.send(b"e", 20_000);
    let refused = caller.send(b"e", 20_000);
    let (number, outcome) = caller.receive();
    let (code, message) = outcome.unwrap_err();
    assert_eq!((number, errno(code)), (refused, Errno::Overloaded));
    assert!(message.contains("cwasi.queue"), "{message}");
    let mut timeouts = Vec::new();
    let mut served = false;
    for _ in 0..3 {
        match caller.receive() {
            (number, Err((code, _))) if errno(code) == Errno::Timeout => timeouts.push(number),
            (number, Ok(bytes)) => served = number == waiting && bytes == b"e",
            other => panic!("{other:?}"),
        }
    }
    timeouts.sort_unstable();
    assert_eq!((timeouts, served), (running.to_vec(), true));
    function.end();
}

#[test]
fn waiting_requests_expire_and_leave_with_their_caller() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "wait", FunctionLaunch { queue: 2, ..reactor() });
    let mut busy = function.caller();
    busy.send(b"l", 20_000);
    function.until_busy(1);
    let mut gone = function.caller();
    gone.send(b"e", 20_000);
    gone.send(b"e", 20_000);
    // Else a later one could get their place.
    gone.until_read();
    let mut late = function.caller();
    eventually("a full queue", || {
        let (code, _) = late.call_within(b"e", 1).unwrap_err();
        (errno(code) == Errno::Overloaded).then_some(())
    });
    drop(gone);
    let outcome = eventually("room in the queue", || {
        let (code, message) = late.call_within(b"e", 10).unwrap_err();
        (errno(code) == Errno::Timeout).then_some(message)
    });
    assert!(outcome.contains("deadline"), "{outcome}");
    nix::sys::signal::kill(Pid::from_raw(function.workers()[0]), Signal::SIGKILL).unwrap();
    assert_eq!(errno(busy.receive().1.unwrap_err().0), Errno::Broken);
    assert_eq!(busy.call(b"c"), Ok(b"1".to_vec()));
    function.end();
}

#[test]
fn a_killed_worker_is_the_running_requests_error_and_is_replaced() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "kill", reactor());
    let mut caller = function.caller();
    let first = function.workers()[0];
    caller.send(b"l", 20_000);
    function.until_busy(1);
    nix::sys::signal::kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    let (code, message) = caller.receive().1.unwrap_err();
    assert_eq!(errno(code), Errno::Broken, "{message}");
    assert!(message.contains("its worker was killed by signal 9"), "{message}");
    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    let second = function.workers();
    assert!(second.len() == 1 && second[0] != first);
    // A real-time signal, which has no name.
    cwasi_sys::pidfd::PidFd::open(second[0]).unwrap().signal(34).unwrap();
    eventually("a third worker", || {
        let workers = function.workers();
        (workers.len() == 1 && workers[0] != second[0]).then_some(())
    });
    assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()), "an idle worker's death is no call's error");
    function.end();
}

#[test]
fn a_stop_signal_finishes_what_is_in_flight() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "drain", FunctionLaunch { queue: 1, ..reactor() });
    let (mut caller, mut late) = (function.caller(), function.caller());
    caller.send(b"l", 5000);
    function.until_busy(1);
    caller.send(b"e", 20_000);
    // Else the next one could get the place first.
    caller.until_read();
    eventually("a full queue", || {
        let (code, _) = late.call_within(b"e", 1).unwrap_err();
        (errno(code) == Errno::Overloaded).then_some(())
    });
    function.container.signal(Signal::SIGTERM);
    let mut other = function.caller_if_listening();
    assert_eq!(errno(caller.receive().1.unwrap_err().0), Errno::Timeout);
    assert_eq!(caller.receive().1, Ok(b"e".to_vec()));
    assert_eq!(function.container.wait(), 143);
    drop(other.take());
    function.container.delete();
}

/// Its next request comes when it has the answer, and the worker that sent it may have no processor to say that it is
/// free.
#[test]
fn a_caller_with_one_call_at_a_time_is_never_refused() {
    let fixture = Fixture::new();
    let launch = FunctionLaunch { concurrency: 1, queue: 0, ..reactor() };
    let function = Function::start(&fixture, "lone", launch);
    let mut caller = function.caller();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let refused = (0..400).filter(|_| caller.call(b"e") != Ok(b"e".to_vec())).count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(refused, 0);
    });
    function.end();
}

#[test]
fn a_one_shot_secondary_ends_by_itself() {
    let fixture = Fixture::new();
    let function =
        Function::start(&fixture, "shot", FunctionLaunch { max_requests: 2, ..reactor() });
    let mut caller = function.caller();
    assert!(caller.call(b"e").is_ok() && caller.call(b"e").is_ok());
    assert_eq!(function.container.wait(), 0);
    function.container.delete();
}

/// Without a queue, and with connections that are older than the workers.
#[test]
fn the_workers_of_an_idle_secondary_end_until_the_next_request() {
    let fixture = Fixture::new();
    let launch = FunctionLaunch { idle_ms: Some(50), concurrency: 2, queue: 0, ..reactor() };
    let function = Function::start(&fixture, "idle", launch);
    let suspended = || eventually("no workers", || function.workers().is_empty().then_some(()));
    let mut callers = [function.caller(), function.caller()];
    for _ in 0..5 {
        suspended();
        assert_eq!(callers[0].call(b"e"), Ok(b"e".to_vec()));
        suspended();
        // As many at once as there may be workers.
        let sent = callers.each_mut().map(|caller| caller.send(b"e", 20_000));
        for (caller, sent) in callers.iter().zip(sent) {
            assert_eq!(caller.receive(), (sent, Ok(b"e".to_vec())));
        }
    }
    suspended();
    assert!(function.caller().call(b"e").is_ok(), "a new caller");
    suspended();
    function.end();
}

/// A call over a connection on which no other is out.
pub fn call(
    mode: &mut LocalMode,
    route: &LocalRoute,
    payload: &[u8],
) -> Result<Payload, CallError> {
    let deadline = Some(Deadline::after(Duration::from_secs(20)));
    let call = OutgoingCall {
        id: CallId(bytes16()),
        target: "f",
        payload: OutgoingPayload::Bytes(payload),
        deadline,
        trace: TraceHeaders::default(),
        traced: false,
        attempt: 1,
        run: None,
        join: None,
    };
    let copy = mode.copy(route, &call)?;
    let content = copy.as_ref().map_or(call.payload, OutgoingPayload::from);
    assert!(mode.send(route, &call, content, deadline)?, "there is room");
    mode.receive(route, "f", deadline)?.expect("an answer in time").result
}

#[test]
fn leases_come_back_from_answers_ends_and_killed_workers() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "leases", reactor());
    let (mut mode, route, pool) = function.lending_caller();
    let mut payload = vec![b'e'; 3 << 20];
    let nothing_is_lent = || pool.trim().then_some(());
    for _ in 0..20 {
        let answer = call(&mut mode, &route, &payload).unwrap();
        let Payload::Segment(answer) = answer else { panic!("inline") };
        assert!(answer.token().is_some() && answer.to_vec().unwrap() == payload);
    }
    eventually("the leases to come back", nothing_is_lent);
    // An endless loop, whose worker is killed from outside.
    payload[0] = b'l';
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call(&mut mode, &route, &payload));
        eventually("a busy worker", || (pool.bytes() > 0).then_some(()));
        assert!(!pool.trim(), "the worker looks at it");
        function.until_busy(1);
        let worker = Pid::from_raw(function.workers()[0]);
        nix::sys::signal::kill(worker, Signal::SIGKILL).unwrap();
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Err(CallError::Broken { .. })), "{ended:?}");
    });
    eventually("the killed worker's lease", nothing_is_lent);
    eventually("another worker", || (!function.workers().is_empty()).then_some(()));
    assert_eq!(idle_descriptors(&function, 0, 1).len(), idle_descriptors_len() + 1);
}

#[test]
fn a_module_that_cannot_be_instantiated_fails_the_start() {
    let fixture = Fixture::new();
    let wrong = launch(Role::Primary, &guests().reactor, Entry::Reactor);
    let function = Function::create(&fixture, "role", wrong).unwrap();
    function.container.start();
    let SandboxMessage::StartFailed { message } = function.message() else { panic!("started") };
    assert!(message.contains("cwasi.role"), "{message}");
    assert_eq!(function.container.wait(), 125);
    function.container.delete();
}
