//! Where a module is compiled before it is in the cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{AotError, fail};
use crate::coordinator::compile_slots::try_lock;

/// Name of a [`Draft`], before its key.
const DRAFT_PREFIX: &str = ".draft-";

/// Where a module is compiled: on the file system of the cache, because the result is renamed. Removed when dropped. Only the
/// process with the lock of its key uses it.
#[derive(Debug)]
pub(super) struct Draft(PathBuf);

impl Draft {
    /// Also removes what processes that were killed left.
    pub(super) fn create(cache: &Path, key: &str) -> Result<Self, AotError> {
        remove_abandoned(cache);
        let path = cache.join(format!("{DRAFT_PREFIX}{key}"));
        let draft = Self(path.clone());
        draft.remove();
        fs::create_dir(&path).map_err(fail("create", &path))?;
        Ok(draft)
    }

    /// The file `name` in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "a draft of the AOT cache stays");
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes drafts whose process died: nobody holds their locks.
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

/// Held by the process that compiles the module of this key.
pub(super) fn lock_file(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!("{key}.lock"))
}
