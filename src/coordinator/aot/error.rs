//! Why the cache cannot give a compiled module.

use std::io;
use std::path::{Path, PathBuf};

use crate::coordinator::limits::LimitExceeded;

/// The cache cannot give a compiled module.
#[derive(Debug, thiserror::Error)]
pub enum AotError {
    /// The cache directory or one of its files.
    #[error("AOT cache: {operation} {path}: {source}", path = path.display())]
    Cache {
        /// What was tried.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The module stands for too much work.
    #[error("{origin} is not compiled: {source}")]
    Limit {
        /// Where the module came from.
        origin: String,
        /// Which limit.
        #[source]
        source: LimitExceeded,
    },
    /// The compiler.
    #[error("{origin} cannot be compiled: {message}")]
    Compile {
        /// Where the module came from.
        origin: String,
        /// What the compiler says.
        message: String,
    },
    /// The compiler, for lack of room.
    #[error(
        "{origin} cannot be compiled: {path} has only {free} bytes free; make room there or set cache_dir (the compiler: {message})",
        path = path.display()
    )]
    Full {
        /// Where the module came from.
        origin: String,
        /// The cache's directory.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// What the compiler says.
        message: String,
    },
}

/// For `map_err`: an operation on a file of the cache that failed.
pub(super) fn fail(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> AotError + use<> {
    let path = path.to_owned();
    move |source| AotError::Cache { operation, path, source }
}
