//! How many compilers run at once on this node: one lock file for each.
//!
//! Locks (`flock`) end with the processes that hold them, so a daemon that was killed leaves no stale state. They are
//! polled: a wait for one can then be given up at any time, which a thread that blocks in the kernel cannot.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Pause between two looks at a lock that another process holds.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A compiler's place among those of the node.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its number, from 0.
    pub(super) number: usize,
    _lock: Flock<File>,
}

/// The lock of `path`, or `None` while another process holds it.
///
/// # Errors
/// With the path, when the file cannot be opened or locked.
pub(super) fn try_lock(path: &Path) -> Result<Option<Flock<File>>, (PathBuf, io::Error)> {
    let failed = |error: io::Error| (path.to_owned(), error);
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(failed(errno.into())),
    }
}

/// A free one of `jobs` slots, whose files lie in `directory`; `None` while all are taken.
///
/// # Errors
/// As [`try_lock`].
pub(super) fn try_slot(
    directory: &Path,
    jobs: usize,
) -> Result<Option<Slot>, (PathBuf, io::Error)> {
    for number in 0..jobs {
        if let Some(lock) = try_lock(&directory.join(format!("compiler-{number}.lock")))? {
            return Ok(Some(Slot { number, _lock: lock }));
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
