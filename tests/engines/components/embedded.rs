//! A component that a core module embeds: called in the caller's process, by its name.

use std::path::Path;

use cwasi_abi::Errno;
use cwasi_host_functions::{Context, Host};
use cwasi_vm::engine::{
    Engine as _, EngineOptions, GuestStop, Instance as _, InstanceSpec, Module as _,
};
use cwasi_wasmtime::{Wasmtime, WasmtimeInstance, WasmtimeModule};

use crate::embedders::{Embeds, compiled, embed};
use crate::fixture::{Seen, artifact};

/// Passes the bytes at 1024 to the function `inside`, and copies its response to 4096.
const CALLER: &str = r#"(module
    (import "cwasi" "request_dispatcher"
        (func $call (param i32 i32 i32 i32 i32) (result i32)))
    (import "cwasi" "response_read" (func $read (param i32 i32 i32) (result i32)))
    (memory (export "memory") 80)
    (data (i32.const 64) "inside")
    (func (export "call") (param $len i32) (result i32) (local $errno i32)
        (local.set $errno
            (call $call (i32.const 64) (i32.const 6) (i32.const 1024) (local.get $len) (i32.const 32)))
        (drop (call $read (i32.load (i32.const 32)) (i32.const 2097152) (i32.const 2097152)))
        (local.get $errno))
    (func (export "length") (result i32) (i32.load (i32.const 36))))"#;

struct Caller {
    instance: WasmtimeInstance,
    host: Host,
    seen: Seen,
    _module: WasmtimeModule,
}

impl Caller {
    fn of(component: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let caller = compiled(&folder, "caller", CALLER);
        let embedded = embed("inside", component.to_owned());
        let engine = Wasmtime::new(EngineOptions::default()).unwrap();
        let module = engine.load_with(&caller, &[embedded]).unwrap();
        let seen = Seen::default();
        let embeds = Box::new(Embeds(&["inside"], seen.clone()));
        let mut host = Host::new(Context::default(), embeds, Box::new(seen.clone()));
        host.begin(Context { function: "caller".into(), ..Context::default() });
        let instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
        Self { instance, host, seen, _module: module }
    }

    /// Errno and response.
    fn call(&mut self, payload: &[u8]) -> Result<(i32, Vec<u8>), GuestStop> {
        self.instance.memory_mut()[1024..1024 + payload.len()].copy_from_slice(payload);
        let len = i32::try_from(payload.len()).unwrap();
        let errno = self.instance.call("call", &[len], &mut self.host)?.unwrap();
        let len = self.instance.call("length", &[], &mut self.host)?.unwrap();
        let at = 2 << 20;
        Ok((errno, self.instance.memory()[at..at + usize::try_from(len).unwrap()].to_vec()))
    }

    fn text(&mut self, payload: &str) -> (i32, String) {
        let (errno, response) = self.call(payload.as_bytes()).unwrap();
        (errno, String::from_utf8(response).unwrap())
    }
}

#[test]
fn it_answers_calls_others_and_stays_as_long_as_its_caller() {
    let component = artifact("server");
    let mut caller = Caller::of(&component);
    for payload in [&b""[..], b"hello", &vec![7; 1 << 20]] {
        assert_eq!(caller.call(payload).unwrap(), (0, payload.to_vec()));
    }
    assert_eq!(caller.text("!served"), (0, "4".into()));
    assert_eq!(caller.text("!context function"), (0, "inside".into()));
    assert_eq!(caller.text("!context caller"), (0, "caller".into()));
    let (errno, text) = caller.text("!fail so");
    assert_eq!(errno, Errno::Failed.code());
    assert!(text.contains("so"), "{text}");
    // Its own calls leave the process: only the function itself calls what is embedded.
    caller.seen.0.borrow_mut().clear();
    assert_eq!(caller.text("!call reverse abc"), (0, "cba".into()));
    assert_eq!(*caller.seen.0.borrow(), ["call reverse bytes 3", "embedded Some(3)"]);
    let (errno, _) = caller.text("!call inside abc");
    assert_eq!(errno, Errno::Failed.code(), "it does not call itself");
    // Another instance of the caller has another one of it.
    assert_eq!(Caller::of(&component).text("!served"), (0, "1".into()));
}

#[test]
fn its_trap_and_its_exit_are_its_callers() {
    let component = artifact("server");
    for (payload, reason) in [("!trap", "unreachable"), ("!exit", "it called exit(1)")] {
        let stopped = Caller::of(&component).call(payload.as_bytes()).unwrap_err();
        let GuestStop::Trapped(trap) = stopped else { panic!("{stopped:?}") };
        let expected = format!("in embedded inside: {reason}");
        assert!(trap.reason.starts_with(&expected), "{trap}");
    }
}
