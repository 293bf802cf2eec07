//! A group's lock, held by whoever starts, ends or removes its daemon; and whether there is a daemon.
//!
//! The lock file's directory goes away with the last daemon, so a lock that was waited for is checked to be still the
//! one under its name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::state::GroupDir;

/// Tries to get a lock whose file is being removed by an ending daemon.
const LOCK_TRIES: u32 = 16;

/// A lock that cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file system refuses.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Other programs keep removing the lock.
    #[error("{} changes hands all the time; try again", path.display())]
    Contended {
        /// The lock.
        path: PathBuf,
    },
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LockError {
    let path = path.to_owned();
    move |source| LockError::Io { operation, path, source }
}

/// Takes a group's lock, creating its directory when needed.
///
/// # Errors
/// When the directory cannot be written.
pub fn lock(group: &GroupDir) -> Result<Flock<File>, LockError> {
    let path = group.lock();
    for _ in 0..LOCK_TRIES {
        fs::create_dir_all(group.path()).map_err(failed("create directory", group.path()))?;
        let file = match open_lock(group) {
            // An ending daemon removed the directory between the two calls.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                // The directory takes room that the lock had not. It stays when it is another launcher's and not empty.
                let _in_use = fs::remove_dir(group.path());
                return Err(failed("open", &path)(error));
            }
            Ok(file) => file,
        };
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| failed("lock", &path)(errno.into()))?;
        if is_named(&lock, &path) {
            return Ok(lock);
        }
    }
    Err(LockError::Contended { path })
}

/// Takes the lock of a group that is there, if nobody else has it.
#[must_use]
pub fn try_lock(group: &GroupDir) -> Option<Flock<File>> {
    let lock = Flock::lock(open_lock(group).ok()?, FlockArg::LockExclusiveNonblock).ok()?;
    is_named(&lock, &group.lock()).then_some(lock)
}

fn open_lock(group: &GroupDir) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(false).open(group.lock())
}

/// True while the lock is the one under its name: its directory may have been removed since it was opened.
fn is_named(lock: &File, path: &Path) -> bool {
    let same = |held: fs::Metadata, named: fs::Metadata| {
        named.ino() == held.ino() && named.dev() == held.dev()
    };
    lock.metadata().and_then(|held| Ok(same(held, fs::metadata(path)?))).unwrap_or(false)
}

/// True when a daemon listens there.
#[must_use]
pub fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::shim::state::StateDir;

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
    fn a_dead_daemons_socket_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        drop(UnixListener::bind(&socket).unwrap());
        assert!(!answers(&socket));
        let _alive = UnixListener::bind(dir.path().join("t")).unwrap();
        assert!(answers(&dir.path().join("t")));
    }
}
