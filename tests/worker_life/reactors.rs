//! Requests of reactors that go well.

use cwasi_config::Engine;
use cwasi_testbed::engines;

use crate::harness::Case;
use crate::worker::Worker;

pub const CASES: &[Case] = &[
    ("every_request_gets_a_fresh_instance", fresh_instances),
    ("a_handler_reads_its_context", context),
    ("log_lines_reach_the_host", log_lines),
    ("a_panic_tells_its_text", panics),
];

fn fresh_instances() {
    let mut worker = Worker::new("server", &[]);
    for _ in 0..20 {
        assert_eq!(worker.request(b"!served").text(), "1");
    }
    // It imports functions of WASI's that can leave a descriptor, and has called none.
    let renewed = if engines::tested() == Engine::Wasmedge { 18 } else { 0 };
    assert_eq!(worker.renewed(), renewed, "wasmtime's are new");
    // The next guest is compiled with a limit of address space, in a fork: no memory of this one may be reserved then.
    drop(worker);
    let mut worker = Worker::new("reader", &[]);
    for number in 0..20 {
        let len = number * 30_000;
        assert_eq!(worker.request(len.to_string().as_bytes()).bytes().len(), len);
    }
    // One was made without a place for the request's payload, and two to see that they start alike.
    assert_eq!(worker.renewed(), renewed);
}

fn context() {
    let mut worker = Worker::new("actor", &["context"]);
    let text = worker.request(b"").text();
    for line in [
        "function=tested",
        "workflow=life",
        "invocation_id=0123456789abcdef0123456789abcdef",
        "caller=test",
        "attempt=1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    // Of 60 s.
    assert!(text.contains("time_left=Some(5"), "{text}");
}

fn log_lines() {
    let mut worker = Worker::new("actor", &["log"]);
    worker.request(b"abc").text();
    assert_eq!(worker.lines(), ["ERROR tested: error abc", "INFO tested: info 3"]);
    worker.spec_mut().env = vec!["CWASI_LOG=debug".into()];
    worker.request(b"abc").text();
    assert_eq!(worker.lines().len(), 5);
}

/// The file, line and text of each, though the next one panics at once.
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
