//! Requests of reactors that go well.

use cwasi_config::Engine;
use cwasi_modes::Payload;
use cwasi_sys::segment::Segment;
use cwasi_testbed::engines;
use cwasi_vm::{EngineOptions, Entry, Module as _};

use crate::guests::{load, load_with};
use crate::harness::Case;
use crate::worker::{Ended, Worker};

pub const CASES: &[Case] = &[
    ("every_request_gets_a_fresh_instance", fresh_instances),
    ("payloads_come_back_whole", payloads),
    ("a_segment_of_100_mib_is_read_whole", large_segment),
    ("a_handler_reads_its_context", context),
    ("log_lines_reach_the_host", log_lines),
    ("a_handlers_error_is_the_callers", handler_errors),
    ("a_handler_calls_on", calls_on),
    ("a_guest_gets_the_memory_that_it_may_have", memory_limit),
    ("sdk_modules_are_reactors_and_commands", entries),
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

fn payloads() {
    for size in [0_usize, 1, 65_535, 65_536, 65_537, 3_000_001] {
        let payload: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
        for guest in ["actor", "server"] {
            let ended = Worker::new(guest, &[]).request(&payload);
            assert!(ended == Ended::Answered(payload.clone()), "{guest}: {size} bytes");
        }
    }
}

fn large_segment() {
    let bytes: Vec<u8> = (0..100_usize << 20).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let payload = Payload::Segment(Segment::copy_of(&bytes).unwrap());
    let ended = Worker::new("actor", &["checksum"]).request_with(&payload);
    assert_eq!(ended.text(), format!("{} {hash:016x}", bytes.len()));
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

fn handler_errors() {
    let mut worker = Worker::new("actor", &["fail", "no such frame"]);
    assert_eq!(worker.request(b"x"), Ended::Failed("refused: no such frame".into()));
    let mut worker = Worker::new("server", &[]);
    assert_eq!(worker.request(b"!fail too late"), Ended::Failed("too late".into()));
    assert_eq!(worker.request(b"next").text(), "next");
}

fn calls_on() {
    let mut worker = Worker::new("actor", &["chain", "reverse"]);
    assert_eq!(worker.request(b"abc").text(), "cba");
    let mut worker = Worker::new("actor", &["chain", "nobody"]);
    let message = "no such function: no function nobody in this test".to_owned();
    assert_eq!(worker.request(b"abc"), Ended::Failed(message));
}

fn memory_limit() {
    let options = EngineOptions { memory_max: Some(32 << 20), ..Default::default() };
    let mut worker = Worker::of(load_with("actor", options.clone()), "actor", &["hog"]);
    let text = worker.request(b"").text();
    let got: u32 = text.trim_start_matches("got ").trim_end_matches(" MiB").parse().unwrap();
    assert!((20..32).contains(&got), "{text}");
    let mut worker = Worker::of(load_with("actor", options), "actor", &[]);
    let Ended::Failed(message) = worker.request(&vec![0; 40 << 20]) else { panic!("it fits") };
    assert!(message.contains("no memory in the guest for 41943040 bytes"), "{message}");
    assert!(message.ends_with("cwasi.memory allows 33554432"), "{message}");
    assert_eq!(worker.request(b"small").text(), "small");
}

fn entries() {
    let command = Entry::Command { export: "_start".into() };
    for (guest, fits, other) in [
        ("actor", &Entry::Reactor, &command),
        ("greeter", &Entry::Reactor, &command),
        ("caller", &command, &Entry::Reactor),
    ] {
        let module = load(guest);
        module.check(fits).unwrap();
        assert!(module.check(other).is_err(), "{guest}");
    }
}
