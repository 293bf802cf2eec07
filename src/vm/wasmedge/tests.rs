//! What only this engine has: renewed instances. The engine conformance suite is in `tests/engines`.

mod renewal;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cwasi_host_functions::{Context, Dispatch, Host, Level, LogSink};
use tempfile::TempDir;

use super::*;
use cwasi_modes::{CallResult, OutgoingPayload};
use cwasi_sys::clock::Deadline;
use cwasi_vm::engine::{GuestStop, Instance, InstanceSpec, Module};

/// Traps on several threads at a time crash the engine (docs/engines.md), so tests take turns.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Nothing;

impl Dispatch for Nothing {
    fn call(&mut self, _: &str, _: OutgoingPayload<'_>, _: Option<Deadline>) -> CallResult {
        unreachable!("the guests make no calls")
    }
}

impl LogSink for Nothing {
    fn log(&mut self, _: Level, _: &Context, _: &str) {}
}

fn host() -> Host {
    let mut host = Host::new(Context::default(), Box::new(Nothing), Box::new(Nothing));
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
    let artifact = directory.path().join("m.so");
    std::fs::write(&wasm, wat::parse_str(wat).unwrap()).unwrap();
    crate::compile::compile_unlimited(&wasm, &artifact).unwrap();
    Built { _directory: directory, artifact }
}

fn load(built: &Built) -> Result<WasmEdgeModule, VmError> {
    WasmEdge::new(EngineOptions::default())?.load(&built.artifact)
}

#[test]
fn the_linked_engine_is_the_one_that_this_code_is_for() {
    assert_eq!(version(), VERSION);
}
