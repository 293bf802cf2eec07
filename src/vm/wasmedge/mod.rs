//! WasmEdge 0.14.1 through its C API.
//!
//! The SDK's safe layer lacks what is needed here or is unsafe itself: `proc_exit`'s code behind an error,
//! borrows of linear memory, an executor without two `sigprocmask` calls around every host function, and
//! error codes that it does not know are panics there. So [`handles`] owns the engine's objects and the
//! files beside it use them; nothing else in CWASI sees them.
//!
//! Invariants:
//! - One thread. Nothing here is `Send`.
//! - The engine's own log is off: it writes to stdout, which is the guest's.
//! - A host function never calls the engine ([`host_function`]).

mod code;
mod embedded;
mod gate_functions;
mod handles;
mod host_function;
mod imports;
mod instance;
mod memory;
mod module;
mod page_count;
mod program;
mod renewal;
mod signature;
mod slot;
mod sockets;
mod surroundings;
mod wasi;

use std::ffi::CStr;
use std::path::Path;
use std::rc::Rc;

use wasmedge_sys::ffi;

use super::engine::{Engine, EngineOptions, VmError};
use crate::wire::control::EmbeddedModule;
use handles::Configure;
use page_count::PageCount;
use sockets::Network;

pub use instance::WasmEdgeInstance;
pub use module::WasmEdgeModule;

/// Bytes of one Wasm page.
pub(crate) const PAGE_LEN: u64 = 64 * 1024;
/// Most pages of a linear memory: 4 GiB.
const PAGES_MAX: u64 = 65_536;

/// The engine.
#[derive(Debug)]
pub struct WasmEdge {
    shared: Rc<Shared>,
}

/// What modules and instances need of their engine.
#[derive(Debug)]
struct Shared {
    configure: Configure,
    memory_max: Option<u64>,
    memory_pages_max: u32,
    /// What a function's sockets reach; `None` = it gets none.
    network: Option<Network>,
    /// `None`: a memory that grew stays as it is.
    page_count: Option<PageCount>,
}

impl WasmEdge {
    /// An engine.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(options: EngineOptions) -> Result<Self, VmError> {
        silence();
        let pages = options.memory_max.map_or(PAGES_MAX, |bytes| bytes / PAGE_LEN).min(PAGES_MAX);
        let memory_pages_max = u32::try_from(pages).expect("at most PAGES_MAX");
        let configure = Configure::new(memory_pages_max)?;
        let page_count = PageCount::find();
        let EngineOptions { memory_max, egress, log } = options;
        let network = egress.map(|egress| Network::new(egress, log)).transpose()?;
        let shared = Shared { configure, memory_max, memory_pages_max, network, page_count };
        Ok(Self { shared: Rc::new(shared) })
    }
}

impl Engine for WasmEdge {
    type Module = WasmEdgeModule;

    fn load_with(
        &self,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<WasmEdgeModule, VmError> {
        WasmEdgeModule::load(Rc::clone(&self.shared), artifact, embedded)
    }
}

/// Turns the engine's log off.
#[expect(unsafe_code, reason = "C API")]
pub(crate) fn silence() {
    // SAFETY:
    // - sets a level in the engine's logger, which is initialized with the library.
    unsafe { ffi::WasmEdge_LogOff() }
}

/// Version of the linked library.
#[expect(unsafe_code, reason = "C API")]
pub(crate) fn version() -> String {
    // SAFETY:
    // - returns a NUL-terminated string constant of the library.
    let text = unsafe { CStr::from_ptr(ffi::WasmEdge_VersionGet()) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
