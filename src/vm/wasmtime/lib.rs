//! The engine wasmtime, without its compiler, for core modules; `components/` runs components. Runs in builder and
//! workers.
//!
//! A fresh instance per request takes a few microseconds: instances come from a pool, which resets only the pages that
//! a request has written. The builder loads code and makes the pool; only workers make instances.
//!
//! Invariants:
//! - One thread. Nothing here is `Send`.
//! - Regions are unmapped before an instance returns to the pool (`instance`), and never lie where the module
//!   initializes memory ([`LinearMemory::with_image`](cwasi_vm::linear_memory::LinearMemory::with_image)): the pool
//!   would hand them, or zeros in the place of data, to the next instance.
//! - Descriptors that wasmtime uses by their number stay open in all processes that fork from the builder's
//!   ([`Module::descriptors`](cwasi_vm::Module::descriptors)).
//! - A forked process first puts its own page map in the place of its parent's
//!   ([`Module::forked`](cwasi_vm::Module::forked)): from the parent's, the pool would read which pages a request has
//!   written, and leave them to the next one.

mod any_instance;
mod binding;
mod callees;
mod code_file;
mod embedded;
mod embedded_component;
mod embedded_module;
mod functions;
mod instance;
mod link_exports;
mod links;
mod module;
mod module_interface;
mod page_map;
mod program;
mod program_code;
mod snapshot;
mod stop;
mod vm;

use std::path::Path;

use cwasi_vm::engine::{Engine, EngineOptions, VmError};
use cwasi_vm::sockets::WriteLine;
use cwasi_wasi::SocketNetwork;
use cwasi_wire::control::EmbeddedModule;

pub use any_instance::WasmtimeInstance;
pub use instance::CoreInstance;
pub use module::WasmtimeModule;

#[derive(Debug)]
pub struct Wasmtime {
    memory_max: Option<u64>,
    /// Allowed destinations of a function's sockets; `None` = no sockets.
    network: Option<SocketNetwork>,
    /// Writes lines to the function's log.
    log: Option<WriteLine>,
}

impl Engine for Wasmtime {
    type Module = WasmtimeModule;

    fn new(options: EngineOptions) -> Result<Self, VmError> {
        let EngineOptions { memory_max, egress, log } = options;
        let network = egress.map(|egress| SocketNetwork::new(egress, log)).transpose()?;
        Ok(Self { memory_max, network, log })
    }

    fn load_with(
        &self,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<WasmtimeModule, VmError> {
        WasmtimeModule::load(self, artifact, embedded)
    }
}
