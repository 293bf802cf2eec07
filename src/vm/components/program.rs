//! The code of a component. Runs in builder and workers.
#![expect(unsafe_code, reason = "executes native code")]

use std::path::Path;

use cwasi_abi::interfaces::{HTTP_CLIENT, OUTGOING_HANDLER, served_by};
use cwasi_vm::engine::VmError;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker};
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::bindings::cwasi::calls::{calls, context, streams, types};
use super::calls::define as define_lists;
use super::exports::Exports;
use super::options::ComponentOptions;
use super::state::State;
use super::{client, look_up};

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
/// Stacks of an instance: one, or with asynchronous functions one for each that waits in the middle of a call.
const STACKS: u32 = 1;
const ASYNC_STACKS: u32 = 16;
/// Largest instance in the pool, without memories and tables.
const INSTANCE_MAX: usize = 4 << 20;

/// A loaded component.
pub(super) struct ComponentProgram {
    pub(super) engine: Engine,
    pub(super) instance: InstancePre<State>,
    pub(super) exports: Exports,
    /// It has asynchronous functions.
    pub(super) is_async: bool,
    /// It imports the interface for outgoing HTTP requests.
    pub(super) sends_requests: bool,
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
        options: &ComponentOptions,
    ) -> Result<Self, VmError> {
        let load = |config: &Config| -> Result<_, VmError> {
            let bad = |reason: String| VmError::Artifact { path: path.to_owned(), reason };
            let engine = Engine::new(config).map_err(|_error| VmError::Setup { what: "engine" })?;
            // SAFETY:
            // - our own compiler made the file, which nobody changes: the condition of `Engine::load_with`.
            let component = unsafe { Component::deserialize_file(&engine, path) };
            let component = component.map_err(|error| bad(format!("{error:#}")))?;
            Ok((component, engine))
        };
        // What does not fit into a pool runs without one.
        let (component, engine) =
            load(&pooled(settings(), options)).or_else(|_too_large| load(&settings()))?;
        let images = component.initialize_copy_on_write_image();
        images.map_err(|_error| VmError::Setup { what: "images of a component's data" })?;
        check_imports(&engine, &component)?;
        let refused =
            |error: wasmtime::Error| VmError::Instantiate { reason: format!("{error:#}") };
        let linker = linker(&engine, options.is_async).map_err(refused)?;
        let instance = linker.instantiate_pre(&component).map_err(refused)?;
        let exports = Exports::of(&engine, &component);
        let component_type = component.component_type();
        let mut imports = component_type.imports(&engine);
        let sends_requests =
            imports.any(|(name, _item)| OUTGOING_HANDLER.is(name) || HTTP_CLIENT.is(name));
        drop(imports);
        Ok(Self { engine, instance, exports, is_async: options.is_async, sends_requests })
    }
}

fn pooled(mut config: Config, options: &ComponentOptions) -> Config {
    let stacks = if options.is_async { ASYNC_STACKS } else { STACKS };
    let scans = if options.scans_pages { Enabled::Yes } else { Enabled::No };
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(INSTANCES)
        .total_core_instances(INSTANCES * CORE_INSTANCES)
        .total_memories(INSTANCES * MEMORIES)
        .total_tables(INSTANCES * TABLES)
        .total_stacks(INSTANCES * stacks)
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_unused_warm_slots(INSTANCES * CORE_INSTANCES)
        .max_core_instance_size(INSTANCE_MAX)
        .table_elements(TABLE_ELEMENTS)
        .linear_memory_keep_resident(KEPT)
        .table_keep_resident(KEPT)
        .async_stack_keep_resident(STACK_KEPT)
        .pagemap_scan(scans);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// Everything that a component may import.
fn linker(engine: &Engine, is_async: bool) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    if is_async {
        wasmtime_wasi::p3::add_to_linker(&mut linker)?;
        wasmtime_wasi_http::p3::add_to_linker(&mut linker)?;
    }
    linker.allow_shadowing(true);
    look_up::define(&mut linker)?;
    client::define(&mut linker)?;
    if is_async {
        look_up::define_async(&mut linker)?;
        client::define_async(&mut linker)?;
    }
    types::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    streams::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    calls::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    context::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    define_lists(&mut linker)?;
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
