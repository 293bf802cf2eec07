//! A host for components on wasmtime. Guests: `tests/guests/components`.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use cwasi_config::Engine as Kind;
use cwasi_engine_tests::compile;
use cwasi_host_functions::{Context, Dispatch, Host, Level, LogSink};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_testbed::paths::component_guest;
use cwasi_vm::engine::{Engine as _, EngineOptions};
use cwasi_wasmtime::{Wasmtime, WasmtimeModule};

/// What the host has seen.
#[derive(Clone, Default)]
pub struct Seen(pub Rc<RefCell<Vec<String>>>);

impl Seen {
    pub fn add(&self, what: String) {
        self.0.borrow_mut().push(what);
    }
}

/// `reverse` reverses, `sink` answers as its payload travelled, every other name is unknown.
impl Dispatch for Seen {
    fn call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        _: Option<Deadline>,
    ) -> CallResult {
        let how = match payload {
            OutgoingPayload::Bytes(_) => "bytes",
            OutgoingPayload::Segment(_) => "segment",
        };
        self.add(format!("call {target} {how} {}", payload.len()));
        match target {
            "sink" => payload.keep(None).map_err(|_| unreachable!()),
            "reverse" => {
                let mut bytes = payload.keep(None).unwrap().into_vec().unwrap();
                bytes.reverse();
                Ok(Payload::Inline(bytes))
            }
            "panic" => panic!("a bug of the host"),
            _ => Err(CallError::NoSuchFunction { message: "who?".into() }),
        }
    }

    fn emit(&mut self, target: &str, bytes: &[u8], _: Option<Deadline>) -> Result<(), CallError> {
        self.add(format!("emit {target} {}", bytes.len()));
        Ok(())
    }
}

impl LogSink for Seen {
    fn log(&mut self, level: Level, _: &Context, message: &str) {
        self.add(format!("{} {message}", level.name()));
    }
}

pub fn host(seen: &Seen) -> Host {
    let mut host = Host::new(Context::default(), Box::new(seen.clone()), Box::new(seen.clone()));
    begin(&mut host);
    host
}

pub fn begin(host: &mut Host) {
    host.begin(Context { function: "tested".into(), ..Context::default() });
}

/// A guest's native code; each is compiled once.
pub fn artifact(name: &str) -> PathBuf {
    use std::collections::HashMap;
    use std::sync::{Mutex, PoisonError};
    static MADE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default();
    let compiled = made.entry(name.to_owned()).or_insert_with(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        let wasm = folder.join(format!("{name}.wasm"));
        std::fs::copy(component_guest(name), &wasm).unwrap();
        compile(Kind::Wasmtime, &wasm)
    });
    compiled.clone()
}

pub fn load_with(name: &str, options: EngineOptions) -> WasmtimeModule {
    Wasmtime::new(options).unwrap().load(&artifact(name)).unwrap()
}
