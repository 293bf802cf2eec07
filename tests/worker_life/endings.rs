//! Requests that end badly: each the request's error, and the next one is served.

use cwasi_config::Engine;
use cwasi_testbed::engines;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use crate::guests::{DEEP, load, output};
use crate::harness::{Case, in_child};
use crate::worker::{Ended, Worker};

/// How long a guest that never ends is watched.
const ENDLESS: Duration = Duration::from_millis(400);
/// How long a guest may take to overflow its stack.
const OVERFLOW: Duration = Duration::from_secs(60);

pub const CASES: &[Case] = &[
    ("a_trap_is_the_requests_error", traps),
    ("a_panic_tells_its_text", panics),
    ("an_exit_is_the_requests_error", exits),
    ("a_thousand_traps_in_a_row", thousand_traps),
    ("an_endless_guest_dies_with_its_worker", endless),
    ("endless_recursion_of_a_rust_guest_is_a_trap", recursion),
    ("endless_native_recursion_dies_with_its_worker", native_recursion),
];

fn traps() {
    let mut worker = Worker::new("server", &[]);
    assert_eq!(
        worker.request(b"!oob").trap(),
        "trap in `cwasi_handle`: out of bounds memory access"
    );
    assert_eq!(worker.request(b"after").text(), "after");
    assert_eq!(worker.request(b"!trap").trap(), "trap in `cwasi_handle`: unreachable");
    assert_eq!(worker.request(b"after").text(), "after");
}

fn panics() {
    let mut worker = Worker::new("actor", &["panic"]);
    for _ in 0..3 {
        let ended = worker.request(b"12345");
        let message = ended.trap();
        assert!(message.starts_with("trap in `cwasi_handle`: unreachable: "), "{message}");
        assert!(message.contains("actor/src/lib.rs:"), "{message}");
        assert!(message.ends_with("cannot go on with 5 bytes"), "{message}");
    }
}

fn exits() {
    let mut worker = Worker::new("server", &[]);
    for code in [0, 7, 255] {
        assert_eq!(worker.request(format!("!exit {code}").as_bytes()), Ended::Exited(code));
        assert_eq!(worker.request(b"after").text(), "after");
    }
}

fn thousand_traps() {
    let mut worker = Worker::new("server", &[]);
    for round in 0..1000 {
        let payload: &[u8] = if round % 2 == 0 { b"!oob" } else { b"!trap" };
        worker.request(payload).trap();
    }
    assert_eq!(worker.request(b"after").text(), "after");
}

/// Endless loops and waits: only the worker's death ends them, and the next worker is as good as new.
fn endless() {
    let module = load("server");
    let mut worker = Worker::of(module, "server", &[]);
    worker.prepare();
    for payload in [&b"!loop"[..], b"!block", b"!sleep 3600000"] {
        let end = in_child(&output(), || drop(worker.request(payload))).wait(ENDLESS);
        assert_eq!(end, None, "it ended by itself");
        let end = in_child(&output(), || assert_eq!(worker.request(b"after").text(), "after"));
        assert!(matches!(end.wait(OVERFLOW), Some(WaitStatus::Exited(_, 0))));
    }
}

/// With WasmEdge the native stack ends with a signal, and the next worker is as good as new; wasmtime notices.
fn native_recursion() {
    let mut worker = Worker::new(DEEP, &[]);
    if engines::tested() == Engine::Wasmtime {
        for _ in 0..2 {
            let trap = "trap in `cwasi_handle`: call stack exhausted";
            assert_eq!(worker.request(b"").trap(), trap);
        }
        return;
    }
    worker.prepare();
    for _ in 0..2 {
        let end = in_child(&output(), || drop(worker.request(b""))).wait(OVERFLOW);
        assert!(matches!(end, Some(WaitStatus::Signaled(_, Signal::SIGSEGV, _))), "{end:?}");
    }
}

/// Rust keeps a stack of its own in linear memory, which ends first: a trap.
fn recursion() {
    let mut worker = Worker::new("server", &[]);
    worker.request(b"!recurse").trap();
    assert_eq!(worker.request(b"after").text(), "after");
}
