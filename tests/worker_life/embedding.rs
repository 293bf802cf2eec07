//! What a call inside one VM costs; prints a distribution, asserts nothing about time.

use cwasi_testbed::engines;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cwasi_dispatcher::{Dispatcher, EmbeddedCalls, Resolve, ResolvedRoute, RouteQuery, Settings};
use cwasi_engine_tests::{AnyEngine, compile};
use cwasi_modes::CallError;
use cwasi_sandbox::dispatch::FunctionCalls;
use cwasi_sys::clock::Deadline;
use cwasi_vm::{
    Context, Engine as _, EngineOptions, Host, Instance as _, InstanceSpec, Module as _,
};
use cwasi_wire::control::{EdgeReport, EmbeddedModule, ModeHint};

use crate::harness::Case;
use crate::worker::Lines;

/// Batches per way, and calls per batch.
const BATCHES: usize = 300;
const CALLS: i32 = 500;
/// Largest payload in bytes.
const PAYLOAD_MAX: u64 = 1 << 20;

pub const CASES: &[Case] = &[("times_of_calls_inside_a_vm", times)];

/// A library and a reactor in one, with the exports of the Rust SDK's handlers.
const CALLEE: &str = r#"(module
    (memory (export "memory") 2)
    (global (export "cwasi_response") i32 (i32.const 1024))
    (global (export "cwasi_payload") i32 (i32.const 2048))
    (func (export "add") (param i32 i32) (result i32) (i32.add (local.get 0) (local.get 1)))
    (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 4096))
    (func (export "cwasi_handle") (param $p i32) (param $n i32) (param $out i32) (result i32)
        (i32.store (local.get $out) (local.get $p))
        (i32.store offset=4 (local.get $out) (local.get $n))
        (i32.const 0)))"#;

/// Exports that do one thing so many times.
const CALLER: &str = r#"(module
    (import "callee" "add" (func $add (param i32 i32) (result i32)))
    (import "cwasi" "request_dispatcher" (func $call (param i32 i32 i32 i32 i32) (result i32)))
    (import "cwasi" "response_read" (func $read (param i32 i32 i32) (result i32)))
    (import "cwasi" "trap_message" (func $host (param i32 i32) (result i32)))
    (memory (export "memory") 2)
    (data (i32.const 64) "callee")
    (func (export "cwasi.home"))
    (func (export "host") (param $n i32)
        (loop $again
            (drop (call $host (i32.const 0) (i32.const 0)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    (func (export "linked") (param $n i32)
        (loop $again
            (drop (call $add (local.get $n) (i32.const 1)))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    (func $request (param $n i32) (param $len i32)
        (loop $again
            (if (call $call (i32.const 64) (i32.const 6) (i32.const 128) (local.get $len) (i32.const 32))
                (then unreachable))
            (if (call $read (i32.load (i32.const 32)) (i32.const 4096) (local.get $len)) (then unreachable))
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
    (func (export "called") (param $n i32) (call $request (local.get $n) (i32.const 64)))
    (func (export "called_with_a_block") (param $n i32) (call $request (local.get $n) (i32.const 1025))))"#;

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

fn build(directory: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let wasm = directory.path().join(format!("{name}.wasm"));
    std::fs::write(&wasm, wat::parse_str(text).unwrap()).unwrap();
    compile(engines::tested(), &wasm)
}

fn times() {
    let directory = tempfile::tempdir().unwrap();
    let (caller, callee) =
        (build(&directory, "caller", CALLER), build(&directory, "callee", CALLEE));
    let embedded = [EmbeddedModule {
        name: "callee".into(),
        artifact: callee,
        digest: String::new(),
        dispatch: true,
        reason: "a bench".into(),
    }];
    let settings =
        Settings { caller: "caller".into(), max_payload: PAYLOAD_MAX, timeout_ms: 60_000 };
    let mut dispatcher = Dispatcher::new(settings, Nowhere);
    let calls = EmbeddedCalls::new(ModeHint::Auto, PAYLOAD_MAX, &embedded, dispatcher.edges());
    let calls = FunctionCalls::new(dispatcher, calls);
    let mut host = Host::new(Context::default(), Box::new(calls), Box::new(Lines::default()));
    let engine = AnyEngine::new(EngineOptions::default()).unwrap();
    let module = engine.load_with(&caller, &embedded).unwrap();
    let mut made = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let started = Instant::now();
        let vm = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        drop(vm);
        made.push(started.elapsed());
    }
    println!(
        "p50 / p99 in µs, {} code of the host",
        if cfg!(debug_assertions) { "debug" } else { "release" }
    );
    println!("{:<38} {}", "VM of two modules, made and dropped", percentiles(made, 1));
    let mut vm = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    host.begin(Context::default());
    for (export, what) in [
        ("host", "host function"),
        ("linked", "linked call"),
        ("called", "request_dispatcher, 64 B, and read"),
        ("called_with_a_block", "the same with 1025 B, in a block"),
    ] {
        let mut batches = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let started = Instant::now();
            assert_eq!(vm.call(export, &[CALLS], &mut host), Ok(None));
            batches.push(started.elapsed());
        }
        println!("{what:<38} {}", percentiles(batches, u32::try_from(CALLS).unwrap()));
    }
    host.end();
}

fn percentiles(mut batches: Vec<Duration>, calls: u32) -> String {
    batches.sort_unstable();
    let micros = |at: usize| (batches[at] / calls).as_secs_f64() * 1e6;
    format!("{:.2} / {:.2}", micros(BATCHES / 2), micros(BATCHES * 99 / 100))
}
