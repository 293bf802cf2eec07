//! The traits of an engine, and the ends of an invocation. Runs in builder and workers.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use cwasi_abi::export;

use cwasi_host_functions::{Host, PagesError};
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::segment::Segment;
use cwasi_wire::control::{EmbeddedModule, Entry};
use cwasi_wire::egress::Egress;

pub use crate::ends::{CommandEnd, GuestStop, Trap};
use crate::handler::PayloadHandler;

#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Largest linear memory of an instance in bytes, rounded down to Wasm pages; `None` = the module's own maximum,
    /// at most 4 GiB.
    pub memory_max: Option<u64>,
    /// Allowed destinations of a function's sockets; `None` = no sockets. Embedded modules never get sockets.
    pub egress: Option<Egress>,
    /// Writes a line to the function's log: each refused destination, once for all processes forked from this one.
    /// `None` = no lines.
    pub log: Option<fn(&str)>,
}

/// The environment of one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceSpec {
    /// Program arguments, the program's name included.
    pub args: Vec<String>,
    /// Environment as `KEY=value`.
    pub env: Vec<String>,
    /// Directories that the guest may open. Other files are skipped: a mounted file such as `/etc/hosts` cannot be
    /// preopened.
    pub preopens: Vec<Preopen>,
    /// Source of regions' memory; `None` = a new memfd for each.
    pub pool: Option<SegmentPool>,
}

/// The error after a guest's `cwasi_alloc` returned 0. It names `cwasi.memory` only if that is set.
pub fn no_memory(wanted: u64, linear_memory: usize, memory_max: Option<u64>) -> String {
    let start = format!(
        "no memory in the guest for {wanted} bytes: its linear memory has {linear_memory} bytes"
    );
    match memory_max {
        Some(max) => format!("{start}, and cwasi.memory allows {max}"),
        None => format!("{start}, and its `cwasi_alloc` answered 0"),
    }
}

/// A directory that a guest may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preopen {
    /// Its name in the guest.
    pub name: PathBuf,
    /// Its path on the host.
    pub path: PathBuf,
    /// A root below which `path`, absolute in it, is resolved; symbolic links cannot lead out.
    pub inside: Option<PathBuf>,
    /// True if the engine has to refuse changes; the kernel may do so in any case.
    pub read_only: bool,
}

impl<T: Into<PathBuf>> From<T> for Preopen {
    /// A directory with the same name and path.
    fn from(path: T) -> Self {
        let path = path.into();
        Self { name: path.clone(), path, inside: None, read_only: false }
    }
}

pub trait Engine: Sized {
    type Module: Module + 'static;

    /// An engine.
    ///
    /// # Errors
    /// When memory runs out.
    fn new(options: EngineOptions) -> Result<Self, VmError>;

    /// Loads native code that the engine's compiler made. `artifact` is trusted, because it is executed. Its
    /// path must be absolute and always name the same bytes: the dynamic linker matches by name.
    ///
    /// # Errors
    /// When the file is not native code for this engine, or imports unknown functions.
    fn load(&self, artifact: &Path) -> Result<Self::Module, VmError> {
        self.load_with(artifact, &[])
    }

    /// Like [`Self::load`], with embedded modules, each after its own imports; as trusted as `artifact`.
    ///
    /// # Errors
    /// As [`Self::load`]; also when an import does not match its export.
    fn load_with(
        &self,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<Self::Module, VmError>;
}

/// A loaded module; makes instances.
pub trait Module {
    type Instance: Instance;

    /// Checks that an invocation can call `entry`.
    ///
    /// # Errors
    /// The export that is missing or has another signature.
    fn check(&self, entry: &Entry) -> Result<(), VmError>;

    /// Makes a new instance with WASI and the host functions, and runs an exported `_initialize`. The guest's stdin,
    /// stdout and stderr are this process's.
    ///
    /// # Errors
    /// When memory runs out or `_initialize` traps or exits.
    fn instantiate(&self, spec: &InstanceSpec, host: &mut Host) -> Result<Self::Instance, VmError>;

    /// Called first in each process that was forked from the one that loaded the module, and keeps it.
    fn forked(&self) {}

    /// Descriptors that the engine uses by their number, in all processes that fork from this one.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// One instance. It runs one invocation, and is then dropped or renewed. Do not use it after a [`GuestStop`].
pub trait Instance {
    /// Calls an export with `i32` parameters; `None` if it has no result.
    ///
    /// # Errors
    /// The reason why the guest stopped before the export returned.
    fn call(
        &mut self,
        export: &str,
        params: &[i32],
        host: &mut Host,
    ) -> Result<Option<i32>, GuestStop>;

    /// True if it exports a function of that name.
    fn exports(&self, _function: &str) -> bool {
        false
    }

    /// Value of an exported immutable global of type `i32`; `None` if there is none.
    fn address(&self, _global: &str) -> Option<u32> {
        None
    }

    /// True if a module of the instance has no `cwasi_free` and its memory is nearly full.
    fn is_nearly_full(&self) -> bool {
        false
    }

    /// The exported linear memory; empty without one.
    fn memory(&self) -> &[u8];

    /// [`EngineOptions::memory_max`] of this instance's engine.
    fn memory_max(&self) -> Option<u64> {
        None
    }

    /// The exported linear memory, for writing.
    fn memory_mut(&mut self) -> &mut [u8];

    /// True if offsets that are multiples of a huge page's length are aligned for huge pages.
    fn aligns_huge_pages(&self) -> bool {
        false
    }

    /// Maps `segment` over the memory at `ptr`; the guest may overwrite `room` bytes. False if the bytes are to be
    /// copied instead.
    fn map(&mut self, _at: (u32, u32), _segment: &Segment) -> bool {
        false
    }

    /// Maps each of `parts`, a segment and its offset in the block of whole pages at `_block`. Returns the number of
    /// mapped parts, from the first on; the others are to be copied.
    fn map_parts(&mut self, _block: (u32, u32), _parts: &[(u32, &Segment)]) -> usize {
        0
    }

    /// Turns pages mapped by [`Self::map`] and [`Self::map_parts`] into ordinary, zeroed memory, unless the guest
    /// has done so.
    fn unmap(&mut self) {}

    /// The segment of an answer of `len` bytes at `ptr`; `None` if it is to be copied.
    ///
    /// # Errors
    /// When sealing fails.
    fn answer(&mut self, _at: (u32, u32)) -> Result<Option<Segment>, PagesError> {
        Ok(None)
    }

    /// Stores the current state for [`Self::renew`]. Called once, before the first request. [`Start::Alike`] has an
    /// effect only if another instance of the module with the same variant started with the same bytes.
    fn remember(&mut self, _start: Start) {}

    /// Restores the stored state, so that the next request sees nothing of earlier ones. False if that is impossible;
    /// then the instance must not be used again.
    fn renew(&mut self) -> bool {
        false
    }

    /// The module's reason why [`Self::renew`] returns false. A trap or an exit of this instance is not one.
    fn not_renewed(&self) -> Option<NotRenewed> {
        None
    }

    /// Begins to keep the end of what the guest writes to stderr.
    fn keep_stderr(&mut self) {}

    /// Ends [`Self::keep_stderr`]; returns what was kept.
    fn stderr_tail(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// The handler of a component; `None` for a core module.
    fn payload_handler(&mut self) -> Option<&mut dyn PayloadHandler> {
        None
    }

    /// Runs a WASI command to its end.
    fn run_command(&mut self, export: &str, host: &mut Host) -> CommandEnd {
        match self.call(export, &[], host) {
            Ok(_) => CommandEnd::Exited(0),
            Err(GuestStop::Exited(code)) => CommandEnd::Exited(code),
            Err(GuestStop::Trapped(trap)) => CommandEnd::Trapped(trap),
        }
    }
}

/// The state to which an instance is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The state of all new instances of the same variant.
    Alike(u64),
    /// Its own initial state, with its own time and random numbers.
    Snapshot,
}

/// The reason why instances of a module are not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRenewed {
    /// Embedded modules' state cannot be restored.
    #[error("it embeds other modules")]
    Embeds,
    /// The compiler has not exported its state.
    #[error(
        "its code changes more than one exported memory and globals of numbers (tables, segments, other memories)"
    )]
    State,
    #[error(
        "its instances start with different bytes, because it reads the time or random numbers in `_initialize`; with cwasi.isolation=snapshot all requests of a worker start from the same bytes"
    )]
    Varies,
    /// The image would be too large.
    #[error(
        "its memory has too many bytes that are not zero when it starts: more than 32 MiB, or 2 MiB where the kernel does not say which pages a request has written"
    )]
    TooLarge,
    /// WASI may keep state from the start.
    #[error("it opens or closes files while it starts")]
    OpensAtStart,
    /// WASI may keep state from a request.
    #[error(
        "a request opened, closed or moved in a file, or called another WASI function that leaves state"
    )]
    Opens,
    /// It had shared memory before its first request.
    #[error("it makes regions while it starts")]
    SharesAtStart,
}

/// A module that cannot be loaded or instantiated.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    #[error("the engine cannot create its {what}; is memory exhausted?")]
    Setup { what: &'static str },
    /// A bad file in the cache.
    #[error("{path} is not native code of this engine ({reason}); remove it, and the next start compiles it again", path = .path.display())]
    Artifact { path: PathBuf, reason: String },
    #[error(
        "the module imports what this host does not offer: {}; a function may import `wasi_snapshot_preview1` and the functions of `cwasi` listed in docs/abi.md",
        .imports.join(", ")
    )]
    Imports {
        /// Each `module.name` with the fault.
        imports: Vec<String>,
    },
    /// A component's imports.
    #[error(
        "the component imports interfaces that this host does not offer: {}; a component may import WASI 0.2 and 0.3, and the interfaces of `cwasi:calls` (docs/components.md)",
        .imports.join(", ")
    )]
    Interfaces {
        /// Each import with the fault.
        imports: Vec<String>,
    },
    #[error("the module does not export {missing}; {hint}")]
    Entry {
        /// The export and its signature.
        missing: String,
        hint: String,
    },
    /// The module's minimum memory is above the limit.
    #[error(
        "the module starts with {needed} bytes of linear memory, but cwasi.memory allows {limit}; raise cwasi.memory"
    )]
    Memory {
        /// The declared minimum in bytes.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// An argument, variable or path that WASI cannot pass to the guest.
    #[error("{what} cannot be passed to a guest: {reason}")]
    Spec {
        /// The argument, variable or path.
        what: String,
        reason: String,
    },
    /// The engine refused to make an instance.
    #[error("the module cannot be instantiated: {reason}")]
    Instantiate { reason: String },
    /// `_initialize` did not return.
    #[error("the module cannot be started: {reason}")]
    Initialize {
        /// Trap or exit code.
        reason: String,
    },
}

impl VmError {
    /// A missing or wrong export of a role.
    #[must_use]
    pub fn entry(missing: String, entry: &Entry, exported: &[String]) -> Self {
        let hint = match entry {
            Entry::Reactor => format!(
                "a function that is called needs `{}`, `{}` and `{}` (docs/abi.md; the Rust SDK's #[cwasi::handler] makes them)",
                export::HANDLE,
                export::ALLOC,
                export::MEMORY
            ),
            Entry::Command { .. } | Entry::Prototype if exported.is_empty() => {
                "it exports no functions".to_owned()
            }
            Entry::Command { .. } | Entry::Prototype => {
                format!("it exports {}", exported.join(", "))
            }
        };
        Self::Entry { missing, hint }
    }
}
