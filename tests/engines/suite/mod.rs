//! The engine conformance suite: what a guest sees and the host gets is the same on every engine.

mod embedding;
mod inside;
mod linked;
mod ownership;
mod regions;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cwasi_abi::Errno;
use cwasi_config::Engine as Kind;
use cwasi_engine_tests::{AnyEngine, AnyInstance, AnyModule, compile};
use cwasi_host_functions::{Context, Dispatch, Host, Level, LogSink};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;
use cwasi_vm::engine::{
    CommandEnd, Engine, EngineOptions, GuestStop, Instance, InstanceSpec, Module, VmError,
};
use cwasi_vm::interface::PAGE_LEN;
use cwasi_vm::reactor::{self, HandlerOutcome};
use cwasi_wire::control::Entry;
use tempfile::TempDir;

use crate::TESTED;

/// Takes turns: traps on several threads at a time crash WasmEdge (docs/engines.md).
fn one_at_a_time() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    (TESTED == Kind::Wasmedge).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn engine(options: EngineOptions) -> Result<AnyEngine, VmError> {
    AnyEngine::of(TESTED, options)
}

struct Echo;

impl Dispatch for Echo {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        _: Option<Deadline>,
    ) -> CallResult {
        match target {
            "echo" => Ok(Payload::Inline(copied(payload))),
            "panic" => panic!("a bug of the host"),
            _ => Err(CallError::NoSuchFunction { message: "who?".into() }),
        }
    }
}

/// The bytes, wherever they lie.
fn copied(payload: OutgoingPayload<'_>) -> Vec<u8> {
    match payload {
        OutgoingPayload::Bytes(bytes) => bytes.to_vec(),
        OutgoingPayload::Segment(segment) => segment.to_vec().unwrap(),
    }
}

impl LogSink for Echo {
    fn log(&mut self, _: Level, _: &Context, _: &str) {}
}

fn host() -> Host {
    let mut host = Host::new(Context::default(), Box::new(Echo), Box::new(Echo));
    host.begin(Context::default());
    host
}

struct Built {
    _directory: TempDir,
    artifact: PathBuf,
}

fn build(wat: &str) -> Built {
    let directory = tempfile::tempdir().unwrap();
    let wasm = directory.path().join("m.wasm");
    std::fs::write(&wasm, wat::parse_str(wat).unwrap()).unwrap();
    let artifact = compile(TESTED, &wasm);
    Built { _directory: directory, artifact }
}

fn load(built: &Built) -> Result<AnyModule, VmError> {
    engine(EngineOptions::default())?.load(&built.artifact)
}

fn run(wat: &str) -> CommandEnd {
    let built = build(wat);
    let module = load(&built).unwrap();
    let mut host = host();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    instance.run_command("_start", &mut host)
}

#[test]
fn a_command_returns_exits_or_traps() {
    let _turn = one_at_a_time();
    assert_eq!(run(r#"(module (func (export "_start")))"#), CommandEnd::Exited(0));
    let exit = r#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (func (export "_start") (call $exit (i32.const 42)) unreachable))"#;
    assert_eq!(run(exit), CommandEnd::Exited(42));
    assert_eq!(run(&exit.replace("42", "0")), CommandEnd::Exited(0));
    let CommandEnd::Trapped(trap) = run(r#"(module (memory 1) (func (export "_start")
        (drop (i32.load (i32.const 70000)))))"#)
    else {
        panic!("no trap")
    };
    assert_eq!(trap.to_string(), "trap in `_start`: out of bounds memory access");
    let CommandEnd::Trapped(trap) = run(r#"(module (func (export "_start") unreachable))"#) else {
        panic!("no trap")
    };
    assert_eq!(trap.to_string(), "trap in `_start`: unreachable");
}

#[test]
fn only_our_native_code_is_loaded() {
    let _turn = one_at_a_time();
    let built = build(r#"(module (func (export "_start")))"#);
    let wasm = built.artifact.with_file_name("m.wasm");
    let engine = engine(EngineOptions::default()).unwrap();
    for path in [wasm.as_path(), Path::new("m.so"), Path::new("/nowhere.so"), Path::new("/bin/ls")]
    {
        let error = engine.load(path).unwrap_err();
        assert!(matches!(error, VmError::Artifact { .. }), "{error}");
    }
    let module = engine.load(&built.artifact).unwrap();
    assert!(module.check(&Entry::Command { export: "_start".into() }).is_ok());
    let error = module.check(&Entry::Command { export: "main".into() }).unwrap_err().to_string();
    assert!(error.contains("`main`") && error.contains("it exports `_start`"), "{error}");
    let error = module.check(&Entry::Reactor).unwrap_err().to_string();
    assert!(error.contains("`cwasi_alloc` with 2 i32 parameters"), "{error}");
}

#[test]
fn every_unknown_import_is_named() {
    let _turn = one_at_a_time();
    let built = build(
        r#"(module
        (import "fn_utils" "resize" (func))
        (import "cwasi" "teleport" (func))
        (import "cwasi" "log" (func (param i64)))
        (import "wasi_snapshot_preview1" "fd_teleport" (func))
        (import "cwasi" "response_read" (func (param i32 i32 i32) (result i32))))"#,
    );
    let error = load(&built).unwrap_err().to_string();
    for name in ["fn_utils.resize", "cwasi.teleport", "cwasi.log", "fd_teleport"] {
        assert!(error.contains(name), "{error}");
    }
    assert!(!error.contains("response_read"), "{error}");
}

const REACTOR: &str = r#"(module
    (import "cwasi" "request_dispatcher"
        (func $call (param i32 i32 i32 i32 i32) (result i32)))
    (import "cwasi" "response_read" (func $read (param i32 i32 i32) (result i32)))
    (memory (export "memory") 2)
    (data (i32.const 0) "echo")
    (data (i32.const 8) "panic")
    (global $next (mut i32) (i32.const 4096))
    (global $started (mut i32) (i32.const 0))
    (func (export "_initialize") (global.set $started (i32.add (global.get $started) (i32.const 1))))
    (func $alloc (export "cwasi_alloc") (param i32 i32) (result i32)
        (local $at i32)
        (local.set $at (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
        (global.set $next (i32.add (local.get $at) (local.get 0)))
        (if (i32.gt_u (global.get $next) (i32.mul (memory.size) (i32.const 65536)))
            (then (return (i32.const 0))))
        (local.get $at))
    ;; Calls `echo` (or `panic` for an empty payload), then allocates, copies and fills.
    (func (export "cwasi_handle") (param $p i32) (param $n i32) (param $out i32) (result i32)
        (local $status i32) (local $at i32)
        (if (i32.ne (global.get $started) (i32.const 1)) (then unreachable))
        (if (i32.eqz (local.get $n))
            (then (return (call $call (i32.const 8) (i32.const 5) (i32.const 0) (i32.const 0) (i32.const 64)))))
        (local.set $status
            (call $call (i32.const 0) (i32.const 4) (local.get $p) (local.get $n) (i32.const 64)))
        (local.set $at (call $alloc (i32.load (i32.const 68)) (i32.const 1)))
        (drop (call $read (i32.load (i32.const 64)) (local.get $at) (i32.load (i32.const 68))))
        (memory.copy (i32.const 65536) (local.get $at) (i32.load (i32.const 68)))
        (memory.fill (local.get $at) (i32.const 7) (i32.load (i32.const 68)))
        (i32.store (local.get $out) (i32.const 65536))
        (i32.store offset=4 (local.get $out) (i32.load (i32.const 68)))
        (local.get $status)))"#;

#[test]
fn a_reactor_calls_and_copies_afterwards() {
    let _turn = one_at_a_time();
    let built = build(REACTOR);
    let module = load(&built).unwrap();
    module.check(&Entry::Reactor).unwrap();
    let mut host = host();
    for size in [1_usize, 100, 30_000] {
        let payload: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        host.begin(Context::default());
        let handled = reactor::handle(&mut instance, &Payload::Inline(payload.clone()), &mut host);
        assert!(matches!(handled, HandlerOutcome::Answered(bytes) if bytes == payload));
    }
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let big = Payload::Inline(vec![1; 200_000]);
    let handled = reactor::handle(&mut instance, &big, &mut host);
    assert!(matches!(handled, HandlerOutcome::Failed(message) if message.contains("200000")));
}

#[test]
fn a_panic_of_the_host_is_an_errno() {
    let _turn = one_at_a_time();
    let built = build(REACTOR);
    let module = load(&built).unwrap();
    let mut host = host();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let params = [0, 0, 4096];
    assert_eq!(instance.call("cwasi_handle", &params, &mut host), Ok(Some(Errno::Internal.code())));
}

#[test]
fn memory_is_limited() {
    let _turn = one_at_a_time();
    let grow = r#"(module (memory (export "memory") 2)
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#;
    let built = build(grow);
    let limited =
        |memory_max| engine(EngineOptions { memory_max: Some(memory_max), ..Default::default() });
    let mut host = host();
    let module = limited(4 * PAGE_LEN + 5).unwrap().load(&built.artifact).unwrap();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    assert_eq!(instance.call("grow", &[2], &mut host), Ok(Some(2)));
    assert_eq!(instance.memory().len(), 4 * 65536);
    assert_eq!(instance.call("grow", &[1], &mut host), Ok(Some(-1)));
    let error = limited(PAGE_LEN).unwrap().load(&built.artifact).unwrap_err();
    assert!(matches!(error, VmError::Memory { needed: 131_072, limit: 65_536 }), "{error}");
    let module = load(&built).unwrap();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    assert_eq!(instance.call("grow", &[65_534], &mut host), Ok(Some(2)), "4 GiB");
    assert_eq!(instance.memory_mut().len(), 1 << 32);
    instance.memory_mut()[(1 << 32) - 1] = 1;
}

/// With wasmtime: WasmEdge has no limit of tables, so its process alone bounds them.
#[test]
fn tables_take_from_the_memory_of_their_instance() {
    let _turn = one_at_a_time();
    if TESTED != Kind::Wasmtime {
        return;
    }
    let built = build(
        r#"(module (memory (export "memory") 1) (table $t 8 funcref)
        (func (export "table") (param i32) (result i32)
            (table.grow $t (ref.null func) (local.get 0)))
        (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#,
    );
    let limit = EngineOptions { memory_max: Some(4 * PAGE_LEN), ..Default::default() };
    let module = engine(limit).unwrap().load(&built.artifact).unwrap();
    let mut host = host();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    // A page holds 8,192 elements of eight bytes, and as many are free.
    for (export, more, expected) in
        [("table", 160_000_000, -1), ("table", 16_384, 8), ("grow", 2, -1), ("grow", 1, 1)]
    {
        let grown = instance.call(export, &[more], &mut host);
        assert_eq!(grown, Ok(Some(expected)), "{export} {more}");
    }
    // Another instance has its own budget.
    let mut other = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    assert_eq!(other.call("grow", &[2], &mut host), Ok(Some(1)));
}

#[test]
fn a_failing_start_is_an_error_of_the_instance() {
    let _turn = one_at_a_time();
    let built = build(r#"(module (func (export "_initialize") unreachable))"#);
    let error =
        load(&built).unwrap().instantiate(&InstanceSpec::default(), &mut host()).unwrap_err();
    assert!(matches!(error, VmError::Initialize { .. }), "{error}");
    let built = build(r#"(module (func $f unreachable) (start $f))"#);
    let error =
        load(&built).unwrap().instantiate(&InstanceSpec::default(), &mut host()).unwrap_err();
    assert!(matches!(error, VmError::Instantiate { .. }), "{error}");
}

#[test]
fn invalid_instance_specs_are_refused() {
    let _turn = one_at_a_time();
    let built = build(r#"(module (func (export "_start")))"#);
    let module = load(&built).unwrap();
    let directory = tempfile::Builder::new().prefix("a:b").tempdir().unwrap();
    let hidden = tempfile::Builder::new().prefix(".hidden").tempdir().unwrap();
    for spec in [
        InstanceSpec { args: vec!["a\0b".into()], ..InstanceSpec::default() },
        InstanceSpec { env: vec!["A=\0".into()], ..InstanceSpec::default() },
    ] {
        let error = module.instantiate(&spec, &mut host()).unwrap_err();
        assert!(matches!(error, VmError::Spec { .. }), "{error}");
    }
    for path in [directory.path(), hidden.path(), Path::new("/proc/self/../self")] {
        let spec = InstanceSpec { preopens: vec![path.into()], ..InstanceSpec::default() };
        let made = module.instantiate(&spec, &mut host());
        match TESTED {
            Kind::Wasmtime => assert!(made.is_ok(), "{made:?}"),
            Kind::Wasmedge => assert!(matches!(made, Err(VmError::Spec { .. })), "{made:?}"),
        }
    }
    let file = InstanceSpec { preopens: vec!["/etc/hosts".into()], ..InstanceSpec::default() };
    assert!(module.instantiate(&file, &mut host()).is_ok(), "files are left out");
}

#[test]
fn an_export_that_does_not_exist_is_a_trap() {
    let _turn = one_at_a_time();
    let built = build(r#"(module (func (export "_start")))"#);
    let mut host = host();
    let module = load(&built).unwrap();
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    assert!(matches!(instance.call("none", &[], &mut host), Err(GuestStop::Trapped(_))));
    assert!(matches!(instance.call("_start", &[1], &mut host), Err(GuestStop::Trapped(_))));
}
