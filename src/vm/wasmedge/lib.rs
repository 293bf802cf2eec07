//! WasmEdge 0.14.1 through its C API. Runs in builder and workers.
//!
//! The SDK's safe layer hides the code of `proc_exit` behind an error, lends linear memory unsoundly, makes two
//! `sigprocmask` calls around every host function, and panics on unknown error codes. So [`handles`] owns the
//! engine's objects, and only files of this folder use them.
//!
//! Invariants:
//! - One thread. Nothing here is `Send`.
//! - The engine's own log is off, because it goes to stdout, which is the guest's.
//! - A host function never calls the engine ([`host_function`]).
//!
//! A fresh instance per request is made ahead of it and runs once:
//!
//! ```no_run
//! # use cwasi_vm::{Engine, Entry, InstanceSpec, Module, Instance, EngineOptions, Host, Context};
//! # use cwasi_wasmedge::WasmEdge;
//! # use cwasi_modes::Payload;
//! # fn example(
//! #     mut host: Host, spec: InstanceSpec, context: Context, payload: Payload,
//! # ) -> Result<(), cwasi_vm::VmError> {
//! let engine = WasmEdge::new(EngineOptions::default())?;
//! let module = engine.load(std::path::Path::new("/var/lib/cwasi/aot/0123.so"))?;
//! module.check(&Entry::Reactor)?;
//! let mut next = module.instantiate(&spec, &mut host)?; // ahead
//! host.begin(context); // the request is here
//! let handled = cwasi_vm::reactor::handle(&mut next, &payload, &mut host);
//! host.end();
//! # Ok(()) }
//! ```

mod code;
pub mod compile;
mod engine_code;
pub mod fault_handlers;
mod handles;
mod host_function;
mod imports;
mod instance;
pub mod interrupted;
mod memory;
mod module;
mod page_count;
mod program;
mod renewal;
mod resources;
mod signature;
mod sockets;
pub mod stderr_tail;
mod vm_builder;
mod wasi;

use std::ffi::CStr;
use std::path::Path;
use std::rc::Rc;

use wasmedge_sys::ffi;

use cwasi_vm::engine::{Engine, EngineOptions, VmError};
use cwasi_vm::interface::{PAGE_LEN, PAGES_MAX};
use cwasi_wire::control::EmbeddedModule;
use handles::Configure;
use page_count::PageCount;
use sockets::SocketNetwork;

pub use compile::compile;
pub use instance::WasmEdgeInstance;
pub use module::WasmEdgeModule;

/// Version of the engine for which this code is written.
pub const VERSION: &str = "0.14.1";

#[derive(Debug)]
pub struct WasmEdge {
    shared: Rc<EngineShared>,
}

/// The engine's objects that modules and instances need.
#[derive(Debug)]
struct EngineShared {
    configure: Configure,
    memory_max: Option<u64>,
    memory_pages_max: u32,
    /// Allowed destinations of a function's sockets; `None` = no sockets.
    network: Option<SocketNetwork>,
    /// `None`: a grown memory keeps its size.
    page_count: Option<PageCount>,
}

impl Engine for WasmEdge {
    type Module = WasmEdgeModule;

    fn new(options: EngineOptions) -> Result<Self, VmError> {
        silence();
        let pages = options.memory_max.map_or(PAGES_MAX, |bytes| bytes / PAGE_LEN).min(PAGES_MAX);
        let memory_pages_max = u32::try_from(pages).expect("at most PAGES_MAX");
        let configure = Configure::new(memory_pages_max)?;
        let page_count = PageCount::find();
        let EngineOptions { memory_max, egress, log } = options;
        let network = egress.map(|egress| SocketNetwork::new(egress, log)).transpose()?;
        let shared = EngineShared { configure, memory_max, memory_pages_max, network, page_count };
        Ok(Self { shared: Rc::new(shared) })
    }

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
