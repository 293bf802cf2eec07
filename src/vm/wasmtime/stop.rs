//! Why a guest stopped. Runs in a worker.

use std::fmt;

use wasmtime::Trap;

/// `proc_exit` of a guest, on its way through wasmtime.
#[derive(Debug)]
pub(super) struct Exit(pub(super) u32);

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it called exit({})", self.0)
    }
}

impl std::error::Error for Exit {}

/// Linked calls are nested too deeply.
#[derive(Debug)]
pub(super) struct TooDeep;

impl fmt::Display for TooDeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("calls of linked functions are nested too deeply")
    }
}

impl std::error::Error for TooDeep {}

/// The exit code, if the guest has called `proc_exit`.
pub(super) fn exit_code(error: &wasmtime::Error) -> Option<u32> {
    error.downcast_ref::<Exit>().map(|exit| exit.0)
}

/// The reason in the words of the WebAssembly specification's tests.
pub(super) fn reason(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<Trap>() {
        Some(Trap::UnreachableCodeReached) => "unreachable".to_owned(),
        Some(trap) => trap.to_string().trim_start_matches("wasm trap: ").to_owned(),
        None => error.root_cause().to_string(),
    }
}
