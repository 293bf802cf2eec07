//! Errors of the cache of compiled modules. Runs in the shim daemon.

use std::io;
use std::path::{Path, PathBuf};

use crate::limits::LimitExceeded;

/// The cache cannot provide a compiled module.
#[derive(Debug, thiserror::Error)]
pub enum AotError {
    /// The cache directory or one of its files.
    #[error("AOT cache: {operation} {path}: {source}", path = path.display())]
    Cache {
        /// The failed operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Native code is loaded from there.
    #[error(
        "AOT cache: {path} belongs to user {owner}: native code of another user is not loaded; remove it or set cache_dir",
        path = path.display()
    )]
    Owner {
        /// The cache's directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The module exceeds a static limit ([`super::super::limits`]).
    #[error("{origin} is not compiled: {source}")]
    Limit {
        /// Origin of the module.
        origin: String,
        /// The limit.
        #[source]
        source: LimitExceeded,
    },
    /// The compiler failed.
    #[error("{origin} cannot be compiled: {message}")]
    Compile {
        /// Origin of the module.
        origin: String,
        /// The compiler's message.
        message: String,
    },
    /// The compiler failed, and the cache's file system is full.
    #[error(
        "{origin} cannot be compiled: {path} has only {free} bytes free; make room there or set cache_dir (the compiler: {message})",
        path = path.display()
    )]
    Full {
        /// Origin of the module.
        origin: String,
        /// The cache's directory.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// The compiler's message.
        message: String,
    },
}

/// For `map_err`: the failed operation and its file.
pub(super) fn fail(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> AotError + use<> {
    let path = path.to_owned();
    move |source| AotError::Cache { operation, path, source }
}
