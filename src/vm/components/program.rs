//! The code of a component. Runs in builder and workers.
#![expect(unsafe_code, reason = "executes native code")]

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cwasi_abi::interfaces::served_by;
use cwasi_vm::engine::VmError;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker};
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::bindings;
use super::exports::Exports;
use super::look_up;
use super::state::State;

/// Instances at a time: one runs, one is made ahead.
const INSTANCES: u32 = 2;
/// Most core modules, memories and tables of a component in the pool.
const CORE_INSTANCES: u32 = 32;
const MEMORIES: u32 = 8;
const TABLES: u32 = 32;
/// Most elements of a table in the pool.
const TABLE_ELEMENTS: usize = 100_000;
/// Bytes of a memory, of a table and of a stack that stay resident for the next instance.
const KEPT: usize = 16 << 20;
const STACK_KEPT: usize = 64 << 10;
/// Largest instance in the pool, without memories and tables.
const INSTANCE_MAX: usize = 4 << 20;

/// A loaded component.
pub(super) struct ComponentProgram {
    pub(super) engine: Engine,
    pub(super) instance: InstancePre<State>,
    pub(super) exports: Exports,
    /// The file with native code, which wasmtime uses by its number.
    pub(super) descriptor: RawFd,
}

impl std::fmt::Debug for ComponentProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComponentProgram").field("exports", &self.exports).finish_non_exhaustive()
    }
}

impl ComponentProgram {
    /// Loads native code that our own compiler made of a component. `settings` are the compiler's.
    ///
    /// # Errors
    /// When the file is not that, or the component imports what this host does not offer.
    pub(super) fn load(
        settings: &dyn Fn() -> Config,
        path: &Path,
        file: &File,
        scans_pages: bool,
    ) -> Result<Self, VmError> {
        let load = |config: &Config| -> Result<_, VmError> {
            let bad = |reason: String| VmError::Artifact { path: path.to_owned(), reason };
            let engine = Engine::new(config).map_err(|_error| VmError::Setup { what: "engine" })?;
            let expected = lowest_free(file).map_err(|error| bad(error.to_string()))?;
            // SAFETY:
            // - our own compiler made the file, which nobody changes: the condition of `Engine::load_with`.
            let component = unsafe { Component::deserialize_file(&engine, path) };
            let component = component.map_err(|error| bad(format!("{error:#}")))?;
            let descriptor = opened_at(expected, file).map_err(|error| bad(error.to_string()))?;
            Ok((component, engine, descriptor))
        };
        // What does not fit into a pool runs without one.
        let (component, engine, descriptor) =
            load(&pooled(settings(), scans_pages)).or_else(|_too_large| load(&settings()))?;
        check_imports(&engine, &component)?;
        let refused =
            |error: wasmtime::Error| VmError::Instantiate { reason: format!("{error:#}") };
        let linker = linker(&engine).map_err(refused)?;
        let instance = linker.instantiate_pre(&component).map_err(refused)?;
        let exports = Exports::of(&engine, &component);
        Ok(Self { engine, instance, exports, descriptor })
    }
}

/// The number that the next opened file gets. wasmtime opens a component's file itself, and keeps the number.
fn lowest_free(file: &File) -> io::Result<RawFd> {
    file.try_clone().map(|copy| copy.as_raw_fd())
}

/// `number`, if it is open and the same file as `file`.
fn opened_at(number: RawFd, file: &File) -> io::Result<RawFd> {
    let identity = |data: Metadata| (data.dev(), data.ino());
    let opened = fs::metadata(format!("/proc/self/fd/{number}"))?;
    if identity(opened) == identity(file.metadata()?) {
        return Ok(number);
    }
    Err(io::Error::other("another thread has opened a file at the same time"))
}

fn pooled(mut config: Config, scans_pages: bool) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(INSTANCES)
        .total_core_instances(INSTANCES * CORE_INSTANCES)
        .total_memories(INSTANCES * MEMORIES)
        .total_tables(INSTANCES * TABLES)
        .total_stacks(INSTANCES)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_unused_warm_slots(INSTANCES * CORE_INSTANCES)
        .max_core_instance_size(INSTANCE_MAX)
        .table_elements(TABLE_ELEMENTS)
        .linear_memory_keep_resident(KEPT)
        .table_keep_resident(KEPT)
        .async_stack_keep_resident(STACK_KEPT)
        .pagemap_scan(if scans_pages { Enabled::Yes } else { Enabled::No });
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// Everything that a component may import.
fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    linker.allow_shadowing(true);
    look_up::define(&mut linker)?;
    bindings::Imports::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    Ok(linker)
}

/// Names all imports that nobody serves.
fn check_imports(engine: &Engine, component: &Component) -> Result<(), VmError> {
    let imports: Vec<String> = component
        .component_type()
        .imports(engine)
        .filter(|(name, _item)| served_by(name).is_none())
        .map(|(name, _item)| format!("`{name}`"))
        .collect();
    if imports.is_empty() { Ok(()) } else { Err(VmError::Interfaces { imports }) }
}
