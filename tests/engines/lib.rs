//! Either engine behind one type, for tests that run with both. `suite/` is the engine conformance suite.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cwasi_config::Engine as Kind;
use cwasi_host_functions::{Host, PagesError};
use cwasi_sys::segment::Segment;
use cwasi_testbed::engines;
use cwasi_vm::engine::{
    CommandEnd, Engine, EngineOptions, GuestStop, Instance, InstanceSpec, Module, NotRenewed,
    Start, VmError,
};
use cwasi_vm::reactor::PayloadHandler;
use cwasi_wasmedge::{WasmEdge, WasmEdgeInstance, WasmEdgeModule};
use cwasi_wasmtime::{Wasmtime, WasmtimeInstance, WasmtimeModule};
use cwasi_wire::control::{EmbeddedModule, Entry};

/// One of the engines.
#[derive(Debug)]
pub enum AnyEngine {
    Wasmtime(Wasmtime),
    WasmEdge(WasmEdge),
}

#[derive(Debug)]
pub enum AnyModule {
    Wasmtime(WasmtimeModule),
    WasmEdge(WasmEdgeModule),
}

#[derive(Debug)]
pub enum AnyInstance {
    Wasmtime(WasmtimeInstance),
    WasmEdge(WasmEdgeInstance),
}

macro_rules! either {
    ($any:ident, $self:expr, $it:ident => $body:expr) => {
        match $self {
            $any::Wasmtime($it) => $body,
            $any::WasmEdge($it) => $body,
        }
    };
}

impl AnyEngine {
    /// # Errors
    /// As [`Engine::new`].
    pub fn of(kind: Kind, options: EngineOptions) -> Result<Self, VmError> {
        Ok(match kind {
            Kind::Wasmtime => Self::Wasmtime(Wasmtime::new(options)?),
            Kind::Wasmedge => Self::WasmEdge(WasmEdge::new(options)?),
        })
    }
}

impl Engine for AnyEngine {
    type Module = AnyModule;

    fn new(options: EngineOptions) -> Result<Self, VmError> {
        Self::of(engines::tested(), options)
    }

    fn load_with(
        &self,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<AnyModule, VmError> {
        Ok(match self {
            Self::Wasmtime(engine) => AnyModule::Wasmtime(engine.load_with(artifact, embedded)?),
            Self::WasmEdge(engine) => AnyModule::WasmEdge(engine.load_with(artifact, embedded)?),
        })
    }
}

impl Module for AnyModule {
    type Instance = AnyInstance;

    fn check(&self, entry: &Entry) -> Result<(), VmError> {
        either!(AnyModule, self, it => it.check(entry))
    }

    fn instantiate(&self, spec: &InstanceSpec, host: &mut Host) -> Result<AnyInstance, VmError> {
        Ok(match self {
            Self::Wasmtime(module) => AnyInstance::Wasmtime(module.instantiate(spec, host)?),
            Self::WasmEdge(module) => AnyInstance::WasmEdge(module.instantiate(spec, host)?),
        })
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        either!(AnyModule, self, it => it.descriptors())
    }
}

impl Instance for AnyInstance {
    fn call(
        &mut self,
        export: &str,
        params: &[i32],
        host: &mut Host,
    ) -> Result<Option<i32>, GuestStop> {
        either!(AnyInstance, self, it => it.call(export, params, host))
    }

    fn exports(&self, function: &str) -> bool {
        either!(AnyInstance, self, it => it.exports(function))
    }

    fn address(&self, global: &str) -> Option<u32> {
        either!(AnyInstance, self, it => it.address(global))
    }

    fn is_nearly_full(&self) -> bool {
        either!(AnyInstance, self, it => it.is_nearly_full())
    }

    fn memory(&self) -> &[u8] {
        either!(AnyInstance, self, it => it.memory())
    }

    fn memory_max(&self) -> Option<u64> {
        either!(AnyInstance, self, it => it.memory_max())
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        either!(AnyInstance, self, it => it.memory_mut())
    }

    fn aligns_huge_pages(&self) -> bool {
        either!(AnyInstance, self, it => it.aligns_huge_pages())
    }

    fn map(&mut self, at: (u32, u32), segment: &Segment) -> bool {
        either!(AnyInstance, self, it => it.map(at, segment))
    }

    fn map_parts(&mut self, block: (u32, u32), parts: &[(u32, &Segment)]) -> usize {
        either!(AnyInstance, self, it => it.map_parts(block, parts))
    }

    fn unmap(&mut self) {
        either!(AnyInstance, self, it => it.unmap());
    }

    fn answer(&mut self, at: (u32, u32)) -> Result<Option<Segment>, PagesError> {
        either!(AnyInstance, self, it => it.answer(at))
    }

    fn remember(&mut self, start: Start) {
        either!(AnyInstance, self, it => it.remember(start));
    }

    fn renew(&mut self) -> bool {
        either!(AnyInstance, self, it => it.renew())
    }

    fn not_renewed(&self) -> Option<NotRenewed> {
        either!(AnyInstance, self, it => it.not_renewed())
    }

    fn keep_stderr(&mut self) {
        either!(AnyInstance, self, it => it.keep_stderr());
    }

    fn stderr_tail(&mut self) -> Vec<u8> {
        either!(AnyInstance, self, it => it.stderr_tail())
    }

    fn payload_handler(&mut self) -> Option<&mut dyn PayloadHandler> {
        either!(AnyInstance, self, it => it.payload_handler())
    }

    fn run_command(&mut self, export: &str, host: &mut Host) -> CommandEnd {
        either!(AnyInstance, self, it => it.run_command(export, host))
    }
}

/// Compiles `wasm` for `kind` in a process of its compiler, as the shim does.
///
/// # Panics
/// When it is refused.
#[must_use]
pub fn compile(kind: Kind, wasm: &Path) -> PathBuf {
    let out = wasm.with_extension(kind.native_extension());
    let output = Command::new(engines::program(kind.compiler_program()))
        .args(kind.compiler_arguments())
        .args([wasm, &out])
        .output()
        .expect("the compiler starts: scripts/build.sh builds it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    out
}

/// Panics if `run` leaves a thread. Threads of tests at the same time do not count: a thread has the name of the one
/// that has started it, unless a runtime of tokio names it, and no test has one.
///
/// # Panics
/// When a thread stays.
pub fn assert_no_thread_is_left<T>(run: impl FnOnce() -> T) -> T {
    const PATIENCE: Duration = Duration::from_secs(30);
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("only-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    fs::write("/proc/thread-self/comm", &name).expect("a thread may rename itself");
    let result = run();
    let names = || {
        let tasks = fs::read_dir("/proc/self/task").expect("threads").flatten();
        // Others end meanwhile.
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let mut left: Vec<_> = names.map(|name| name.trim_end().to_owned()).collect();
        left.retain(|it| *it == name || it.contains("tokio"));
        left
    };
    let end = Instant::now() + PATIENCE;
    // This one stays. One that has ended may be there for a moment.
    while names().len() > 1 {
        assert!(Instant::now() < end, "{:?}", names());
        std::thread::sleep(Duration::from_millis(5));
    }
    result
}
