//! Errors of the cache of compiled modules. Runs in the shim daemon.

use std::io;
use std::path::{Path, PathBuf};

use crate::limits::LimitExceeded;
use cwasi_config::node::config_file;

/// The cache cannot provide a compiled module.
#[derive(Debug, thiserror::Error)]
pub enum AotError {
    /// The cache directory or one of its files.
    #[error("AOT cache: {operation} {path}: {source}", path = path.display())]
    Cache {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Native code is loaded from there.
    #[error(
        "AOT cache: {path} belongs to user {owner}: native code of another user is not loaded; remove it or set cache_dir",
        path = path.display()
    )]
    Owner { path: PathBuf, owner: u32 },
    /// The module exceeds a static limit ([`super::super::limits`]).
    #[error("{origin} is not compiled: {source}")]
    Limit {
        /// Origin of the module.
        origin: String,
        #[source]
        source: LimitExceeded,
    },
    /// The node's configuration forbids it.
    #[error(
        "{origin} is not compiled, because this node never compiles, and no precompiled code that it trusts came with the module: make some with `cwasi compile --sign`, or remove `enabled = false` under [compile] in the node's configuration ({file})",
        file = config_file().display()
    )]
    NeverCompiles {
        /// Origin of the module.
        origin: String,
    },
    #[error("{origin} cannot be compiled: {message}")]
    Compile {
        /// Origin of the module.
        origin: String,
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
        path: PathBuf,
        /// Bytes free.
        free: u64,
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
