//! A group's lock. Runs in launcher, shim daemon and `delete`.
//!
//! Invariant: a process holds it while it starts, ends or removes the group's daemon. The lock's directory goes with
//! the last daemon, so after a wait the lock is compared with the file of its name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::state::{GroupDir, PRIVATE_FILE, StateError, private_dirs};

/// Attempts to lock a file that an ending daemon removes.
const LOCK_TRIES: u32 = 16;

/// Takes a group's lock, creating its directory when needed.
///
/// # Errors
/// When the directory cannot be written.
pub fn lock(group: &GroupDir) -> Result<Flock<File>, StateError> {
    let path = group.lock();
    for _ in 0..LOCK_TRIES {
        match private_dirs().create(group.path()) {
            // It was there, and an ending daemon removed it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_other(group) => {
                continue;
            }
            made => made.map_err(StateError::io("create directory", group.path()))?,
        }
        let file = match open_lock(group) {
            // An ending daemon removed the directory in between.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                // The directory needs more space than the lock. Removing it fails if another launcher uses it.
                let _in_use = fs::remove_dir(group.path());
                return Err(StateError::io("open", &path)(error));
            }
            Ok(file) => file,
        };
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| StateError::io("lock", &path)(errno.into()))?;
        if is_named(&lock, &path) {
            return Ok(lock);
        }
    }
    Err(StateError::Contended { path })
}

/// Takes an existing group's lock if it is free.
#[must_use]
pub fn try_lock(group: &GroupDir) -> Option<Flock<File>> {
    let lock = Flock::lock(open_lock(group).ok()?, FlockArg::LockExclusiveNonblock).ok()?;
    is_named(&lock, &group.lock()).then_some(lock)
}

fn open_lock(group: &GroupDir) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false).mode(PRIVATE_FILE).open(group.lock())
}

/// True if something that is no directory has the directory's name.
fn is_other(group: &GroupDir) -> bool {
    fs::symlink_metadata(group.path()).is_ok_and(|found| !found.is_dir())
}

/// True if the lock's file still has its name: its directory may have been removed.
fn is_named(lock: &File, path: &Path) -> bool {
    let same = |held: fs::Metadata, named: fs::Metadata| {
        named.ino() == held.ino() && named.dev() == held.dev()
    };
    lock.metadata().and_then(|held| Ok(same(held, fs::metadata(path)?))).unwrap_or(false)
}

/// True if a daemon listens on this socket.
#[must_use]
pub fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::state::StateDir;

    #[test]
    fn a_lock_whose_directory_was_removed_is_taken_anew() {
        let dir = tempfile::tempdir().unwrap();
        let group = StateDir::new(dir.path()).group("g");
        let held = lock(&group).unwrap();
        let waiter = std::thread::spawn({
            let group = group.clone();
            move || lock(&group).map(|lock| lock.metadata().unwrap().ino())
        });
        fs::remove_dir_all(group.path()).unwrap();
        drop(held);
        let ino = waiter.join().unwrap().unwrap();
        assert_eq!(fs::metadata(group.lock()).unwrap().ino(), ino);
    }

    #[test]
    fn a_directory_that_goes_while_it_is_made_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let group = StateDir::new(dir.path()).group("g");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ending = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _made = fs::create_dir_all(group.path());
                    let _gone = fs::remove_dir_all(group.path());
                }
            });
            let io_error = (0..10_000)
                .map(|_| lock(&group))
                .find(|taken| matches!(taken, Err(StateError::Io { .. })));
            is_over.store(true, Ordering::Relaxed);
            ending.join().unwrap();
            assert!(io_error.is_none(), "{io_error:?}");
        });
        let _gone = fs::remove_dir_all(group.path());
        fs::write(group.path(), "").unwrap();
        assert!(matches!(lock(&group), Err(StateError::Io { .. })));
    }

    #[test]
    fn a_dead_daemons_socket_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        drop(UnixListener::bind(&socket).unwrap());
        assert!(!answers(&socket));
        let _alive = UnixListener::bind(dir.path().join("t")).unwrap();
        assert!(answers(&dir.path().join("t")));
    }
}
