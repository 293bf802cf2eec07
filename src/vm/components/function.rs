//! A loaded component, and what its instances share. Runs in builder and workers.
#![expect(unsafe_code, reason = "executes native code")]

use std::cell::RefCell;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;

use cwasi_abi::interfaces::{HANDLER, RUN, served_by};
use cwasi_host_functions::Host;
use cwasi_vm::engine::{InstanceSpec, VmError};
use cwasi_wasi::SocketNetwork;
use cwasi_wire::control::Entry;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker};
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::bindings;
use super::exports::Exports;
use super::instance::ComponentInstance;
use super::network;
use super::state::{MemoryLimit, State};
use super::wasi::WasiSettings;

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

/// What the engine knows of a component's container.
#[derive(Clone, Debug)]
pub struct ComponentOptions {
    /// Most bytes of a linear memory; `None` = 4 GiB.
    pub memory_max: Option<u64>,
    /// Allowed destinations; `None` = no sockets.
    pub network: Option<SocketNetwork>,
    /// The kernel says which pages were written.
    pub scans_pages: bool,
}

/// A loaded component.
pub struct ComponentFunction {
    pub(super) engine: Engine,
    pub(super) instance: InstancePre<State>,
    pub(super) exports: Exports,
    pub(super) options: ComponentOptions,
    /// What WASI has for the last spec.
    wasi: RefCell<Option<(InstanceSpec, Rc<WasiSettings>)>>,
    /// The file with native code, which wasmtime uses by its number.
    descriptor: RawFd,
}

impl std::fmt::Debug for ComponentFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComponentFunction").field("exports", &self.exports).finish_non_exhaustive()
    }
}

impl ComponentFunction {
    /// Loads native code that our own compiler made of a component. `settings` are the compiler's.
    ///
    /// # Errors
    /// When the file is not that, or the component imports what this host does not offer.
    pub fn load(
        settings: &dyn Fn() -> Config,
        path: &Path,
        file: &File,
        options: ComponentOptions,
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
        let (component, engine, descriptor) = load(&pooled(settings(), options.scans_pages))
            .or_else(|_too_large| load(&settings()))?;
        check_imports(&engine, &component)?;
        let refused =
            |error: wasmtime::Error| VmError::Instantiate { reason: format!("{error:#}") };
        let linker = linker(&engine).map_err(refused)?;
        let instance = linker.instantiate_pre(&component).map_err(refused)?;
        let exports = Exports::of(&engine, &component);
        Ok(Self { engine, instance, exports, options, wasi: RefCell::default(), descriptor })
    }

    /// Checks that an invocation can call `entry`.
    ///
    /// # Errors
    /// The interface that is missing.
    pub fn check(&self, entry: &Entry) -> Result<(), VmError> {
        let wanted = match entry {
            Entry::Reactor if self.exports.handles() => return Ok(()),
            Entry::Command { .. } if self.exports.run.is_some() => return Ok(()),
            Entry::Reactor => HANDLER.name,
            Entry::Command { .. } => RUN.name,
        };
        let hint = match self.exports.names.as_slice() {
            [] => "the component exports nothing".to_owned(),
            names => format!("the component exports {}", names.join(", ")),
        };
        Err(VmError::Entry { missing: format!("the interface `{wanted}`"), hint })
    }

    /// Makes a new instance. Its stdin, stdout and stderr are this process's.
    ///
    /// # Errors
    /// When memory runs out, or a core module of it does not start.
    pub fn instantiate(
        self: &Rc<Self>,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<ComponentInstance, VmError> {
        ComponentInstance::new(self, &*self.settings(spec)?, host)
    }

    /// The descriptor that wasmtime uses by its number.
    #[must_use]
    pub const fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    pub(super) fn limit(&self) -> MemoryLimit {
        let max = self.options.memory_max.unwrap_or(u64::MAX);
        MemoryLimit(usize::try_from(max).unwrap_or(usize::MAX))
    }

    fn settings(&self, spec: &InstanceSpec) -> Result<Rc<WasiSettings>, VmError> {
        let mut kept = self.wasi.borrow_mut();
        if let Some((made_for, settings)) = &*kept
            && made_for.args == spec.args
            && made_for.env == spec.env
            && made_for.preopens == spec.preopens
        {
            return Ok(Rc::clone(settings));
        }
        let settings = WasiSettings::new(spec, self.options.network.as_ref())?;
        *kept = Some((InstanceSpec { pool: None, ..spec.clone() }, Rc::clone(&settings)));
        Ok(settings)
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
    linker.allow_shadowing(true);
    network::define_look_up(&mut linker)?;
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
