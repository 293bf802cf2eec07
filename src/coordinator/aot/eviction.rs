//! Entries of the cache in use, and the removal of those that were not used for the longest time. Runs in the shim
//! daemon.
//!
//! Invariant: an entry with a lock on its file is not removed. A start holds a shared one until the sandbox has loaded
//! the native code; after that the code is mapped and needs no name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use sha2::{Digest as _, Sha256};

use crate::compile_slots::try_lock;
use cwasi_config::Engine;

/// Most bytes of a checksum's file.
const SUM_MAX: u64 = 128;

/// An entry that a start uses.
#[derive(Debug)]
pub struct EntryInUse {
    _lock: Flock<File>,
}

impl EntryInUse {
    /// An entry whose file was made, and is not in the cache yet.
    pub(super) const fn of(lock: Flock<File>) -> Self {
        Self { _lock: lock }
    }
}

/// Takes the entry `path` into use, if it is there, this user's own, and as its checksum says.
pub(super) fn take(path: &Path) -> Option<EntryInUse> {
    let (mut sum, mut expected) = (File::open(path.with_extension("sha256")).ok()?, String::new());
    sum.by_ref().take(SUM_MAX).read_to_string(&mut expected).ok()?;
    let file = File::open(path).ok()?;
    let lock = Flock::lock(file, FlockArg::LockSharedNonblock).ok()?;
    let data = lock.metadata().ok()?;
    if data.nlink() == 0 {
        return None;
    }
    let owner = data.uid();
    if owner != geteuid().as_raw() && owner != 0 {
        tracing::warn!(path = %path.display(), owner, "an entry of the AOT cache is another user's, compiling again");
        return None;
    }
    if digest_of(&*lock).ok()? != expected {
        tracing::warn!(path = %path.display(), "damaged entry of the AOT cache, compiling again");
        return None;
    }
    // The order of eviction; the code's own time is that of its compilation. A cache that cannot be written is not
    // evicted either.
    let _time = sum.set_modified(SystemTime::now());
    Some(EntryInUse { _lock: lock })
}

/// SHA-256 of what `file` reads, in hexadecimal digits.
pub(super) fn digest_of(mut file: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher)?;
    Ok(hex::encode(hasher.finalize()))
}

/// Removes entries until the others have at most `max` bytes, those first that were not used for the longest time; and
/// lock files of modules without an entry. What cannot be removed now is left for the next time.
pub(super) fn evict(dir: &Path, max: u64) {
    let (mut entries, mut total) = (Vec::new(), 0_u64);
    for path in files(dir) {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(extension) if is_native(extension) => {
                let Ok(data) = path.metadata() else { continue };
                total = total.saturating_add(data.len());
                let sum = path.with_extension("sha256").metadata();
                let used = sum.and_then(|sum| sum.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                entries.push((used, data.len(), path));
            }
            Some("lock") if !is_slot(&path) && !has_native(&path) => {
                remove_locked(&path, || ());
            }
            _ => {}
        }
    }
    entries.sort_unstable();
    for (_, len, path) in entries {
        if total <= max {
            return;
        }
        if remove(&path) {
            tracing::info!(path = %path.display(), len, "removed from the AOT cache, which is full");
            total -= len;
        }
    }
}

/// Removes an entry that is not in use.
fn remove(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return false };
    let mut removed = false;
    // While no process compiles it.
    remove_locked(&path.with_extension("lock"), || {
        removed = fs::remove_file(path).is_ok();
        let _sum = fs::remove_file(path.with_extension("sha256"));
    });
    removed
}

/// Calls `then` and removes the lock file, if its lock is free.
fn remove_locked(path: &Path, then: impl FnOnce()) {
    if let Ok(Some(_lock)) = try_lock(path) {
        then();
        let _gone = fs::remove_file(path);
    }
}

/// True for the extension of an entry's native code, of whichever engine.
fn is_native(extension: &str) -> bool {
    Engine::ALL.iter().any(|engine| engine.native_extension() == extension)
}

/// True if the entry of this lock file is there.
fn has_native(lock: &Path) -> bool {
    Engine::ALL.iter().any(|engine| lock.with_extension(engine.native_extension()).exists())
}

fn is_slot(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"compiler-"))
}

fn files(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}
