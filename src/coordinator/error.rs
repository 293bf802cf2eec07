//! Errors of planning a container. Each text tells the user what to change. Runs in the shim daemon.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;

use oci_spec::OciSpecError;

use super::aot::AotError;
use super::embedding::EmbeddingError;
use super::module::ModuleError;
use super::triggers::TriggerError;
use cwasi_config::annotations::AnnotationError;
use cwasi_config::mount_target::MountProblem;
use cwasi_wire::control::Isolation;

/// What the parser says; the crate's own text is "serde failed".
fn cause(error: &OciSpecError) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Why a container cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The bundle is unreadable.
    #[error("bundle {path} cannot be read: {}", cause(source), path = path.display())]
    Bundle {
        /// Path of `config.json`.
        path: PathBuf,
        #[source]
        source: OciSpecError,
    },
    #[error("the container has no command: give the image an entrypoint or name the .wasm file")]
    NoCommand,
    /// A mount that a function cannot have.
    #[error("a mount's target, {target}, {problem}", target = target.display())]
    Mount { target: PathBuf, problem: MountProblem },
    /// A mount without a source.
    #[error(
        "{missing}, the source of the mount at {target}, does not exist",
        missing = missing.display(),
        target = target.display()
    )]
    MountSource { target: PathBuf, missing: PathBuf },
    /// A mount that a later one hides.
    #[error(
        "the mount at {target} is hidden by the one at {by}, which comes after it: mount {by} first",
        target = target.display(),
        by = by.display()
    )]
    HiddenMount {
        target: PathBuf,
        /// That of the later one.
        by: PathBuf,
    },
    /// A working directory that is none.
    #[error(
        "the working directory {path} is no folder: on the host it would be {on_host}; make it there, or choose another one",
        path = path.display(),
        on_host = on_host.display()
    )]
    WorkingDirectory {
        /// Its path in the container.
        path: PathBuf,
        on_host: PathBuf,
    },
    #[error(transparent)]
    Annotations(#[from] AnnotationError),
    /// Annotations on a native container.
    #[error(
        "{command} is not a WebAssembly module, but the container has annotations for functions: {keys}"
    )]
    NotAFunction {
        /// `args[0]`.
        command: String,
        keys: String,
    },
    /// Neither root file system nor image has the module.
    #[error("no module: {path} is not in the container's root file system, and {image}")]
    NoModule {
        /// `args[0]`.
        path: String,
        /// Modules that the image offers.
        image: String,
    },
    /// What waits for its code gets none.
    #[error("there is no code: /init has none, and the container's command is no module")]
    NoCode,
    #[error("{path} cannot be read: {source}", path = path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Module(#[from] ModuleError),
    #[error("{origin} exports no function `{export}`{hint}; it exports {exports}")]
    NoEntry {
        /// Origin of the module.
        origin: String,
        export: String,
        hint: &'static str,
        exports: String,
    },
    /// An error that an annotation remedies, in a pod without annotations.
    #[error(
        "{source}; no annotation cwasi.* came with this container of a pod: where the pod has some, containerd passes them on \
         only if the runtime handler in its CRI configuration has pod_annotations = [\"cwasi.*\"]"
    )]
    NotPassedOn {
        #[source]
        source: Box<Self>,
    },
    /// An engine without the prototype's host function.
    #[error(
        "{origin} cannot have cwasi.compat=2023: it needs a core module, and the engine wasmtime (cwasi.engine)"
    )]
    Compat {
        /// Origin of the module.
        origin: String,
    },
    /// The prototype's host function, without the annotation that asks for it.
    #[error(
        "{origin} imports `cwasi_export`, the ABI of the paper's prototype: set cwasi.compat=2023"
    )]
    NoCompat {
        /// Origin of the module.
        origin: String,
    },
    /// An isolation that only a reactor can have: the instance of others ends with each request.
    #[error(
        "{origin} is no reactor, so its instance ends with each request: cwasi.isolation={isolation} needs a reactor (cwasi_handle)"
    )]
    Isolation {
        /// Origin of the module.
        origin: String,
        isolation: Isolation,
    },
    /// A fan-in for what takes one payload: on stdin, or as an argument.
    #[error(
        "{origin} is no reactor, so it takes one payload at a time: cwasi.fan-in needs a reactor (cwasi_handle)"
    )]
    FanIn {
        /// Origin of the module.
        origin: String,
    },
    #[error(
        "{origin} imports socket functions ({imports}), and functions reach no network by default: allow its \
         destinations with the annotation cwasi.network=host:port,… or build it without sockets"
    )]
    Sockets {
        /// Origin of the module.
        origin: String,
        imports: String,
    },
    #[error(transparent)]
    Trigger(#[from] TriggerError),
    /// The command gives no valid function name.
    #[error(
        "function name `{name}` (from the command) {problem}: set the annotation cwasi.function"
    )]
    Name {
        /// The name from the command.
        name: String,
        problem: String,
    },
    /// The function's engine is not installed.
    #[error("{0}")]
    Engine(String),
    /// Imports that cannot be satisfied.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
    #[error(transparent)]
    Aot(#[from] AotError),
}
