//! Files with native code that our own compiler made, and how the runtime loads them. Runs in builder and workers.
#![expect(unsafe_code, reason = "executes native code")]

use std::fs::File;
use std::os::fd::RawFd;
use std::path::Path;

use cwasi_components::{ComponentFunction, ComponentOptions};
use cwasi_vm::engine::VmError;
use cwasi_wasi::SocketNetwork;
use cwasi_wasmtime_artifact::{Kind, Trailer, settings};
use wasmtime::{Config, Engine, Module};

use super::{Wasmtime, page_map};

/// Most native stack of guests in bytes: as much as Rust's and C's guests have in linear memory.
const STACK: usize = 1 << 20;
/// Native stack in bytes for the host functions that a component calls.
const HOST_STACK: usize = 1 << 20;
/// What wasmtime calls its memfds, as links of descriptors show it.
const DATA_IMAGE: &str = "/memfd:wasm-memory-image";

/// [`settings`], and those that only the runtime has.
pub(super) fn runtime_settings(kind: Kind) -> Config {
    let mut config = settings(kind);
    config.max_wasm_stack(STACK);
    // On the stack of a component also runs a core module that it calls embedded.
    config.async_stack_size(2 * STACK + HOST_STACK);
    // Not from the cache's file: a process of a function could open the file for writing through its descriptor.
    config.force_memory_init_memfd(true);
    config
}

/// A file that our own compiler made.
pub(super) struct CodeFile<'a> {
    pub(super) path: &'a Path,
    pub(super) file: File,
    pub(super) trailer: Trailer,
}

pub(super) struct LoadedCode {
    pub(super) module: Module,
    pub(super) trailer: Trailer,
}

impl<'a> CodeFile<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self, VmError> {
        let bad = |reason: String| VmError::Artifact { path: path.to_owned(), reason };
        if !path.is_absolute() {
            return Err(bad("the path is not absolute".into()));
        }
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        match Trailer::read(&file) {
            Ok(Some(trailer)) => Ok(Self { path, file, trailer }),
            Ok(None) => Err(bad("the compiler of this runtime has not made it".into())),
            Err(error) => Err(bad(error.to_string())),
        }
    }

    /// Loads a core module.
    pub(super) fn load(&self, engine: &Engine) -> Result<LoadedCode, VmError> {
        let bad = |reason: String| VmError::Artifact { path: self.path.to_owned(), reason };
        let file = self.file.try_clone().map_err(|error| bad(error.to_string()))?;
        // SAFETY:
        // - our own compiler made the file, which nobody changes: the trait's condition.
        let module = unsafe { Module::deserialize_open_file(engine, file) }
            .map_err(|error| bad(format!("{error:#}")))?;
        Ok(LoadedCode { module, trailer: self.trailer })
    }
}

/// Loads a component that may reach the destinations of `network`.
pub(super) fn component(
    wasmtime: &Wasmtime,
    network: Option<SocketNetwork>,
    code: &CodeFile<'_>,
) -> Result<ComponentFunction, VmError> {
    let kind = code.trailer.kind;
    let options = ComponentOptions {
        memory_max: wasmtime.memory_max,
        network,
        log: wasmtime.log,
        scans_pages: page_map::find().is_some_and(|(_, scans)| scans),
        is_async: kind == Kind::AsyncComponent,
    };
    ComponentFunction::load(&|| runtime_settings(kind), code.path, options)
}

/// Numbers of the sealed memfds from which modules' data are mapped at each instantiation.
pub(super) fn data_images() -> std::io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_image = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with(DATA_IMAGE));
        let number: Option<RawFd> = entry.file_name().to_string_lossy().parse().ok();
        found.extend(number.filter(|_| is_image));
    }
    Ok(found)
}
