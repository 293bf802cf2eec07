//! Why a container cannot be started: all that its user has to change.

use std::io;
use std::path::PathBuf;

use super::aot::AotError;
use super::embedding::EmbeddingError;
use super::module::ModuleError;
use crate::config::annotations::AnnotationError;
use crate::wire::control::Isolation;

/// Why a container cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The bundle.
    #[error("bundle {path} cannot be read: {source}", path = path.display())]
    Bundle {
        /// Its `config.json`.
        path: PathBuf,
        /// Why.
        #[source]
        source: oci_spec::OciSpecError,
    },
    /// Nothing to run.
    #[error("the container has no command: give the image an entrypoint or name the .wasm file")]
    NoCommand,
    /// Annotations.
    #[error(transparent)]
    Annotations(#[from] AnnotationError),
    /// Annotations on something that is no function.
    #[error(
        "{command} is no WebAssembly module, but the container has annotations for functions: {keys}"
    )]
    NotAFunction {
        /// `args[0]`.
        command: String,
        /// Which annotations.
        keys: String,
    },
    /// The module is nowhere.
    #[error("no module: {path} is not in the container's root file system, and {image}")]
    NoModule {
        /// `args[0]`.
        path: String,
        /// What the image offers.
        image: String,
    },
    /// A file could not be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The module.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// An export that is needed is not there.
    #[error("{origin} exports no function `{export}`{hint}; it exports {exports}")]
    NoEntry {
        /// Where the module came from.
        origin: String,
        /// What was looked for.
        export: String,
        /// What to do.
        hint: &'static str,
        /// What is there.
        exports: String,
    },
    /// A command's instance cannot be used again.
    #[error(
        "{origin} is a command, whose instance ends with each request: cwasi.isolation={isolation} needs a reactor (cwasi_handle)"
    )]
    Isolation {
        /// Where the module came from.
        origin: String,
        /// What was asked for.
        isolation: Isolation,
    },
    /// A command's stdin has no place for several payloads.
    #[error(
        "{origin} is a command, which has one payload on its stdin: cwasi.fan-in needs a reactor (cwasi_handle)"
    )]
    FanIn {
        /// Where the module came from.
        origin: String,
    },
    /// Sockets without a destination.
    #[error(
        "{origin} imports socket functions ({imports}), and functions reach no network by default: allow its \
         destinations with the annotation cwasi.network=host:port,… or build it without sockets"
    )]
    Sockets {
        /// Where the module came from.
        origin: String,
        /// Which ones.
        imports: String,
    },
    /// No usable name.
    #[error(
        "function name `{name}` (from the command) {problem}: set the annotation cwasi.function"
    )]
    Name {
        /// What the command gives.
        name: String,
        /// Why it is none.
        problem: String,
    },
    /// What is to be embedded.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
    /// Compilation.
    #[error(transparent)]
    Aot(#[from] AotError),
}
