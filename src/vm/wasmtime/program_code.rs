//! Native code of the modules of a VM, in an engine whose pool has room for them. Runs in builder and workers.

use cwasi_components::ComponentFunction;
use cwasi_vm::engine::VmError;
use cwasi_wasmtime_artifact::Kind;
use wasmtime::{Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::code_file::{CodeFile, LoadedCode, component, runtime_settings};
use super::{Wasmtime, page_map};

/// VMs at a time: one runs, one is made ahead.
const VMS: u32 = 2;
/// Most tables of a module in the pool.
const TABLES: u32 = 4;
/// Most elements of a table in the pool.
const TABLE_ELEMENTS: usize = 100_000;
/// Bytes of a memory, and of a table, that stay resident for the next instance if a request has written them.
const KEPT: usize = 16 << 20;
/// Largest instance in the pool, without memory and tables.
const INSTANCE_MAX: usize = 4 << 20;

/// A file that was loaded.
pub(super) enum Loaded {
    Module(LoadedCode),
    /// To be embedded.
    Component(ComponentFunction),
}

/// Loads the modules of a VM.
pub(super) fn load(
    wasmtime: &Wasmtime,
    files: &[CodeFile<'_>],
) -> Result<(Engine, Vec<Loaded>), VmError> {
    // What does not fit into a pool runs without one: its instances take some tens of microseconds more.
    let load = |engine| load_all(wasmtime, engine, files);
    let modules = u32::try_from(files.len()).unwrap_or(u32::MAX);
    match pooled(modules).and_then(load) {
        Ok(loaded) => Ok(loaded),
        Err(_too_large) => engine(&runtime_settings(Kind::Module)).and_then(load),
    }
}

fn engine(config: &wasmtime::Config) -> Result<Engine, VmError> {
    Engine::new(config).map_err(|_error| VmError::Setup { what: "engine" })
}

/// An engine with a pool for VMs of `modules` modules.
fn pooled(modules: u32) -> Result<Engine, VmError> {
    let mut pool = PoolingAllocationConfig::new();
    let instances = VMS.saturating_mul(modules);
    let scans = page_map::find().is_some_and(|(_, scans)| scans);
    pool.total_core_instances(instances)
        // Each would be a mapping with a guard, which every fork copies: the default is 1000.
        .total_stacks(0)
        .total_memories(instances)
        .total_tables(instances.saturating_mul(TABLES))
        .max_unused_warm_slots(instances)
        .max_core_instance_size(INSTANCE_MAX)
        .max_tables_per_module(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .linear_memory_keep_resident(KEPT)
        .table_keep_resident(KEPT)
        .pagemap_scan(if scans { Enabled::Yes } else { Enabled::No });
    let mut config = runtime_settings(Kind::Module);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    engine(&config)
}

fn load_all(
    wasmtime: &Wasmtime,
    engine: Engine,
    files: &[CodeFile<'_>],
) -> Result<(Engine, Vec<Loaded>), VmError> {
    let load = |file: &CodeFile<'_>| match file.trailer.kind {
        Kind::Module => file.load(&engine).map(Loaded::Module),
        // As an embedded module, it reaches no destinations.
        Kind::Component | Kind::AsyncComponent => {
            component(wasmtime, None, file).map(Loaded::Component)
        }
    };
    let loaded = files.iter().map(load).collect::<Result<_, _>>()?;
    Ok((engine, loaded))
}

/// The last one of `modules`, which have names, with those of the others on which it depends. Each comes after its own
/// imports.
pub(super) fn last_with_imports(modules: Vec<(&str, LoadedCode)>) -> Vec<(&str, LoadedCode)> {
    let mut kept: Vec<(&str, LoadedCode)> = Vec::new();
    for (name, code) in modules.into_iter().rev() {
        let imports = |(_, code): &(&str, LoadedCode)| {
            code.module.imports().any(|import| import.module() == name)
        };
        if kept.is_empty() || kept.iter().any(imports) {
            kept.push((name, code));
        }
    }
    kept.reverse();
    kept
}
