//! A component that embeds: its calls run core modules and components in its own process, by their names.

use std::path::PathBuf;

use cwasi_config::Engine as Kind;
use cwasi_engine_tests::compile;
use cwasi_host_functions::{Context, Dispatch, Host};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_vm::engine::{Engine as _, EngineOptions, InstanceSpec, Module as _};
use cwasi_vm::reactor::{self, HandlerOutcome, InstanceBlocks};
use cwasi_wasmtime::{Wasmtime, WasmtimeInstance, WasmtimeModule};
use cwasi_wire::control::EmbeddedModule;
use tempfile::TempDir;

use crate::fixture::{Seen, artifact};

/// Doubles a number.
const LIBRARY: &str = r#"(module (memory (export "memory") 1)
    (func (export "twice") (param i32) (result i32)
        (i32.mul (local.get 0) (i32.const 2))))"#;

/// Returns its payload, unless the first byte is an order: `t`rap, `r`ecurse, `f`ail with it, or twice the number of
/// calls as a `d`igit.
const MODULE: &str = r#"(module
    (import "library" "twice" (func $twice (param i32) (result i32)))
    (memory (export "memory") 120)
    (global $next (mut i32) (i32.const 65536))
    (global $calls (mut i32) (i32.const 0))
    (func $recurse (param i64) (result i64)
        (i64.add (call $recurse (i64.add (local.get 0) (i64.const 1))) (local.get 0)))
    (func (export "cwasi_alloc") (param $len i32) (param $align i32) (result i32) (local $at i32)
        (local.set $at (i32.and
            (i32.add (global.get $next) (i32.sub (local.get $align) (i32.const 1)))
            (i32.sub (i32.const 0) (local.get $align))))
        (global.set $next (i32.add (local.get $at) (local.get $len)))
        (local.get $at))
    (func (export "cwasi_handle") (param $p i32) (param $n i32) (param $out i32) (result i32)
        (local $order i32)
        (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
        (i32.store (local.get $out) (local.get $p))
        (i32.store offset=4 (local.get $out) (local.get $n))
        (if (i32.eqz (local.get $n)) (then (return (i32.const 0))))
        (local.set $order (i32.load8_u (local.get $p)))
        (if (i32.eq (local.get $order) (i32.const 0x74)) (then unreachable))
        (if (i32.eq (local.get $order) (i32.const 0x72))
            (then (drop (call $recurse (i64.const 0)))))
        (if (i32.eq (local.get $order) (i32.const 0x66)) (then (return (i32.const 1))))
        (if (i32.eq (local.get $order) (i32.const 0x64)) (then
            (i32.store8 (i32.const 16) (i32.add (call $twice (global.get $calls)) (i32.const 0x30)))
            (i32.store (local.get $out) (i32.const 16))
            (i32.store offset=4 (local.get $out) (i32.const 1))))
        (i32.const 0)))"#;

/// One that does not start.
const FAILS: &str = r#"(module (memory (export "memory") 1)
    (func (export "_initialize") unreachable)
    (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 8))
    (func (export "cwasi_handle") (param i32 i32 i32) (result i32) (i32.const 0)))"#;

/// What the caller embeds, in this order.
const EMBEDDED: [&str; 3] = ["library", "module", "inside"];

/// Serves these embedded functions, and everything else as [`Seen`] does.
pub struct Embeds(pub &'static [&'static str], pub Seen);

impl Dispatch for Embeds {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        deadline: Option<Deadline>,
    ) -> CallResult {
        self.1.call(target, payload, deadline)
    }

    fn embedded(
        &mut self,
        target: &str,
        _: u64,
        _: Option<Deadline>,
    ) -> Result<Option<usize>, CallError> {
        let target = if target == "sink" { "inside" } else { target };
        Ok(self.0.iter().position(|name| *name == target && target != "library"))
    }

    fn embedded_ended(&mut self, response: Option<u64>) -> Result<(), CallError> {
        self.1.add(format!("embedded {response:?}"));
        Ok(())
    }
}

pub fn compiled(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let wasm = folder.path().join(format!("{name}.wasm"));
    std::fs::write(&wasm, wat::parse_str(text).unwrap()).unwrap();
    compile(Kind::Wasmtime, &wasm)
}

pub fn embed(name: &str, artifact: PathBuf) -> EmbeddedModule {
    EmbeddedModule {
        name: name.to_owned(),
        artifact,
        digest: String::new(),
        dispatch: name != "library",
        reason: "a test".into(),
    }
}

/// A caller that is a component, `server` or `relay`.
struct Caller {
    instance: WasmtimeInstance,
    kept: InstanceBlocks,
    host: Host,
    seen: Seen,
    _module: WasmtimeModule,
}

/// How a request ended.
type Ended = Result<Vec<u8>, String>;

impl Caller {
    fn of(component: &str) -> Self {
        Self::within(component, None)
    }

    /// With a budget of memory.
    fn within(component: &str, memory_max: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let compiled = |name: &str, text: &str| compiled(&folder, name, text);
        let files = [compiled("library", LIBRARY), compiled("module", MODULE), artifact("server")];
        let embedded = EMBEDDED.iter().zip(files).map(|(name, artifact)| embed(name, artifact));
        let embedded: Vec<_> = embedded.collect();
        let engine = Wasmtime::new(EngineOptions { memory_max, ..Default::default() }).unwrap();
        let module = engine.load_with(&artifact(component), &embedded).unwrap();
        let seen = Seen::default();
        let embeds = Box::new(Embeds(&EMBEDDED, seen.clone()));
        let mut host = Host::new(Context::default(), embeds, Box::new(seen.clone()));
        host.begin(Context { function: "caller".into(), ..Context::default() });
        let instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        Self { instance, kept: InstanceBlocks::default(), host, seen, _module: module }
    }

    fn ask(&mut self, payload: &[u8]) -> Ended {
        self.host.begin(Context { function: "caller".into(), ..Context::default() });
        let payload = OutgoingPayload::Bytes(payload).keep(None).unwrap();
        let Self { instance, kept, host, .. } = self;
        match reactor::handle_again(instance, kept, &payload, host) {
            HandlerOutcome::Returned(response) => Ok(response.into_vec().unwrap()),
            HandlerOutcome::Failed(text) => Err(text),
            HandlerOutcome::Trapped(trap) => Err(trap.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn text(&mut self, payload: &str) -> Result<String, String> {
        self.ask(payload.as_bytes()).map(|response| String::from_utf8(response).unwrap())
    }
}

#[test]
fn it_calls_a_core_module_that_links_another_one() {
    let mut caller = Caller::of("server");
    assert_eq!(caller.text("!call module hello"), Ok("hello".into()));
    assert_eq!(caller.text("!call module d"), Ok("4".into()), "its second call");
    assert_eq!(caller.text("!call module d"), Ok("6".into()), "it lives as long as its caller");
    let failed = caller.text("!call module for no reason").unwrap_err();
    assert!(failed.ends_with("Failed: for no reason"), "{failed}");
    assert_eq!(
        *caller.seen.0.borrow(),
        ["embedded Some(5)", "embedded Some(1)", "embedded Some(1)", "embedded None"]
    );
    for size in ["0", "5", "100000", "3145728"] {
        let said = caller.text(&format!("!send module {size}"));
        assert_eq!(said, Ok(format!("{size} bytes came back")));
    }
    assert_eq!(Caller::of("server").text("!call module d"), Ok("2".into()));
    // What is only linked is called elsewhere.
    let missing = caller.text("!call library x").unwrap_err();
    assert!(missing.contains("NoSuchFunction"), "{missing}");
}

#[test]
fn it_calls_a_component_whose_own_calls_leave_the_process() {
    let mut caller = Caller::of("server");
    assert_eq!(caller.text("!call inside hello"), Ok("hello".into()));
    assert_eq!(caller.text("!call inside !served"), Ok("2".into()));
    assert_eq!(caller.text("!call inside !context function"), Ok("inside".into()));
    assert_eq!(caller.text("!call inside !context caller"), Ok("caller".into()));
    assert_eq!(caller.text("!context function"), Ok("caller".into()));
    assert_eq!(caller.text("!call inside !sleep 3"), Ok("slept".into()), "on the same runtime");
    caller.seen.0.borrow_mut().clear();
    assert_eq!(caller.text("!call inside !call reverse abc"), Ok("cba".into()));
    assert_eq!(*caller.seen.0.borrow(), ["call reverse bytes 3", "embedded Some(3)"]);
    let failed = caller.text("!call inside !call module x").unwrap_err();
    assert!(failed.contains("NoSuchFunction"), "{failed}");
    for size in ["0", "5", "100000", "3145728"] {
        let said = caller.text(&format!("!send inside {size}"));
        assert_eq!(said, Ok(format!("{size} bytes came back")));
    }
}

#[test]
fn it_shares_its_memory_with_what_it_embeds() {
    // The module alone needs 7.5 MiB, the components between one and two each.
    let mut caller = Caller::within("server", Some(16 << 20));
    assert_eq!(caller.text("!call module hello"), Ok("hello".into()));
    assert_eq!(caller.text("!call inside hello"), Ok("hello".into()));
    let mut caller = Caller::within("server", Some(8 << 20));
    let refused = caller.text("!call module hello").unwrap_err();
    assert!(refused.contains("exceeds memory limits"), "{refused}");
    assert_eq!(caller.text("!call inside hello"), Ok("hello".into()), "what failed holds nothing");
}

#[test]
fn all_memories_of_a_component_share_its_budget() {
    let (folder, seen) = (tempfile::tempdir().unwrap(), Seen::default());
    let instances = "(core instance (instantiate $m))".repeat(60);
    let text = format!("(component (core module $m (memory 1024)) {instances})");
    let artifact = compiled(&folder, "many", &text);
    let start = |memory_max: u64| {
        let options = EngineOptions { memory_max: Some(memory_max), ..Default::default() };
        let module = Wasmtime::new(options).unwrap().load(&artifact).unwrap();
        let mut host = Host::new(Context::default(), Box::new(OneCallee), Box::new(seen.clone()));
        module.instantiate(&InstanceSpec::default(), &mut host).map(drop)
    };
    let refused = start(128 << 20).unwrap_err().to_string();
    assert!(refused.contains("exceeds memory limits"), "{refused}");
    start(60 * (64 << 20)).unwrap();
}

#[test]
fn started_calls_end_at_once_and_are_waited_for() {
    let mut caller = Caller::of("server");
    assert_eq!(caller.text("!fan inside a bc def"), Ok("a bc def".into()));
    assert_eq!(caller.text("!fan module a bc xyz"), Ok("a bc xyz".into()));
    assert_eq!(caller.text("!call inside !served"), Ok("4".into()));
    // A part of a group is never embedded.
    let parts = caller.text("!parts inside key 2").unwrap_err();
    assert!(parts.contains("NoSuchFunction"), "{parts}");
}

#[test]
fn a_payload_is_passed_on_to_a_component_and_back() {
    let mut caller = Caller::of("relay");
    for size in [0, 5, 100_000, 3 << 20] {
        let payload = vec![7; size];
        assert!(caller.ask(&payload) == Ok(payload), "{size} bytes");
    }
    assert_eq!(caller.text("!fail so"), Err("so".into()));
}

#[test]
fn traps_and_exits_are_the_callers() {
    for (payload, reason) in [
        ("!call module t", "in embedded module: unreachable"),
        ("!call module r", "in embedded module: call stack exhausted"),
        ("!call inside !trap", "in embedded inside: unreachable"),
        ("!call inside !exit", "in embedded inside: it called exit(1)"),
        ("!fan module t", "in embedded module: unreachable"),
    ] {
        let mut caller = Caller::of("server");
        let trapped = caller.text(payload).unwrap_err();
        assert_eq!(trapped, format!("trap in `handle`: {reason}"), "{payload}");
    }
}

#[test]
fn a_callee_that_does_not_start_is_an_error_of_the_call() {
    let engine = Wasmtime::new(EngineOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let embedded = embed("module", compiled(&folder, "module", FAILS));
    let module = engine.load_with(&artifact("server"), &[embedded]).unwrap();
    let mut host = Host::new(Context::default(), Box::new(OneCallee), Box::new(Seen::default()));
    host.begin(Context::default());
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    let payload = Payload::Inline(b"!call module x".to_vec());
    let HandlerOutcome::Failed(text) = reactor::handle(&mut instance, &payload, &mut host) else {
        panic!("no error")
    };
    assert!(text.contains("Failed: the module cannot be started"), "{text}");
}

/// Embeds whatever is called.
struct OneCallee;

impl Dispatch for OneCallee {
    fn call(&mut self, _: &str, _: OutgoingPayload<'_>, _: Option<Deadline>) -> CallResult {
        unreachable!("all calls are embedded")
    }

    fn embedded(
        &mut self,
        _: &str,
        _: u64,
        _: Option<Deadline>,
    ) -> Result<Option<usize>, CallError> {
        Ok(Some(0))
    }
}
