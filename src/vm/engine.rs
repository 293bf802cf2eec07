//! What CWASI needs from an engine, and how an invocation can end.

use std::path::{Path, PathBuf};

use cwasi_abi::export;

use crate::sys::pool::SegmentPool;
use crate::sys::segment::Segment;
use crate::wire::control::{EmbeddedModule, Entry};
use crate::wire::egress::Egress;
use cwasi_host_functions::{Host, PagesError};

/// What an engine is told once.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Most linear memory of an instance in bytes, rounded down to Wasm pages; `None` = what the module
    /// declares, at most 4 GiB.
    pub memory_max: Option<u64>,
    /// Where a function's sockets may lead; `None` = it gets none. Embedded modules get none anyway.
    pub egress: Option<Egress>,
    /// Writes a line to the function's log: what its sockets were refused, each destination once for all processes that
    /// are forked from this one; `None` = nothing is said.
    pub log: Option<fn(&str)>,
}

/// What one instance sees of the world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceSpec {
    /// Program arguments, the program's name included.
    pub args: Vec<String>,
    /// Environment as `KEY=value`.
    pub env: Vec<String>,
    /// Directories that the guest may open. Entries that are no directories are left out (mounted files such as
    /// `/etc/hosts` cannot be preopened).
    pub preopens: Vec<Preopen>,
    /// Where regions get their memory; `None`: each from a fresh memfd.
    pub pool: Option<SegmentPool>,
}

/// The error's text when a guest's `cwasi_alloc` has answered 0. It names `cwasi.memory` only where that is set.
pub(super) fn no_memory(wanted: u64, linear_memory: usize, memory_max: Option<u64>) -> String {
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
    /// What the guest calls it.
    pub name: PathBuf,
    /// Where it is.
    pub path: PathBuf,
    /// A directory that `path`, which begins at its root then, must not lead out of, whatever symbolic links there are.
    pub inside: Option<PathBuf>,
}

impl<T: Into<PathBuf>> From<T> for Preopen {
    /// One that the guest calls by its path.
    fn from(path: T) -> Self {
        let path = path.into();
        Self { name: path.clone(), path, inside: None }
    }
}

/// Loads native code.
pub trait Engine {
    /// A loaded module.
    type Module: Module;

    /// Loads native code that [`compile`](super::compile()) made. `artifact` is trusted (it is executed) and must be
    /// an absolute path that always names the same bytes: the dynamic linker matches by name.
    ///
    /// # Errors
    /// When the file is no native code for this engine, or imports something that no guest gets.
    fn load(&self, artifact: &Path) -> Result<Self::Module, VmError> {
        self.load_with(artifact, &[])
    }

    /// [`Self::load`] with other modules embedded, each after what it imports itself; as trusted as `artifact`.
    ///
    /// # Errors
    /// As [`Self::load`]; also when what one imports from another is not what that exports.
    fn load_with(
        &self,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<Self::Module, VmError>;
}

/// A loaded module; makes instances.
pub trait Module {
    /// An instance of it.
    type Instance: Instance;

    /// Checks that an invocation can call `entry`.
    ///
    /// # Errors
    /// Names the export that is missing or has another signature.
    fn check(&self, entry: &Entry) -> Result<(), VmError>;

    /// A fresh instance with WASI and the host functions; `_initialize` has run when it is exported.
    /// Reads and writes of the guest go to this process' stdin, stdout and stderr.
    ///
    /// # Errors
    /// When memory runs out or `_initialize` traps or exits.
    fn instantiate(&self, spec: &InstanceSpec, host: &mut Host) -> Result<Self::Instance, VmError>;
}

/// One instance; runs one invocation, and is dropped or brought back to what it was before. It must not be used again after
/// a [`Stop`].
pub trait Instance {
    /// Calls an export whose parameters and result are `i32`; `None` when it has no result.
    ///
    /// # Errors
    /// How the guest stopped before the export returned.
    fn call(&mut self, export: &str, params: &[i32], host: &mut Host) -> Result<Option<i32>, Stop>;

    /// Whether it exports a function of that name.
    fn exports(&self, _function: &str) -> bool {
        false
    }

    /// What is in an exported immutable global of type `i32`; `None` when there is none of that name.
    fn address(&self, _global: &str) -> Option<u32> {
        None
    }

    /// Its guest takes no blocks back (`cwasi_free`), and its memory has grown to nearly what it may have; or that of a
    /// module that is embedded in it.
    fn is_nearly_full(&self) -> bool {
        false
    }

    /// The exported linear memory; empty when there is none.
    fn memory(&self) -> &[u8];

    /// [`EngineOptions::memory_max`] of this instance's engine.
    fn memory_max(&self) -> Option<u64> {
        None
    }

    /// The exported linear memory, for writing.
    fn memory_mut(&mut self) -> &mut [u8];

    /// True when a multiple of a huge page's length is, as an offset of linear memory, where such a page can be.
    fn aligns_huge_pages(&self) -> bool {
        false
    }

    /// Shows `segment` in place of the memory at `ptr`, where `room` bytes are the guest's to overwrite; false
    /// when its bytes are to be copied there instead.
    fn show(&mut self, _at: (u32, u32), _segment: &Segment) -> bool {
        false
    }

    /// Shows each of `parts`, a segment and its offset in the block of whole pages at `_block`, in place of the
    /// memory there; returns how many, from the first on. The bytes of the others are to be copied.
    fn show_parts(&mut self, _block: (u32, u32), _parts: &[(u32, &Segment)]) -> usize {
        0
    }

    /// Makes what [`Self::show`] and [`Self::show_parts`] have put there ordinary memory, zero, unless the guest has done so.
    fn unshow(&mut self) {}

    /// The segment that an answer of `len` bytes at `ptr` is; `None` when it is to be copied.
    ///
    /// # Errors
    /// When the system refuses to seal it.
    fn answer(&mut self, _at: (u32, u32)) -> Result<Option<Segment>, PagesError> {
        Ok(None)
    }

    /// Has [`Self::renew`] bring it back to the state that it is in. Called once, before the first request. With
    /// [`Start::Alike`] nothing comes of it unless other instances of the module with the same variant started with the
    /// same bytes.
    fn remember(&mut self, _start: Start) {}

    /// Brings it back to that state, so that the next request finds nothing of those before; false when this
    /// instance or its module does not allow that, and then it must not be used again.
    fn renew(&mut self) -> bool {
        false
    }

    /// Why [`Self::renew`] answers false, where that is the module's and not this one instance's: a trap or an exit of its
    /// guest is not told.
    fn not_renewed(&self) -> Option<NotRenewed> {
        None
    }

    /// Runs a WASI command to its end.
    fn run_command(&mut self, export: &str, host: &mut Host) -> End {
        match self.call(export, &[], host) {
            Ok(_) => End::Exited(0),
            Err(Stop::Exited(code)) => End::Exited(code),
            Err(Stop::Trapped(trap)) => End::Trapped(trap),
        }
    }
}

/// Which state an instance is brought back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The one that all fresh instances have in which the same was done: those of the same variant, which a number names.
    Alike(u64),
    /// Its own, whatever time and random numbers have made of it.
    Snapshot,
}

/// Why instances of a module are not brought back to an earlier state, but made anew for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRenewed {
    /// Other modules' state is not set back.
    #[error("it embeds other modules")]
    Embeds,
    /// The compiler has not exposed its state.
    #[error(
        "its code changes more than one exported memory and globals of numbers (tables, segments, other memories)"
    )]
    State,
    /// Its instances start with different bytes.
    #[error(
        "its instances start with different bytes, because it reads the time or random numbers in `_initialize`; with cwasi.isolation=snapshot all requests of a worker start from the same bytes"
    )]
    Varies,
    /// There is too much to remember.
    #[error(
        "its memory has too many bytes that are not zero when it starts: more than 32 MiB, or 2 MiB where the kernel does not say which pages a request has written"
    )]
    TooLarge,
    /// A WASI may keep what it did.
    #[error("it opens or closes files while it starts")]
    OpensAtStart,
    /// A WASI may keep what a request did.
    #[error(
        "a request opened, closed or moved in a file, or called another function of WASI that leaves something"
    )]
    Opens,
    /// It had shared memory before its first request.
    #[error("it makes regions while it starts")]
    SharesAtStart,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned (0) or called `proc_exit`.
    Exited(u32),
    /// It trapped.
    Trapped(Trap),
}

/// Why an export did not return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The guest called `proc_exit`.
    Exited(u32),
    /// The guest trapped.
    Trapped(Trap),
}

/// A trap: which, and in which export. The engine keeps no stack of native code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trap in `{export}`: {reason}")]
pub struct Trap {
    /// Export that the host had called.
    pub export: String,
    /// The engine's words, e.g. `out of bounds memory access`.
    pub reason: String,
}

/// Why a module cannot be loaded or instantiated.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The engine cannot be set up at all.
    #[error("the engine cannot create its {what}; is memory exhausted?")]
    Setup {
        /// Which of its objects.
        what: &'static str,
    },
    /// The artifact is not what the cache should hold.
    #[error("{path} is no native code of this engine ({reason}); remove it, it will be compiled again", path = .path.display())]
    Artifact {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The module imports what no guest gets.
    #[error(
        "the module imports what this host does not offer: {}; a function may import `wasi_snapshot_preview1` and the functions of `cwasi` listed in docs/abi.md",
        .imports.join(", ")
    )]
    Imports {
        /// Each `module.name` and what is wrong with it.
        imports: Vec<String>,
    },
    /// The module does not export what its role needs.
    #[error("the module does not export {missing}; {hint}")]
    Entry {
        /// The export and its signature.
        missing: String,
        /// What to do about it.
        hint: String,
    },
    /// The module needs more memory than it may have.
    #[error(
        "the module starts with {needed} bytes of linear memory, but cwasi.memory allows {limit}; raise cwasi.memory"
    )]
    Memory {
        /// What it declares, in bytes.
        needed: u64,
        /// What it may have, in bytes.
        limit: u64,
    },
    /// An argument, variable or path that WASI cannot pass on.
    #[error("{what} cannot be passed to a guest: {reason}")]
    Spec {
        /// Which one.
        what: String,
        /// Why.
        reason: String,
    },
    /// The engine refused to make an instance.
    #[error("the module cannot be instantiated: {reason}")]
    Instantiate {
        /// The engine's words.
        reason: String,
    },
    /// `_initialize` did not return.
    #[error("the module cannot be started: {reason}")]
    Initialize {
        /// Trap or exit code.
        reason: String,
    },
}

impl VmError {
    /// An export that a role needs and the module does not have as it should be.
    #[must_use]
    pub(crate) fn entry(missing: String, entry: &Entry, exported: &[String]) -> Self {
        let hint = match entry {
            Entry::Reactor => format!(
                "a function that is called needs `{}`, `{}` and `{}` (docs/abi.md; the Rust SDK's #[cwasi::handler] makes them)",
                export::HANDLE,
                export::ALLOC,
                export::MEMORY
            ),
            Entry::Command { .. } if exported.is_empty() => "it exports no functions".to_owned(),
            Entry::Command { .. } => {
                format!("it exports {}", exported.join(", "))
            }
        };
        Self::Entry { missing, hint }
    }
}
