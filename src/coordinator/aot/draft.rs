//! Working directories of compilations, below the cache. Runs in the shim daemon.
//!
//! Invariant: only the process that holds the lock of a key uses that key's draft.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{AotError, fail};
use crate::compile_slots::try_lock;

/// Name of a [`Draft`], before its key.
const DRAFT_PREFIX: &str = ".draft-";

/// Working directory of one compilation, removed when dropped. It is on the cache's file system, because the result
/// is renamed into the cache.
#[derive(Debug)]
pub(super) struct Draft(PathBuf);

impl Draft {
    /// Creates it, and removes drafts of killed processes.
    pub(super) fn create(cache: &Path, key: &str) -> Result<Self, AotError> {
        remove_abandoned(cache);
        let path = cache.join(format!("{DRAFT_PREFIX}{key}"));
        let draft = Self(path.clone());
        draft.remove();
        fs::create_dir(&path).map_err(fail("create", &path))?;
        Ok(draft)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "a working directory of the AOT cache could not be removed");
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes drafts of dead processes: their locks are free.
fn remove_abandoned(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(key) = name.to_str().and_then(|name| name.strip_prefix(DRAFT_PREFIX)) else {
            continue;
        };
        if let Ok(Some(_lock)) = try_lock(&lock_file(cache, key)) {
            Draft(entry.path()).remove();
        }
    }
}

/// True while a process compiles the module of `key`.
pub(super) fn is_being_compiled(cache: &Path, key: &str) -> Result<bool, (PathBuf, io::Error)> {
    let draft = cache.join(format!("{DRAFT_PREFIX}{key}"));
    Ok(draft.exists() && try_lock(&lock_file(cache, key))?.is_none())
}

/// The lock file of `key`. The process that compiles the module holds its lock.
pub(super) fn lock_file(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!("{key}.lock"))
}
