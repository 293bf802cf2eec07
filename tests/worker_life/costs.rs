//! What an instance costs, fresh or renewed; prints a distribution, asserts nothing about time.

use cwasi_config::Engine;
use cwasi_testbed::engines;
use std::time::{Duration, Instant};

use cwasi_engine_tests::AnyModule;
use cwasi_modes::Payload;
use cwasi_sys::segment::Segment;

use crate::guests::{assembled, built_languages, load, load_file};
use crate::harness::Case;
use crate::worker::Worker;

/// Requests per guest.
const REQUESTS: usize = 2000;

/// Payload lengths, and how many requests have each.
const PAYLOADS: [(usize, usize); 3] = [(65_537, 200), (2 << 20, 40), (100 << 20, 5)];

pub const CASES: &[Case] = &[
    ("times_of_a_fresh_instance", times),
    ("times_of_large_payloads", large_payloads),
    ("times_of_languages", languages),
];

/// Requests per language.
const LANGUAGE_REQUESTS: usize = 200;

/// The functions of docs/languages.md that `cargo test --test e2e -- languages::` has built, as a worker runs them back to
/// back: each request calls `reverse`.
fn languages() {
    println!("{LANGUAGE_REQUESTS} requests of 64 bytes, from one to the next; p50 / p99 in µs");
    println!(
        "{:<10} {:>18} {:>18} {:>8} {:>18} {:>8}",
        "guest", "fresh", "request", "renewed", "snapshot", "renewed"
    );
    let of = |name: &str, load: &dyn Fn() -> AnyModule, args: &[&str]| {
        let shown = [None, Some(false), Some(true)].map(|renewing| {
            let mut worker = Worker::of(load(), name, args);
            worker.takes_snapshots(renewing == Some(true));
            let mut times = Vec::with_capacity(LANGUAGE_REQUESTS);
            for number in 0..LANGUAGE_REQUESTS + 4 {
                let started = Instant::now();
                if renewing.is_none() {
                    worker.forget();
                }
                let payload = Payload::Inline(vec![7; 64]);
                assert_eq!(worker.request_with(&payload).bytes(), [7; 64]);
                if number >= 4 {
                    times.push(started.elapsed());
                }
            }
            (percentiles(&mut times), worker.renewed())
        });
        let [(fresh, _), (request, renewed), (snapshot, snapshots)] = shown;
        println!("{name:<10} {fresh:>18} {request:>18} {renewed:>8} {snapshot:>18} {snapshots:>8}");
    };
    of("rust", &|| load("actor"), &["chain", "reverse"]);
    for (name, module) in built_languages() {
        of(&name, &|| load_file(&name, &module), &[]);
    }
}

/// A request's payload from a segment that is there to the guest's answer, in turns: `reader` has it mapped,
/// `actor` copied into a vector.
fn large_payloads() {
    println!("payload in a segment, request + drop; p50 / p99 in µs");
    println!("{:>10} {:>10} {:>20} {:>20}", "bytes", "touched", "mapped", "copied");
    for (len, requests) in PAYLOADS {
        let payload = Payload::Segment(Segment::copy_of(&vec![7; len]).unwrap());
        for (touched, argument) in [("none", "length"), ("all", "checksum")] {
            let mut workers = ["reader", "actor"].map(|guest| Worker::new(guest, &[argument]));
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..requests {
                for (worker, times) in workers.iter_mut().zip(&mut times) {
                    worker.prepare();
                    let started = Instant::now();
                    let ended = worker.request_with(&payload);
                    times.push(started.elapsed());
                    assert!(ended.text().starts_with(&len.to_string()));
                }
            }
            let [mapped, copied] = times.each_mut().map(|times| percentiles(times));
            println!("{len:>10} {touched:>10} {mapped:>20} {copied:>20}");
        }
    }
}

/// Its handler allocates 64 KiB: the memory grows with each request. A renewed instance needs it small again.
const GROWS: &str = r#"(module
    (memory (export "memory") 2)
    (global (export "cwasi_response") i32 (i32.const 0))
    (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 1024))
    (func (export "cwasi_handle") (param $at i32) (param $len i32) (param $out i32) (result i32)
        (i32.store8 (i32.shl (memory.grow (i32.const 1)) (i32.const 16)) (i32.const 1))
        (i32.store (local.get $out) (local.get $at))
        (i32.store offset=4 (local.get $out) (local.get $len))
        (i32.const 0)))"#;

fn times() {
    println!("{REQUESTS} requests of 64 bytes each; p50 / p99 in µs");
    println!("{:<10} {:>9} {:>18} {:>18}", "guest", "instance", "made ready", "request");
    for (guest, renewed) in [
        ("actor", false),
        ("server", false),
        ("reader", false),
        ("reader", true),
        ("grows", false),
        ("grows", true),
    ] {
        let mut worker = match guest {
            "grows" => Worker::of(load_file(guest, &assembled(guest, GROWS)), guest, &[]),
            _ => Worker::new(guest, &["length"]),
        };
        let mut ready = Vec::with_capacity(REQUESTS);
        let mut request = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let started = Instant::now();
            if !renewed {
                worker.forget();
            }
            worker.prepare();
            let prepared = Instant::now();
            let payload = Payload::Inline(vec![7; 64]);
            assert!(!worker.request_only(&payload).text().is_empty());
            request.push(prepared.elapsed());
            ready.push(prepared - started);
        }
        let renews = renewed && engines::tested() == Engine::Wasmedge;
        assert_eq!(worker.renewed() > 0, renews, "{guest}");
        let instance = if renewed { "renewed" } else { "fresh" };
        let (ready, request) = (percentiles(&mut ready), percentiles(&mut request));
        println!("{guest:<10} {instance:>9} {ready:>18} {request:>18}");
    }
}

fn percentiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let micros = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
    format!("{:.1} / {:.1}", micros(50), micros(99))
}
