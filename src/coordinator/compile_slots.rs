//! Bounds the number of compilers on this node with one lock file each. Runs in the shim daemon.
//!
//! `flock` locks end with their process, so a killed daemon leaves no stale state. The daemon polls them, because a
//! thread that blocks in the kernel could not give up its wait.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Pause between two attempts to take a lock.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// One of the node's compiler slots.
#[derive(Debug)]
pub(super) struct CompileSlot {
    /// Its number, from 0.
    pub(super) number: usize,
    _lock: Flock<File>,
}

/// Locks `path`; `None` while another process holds the lock, or removed the file meanwhile.
///
/// # Errors
/// The path, when the file cannot be opened or locked.
pub(super) fn try_lock(path: &Path) -> Result<Option<Flock<File>>, (PathBuf, io::Error)> {
    let failed = |error: io::Error| (path.to_owned(), error);
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => {
            let inode = |data: Metadata| (data.dev(), data.ino());
            let is_there = match fs::metadata(path) {
                Ok(found) => inode(found) == inode(lock.metadata().map_err(failed)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(failed(error)),
            };
            Ok(is_there.then_some(lock))
        }
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(failed(errno.into())),
    }
}

/// Takes a free one of `jobs` slots in `directory`; `None` while all are taken.
///
/// # Errors
/// As [`try_lock`].
pub(super) fn try_slot(
    directory: &Path,
    jobs: usize,
) -> Result<Option<CompileSlot>, (PathBuf, io::Error)> {
    for number in 0..jobs {
        if let Some(lock) = try_lock(&directory.join(format!("compiler-{number}.lock")))? {
            return Ok(Some(CompileSlot { number, _lock: lock }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_slots_as_jobs_and_each_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let slot = || try_slot(dir.path(), 2).unwrap();
        let (first, second) = (slot().unwrap(), slot().unwrap());
        assert_eq!((first.number, second.number), (0, 1));
        assert!(slot().is_none());
        drop(first);
        assert_eq!(slot().unwrap().number, 0);
    }
}
