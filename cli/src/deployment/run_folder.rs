//! A folder that goes with one run. Its owner holds a lock while it lives, so that a later command finds the folders of
//! killed ones.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

/// File in a folder that is locked while the command runs.
const LOCK: &str = "lock";

/// The folder of one run, readable by this user only.
#[derive(Debug)]
pub struct RunFolder {
    folder: TempDir,
    /// Held as long as the folder is used.
    _lock: Flock<File>,
}

impl RunFolder {
    /// Makes a folder in `base` whose name begins with `prefix`, and removes those of commands that were killed.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn new(base: &Path, prefix: &str) -> io::Result<Self> {
        remove_abandoned(base, prefix);
        let private = fs::Permissions::from_mode(0o700);
        let folder =
            tempfile::Builder::new().prefix(prefix).permissions(private).tempdir_in(base)?;
        // A folder without the name of a lock is not abandoned: it gets the name with the lock held.
        let unnamed = folder.path().join("lock.new");
        let lock = Flock::lock(File::create(&unnamed)?, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| errno)?;
        fs::rename(&unnamed, folder.path().join(LOCK))?;
        Ok(Self { folder, _lock: lock })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Folders of this user whose lock is free. Anybody can make others in a shared `/tmp`, with any content.
#[must_use]
pub fn abandoned(base: &Path, prefix: &str) -> Vec<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        let is_ours =
            || entry.metadata().is_ok_and(|folder| folder.is_dir() && folder.uid() == user);
        if !is_named || !is_ours() {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if Flock::lock(lock, FlockArg::LockExclusiveNonblock).is_ok() {
            found.push(entry.path());
        }
    }
    found
}

/// Removes the [`abandoned`] folders.
pub fn remove_abandoned(base: &Path, prefix: &str) {
    for path in abandoned(base, prefix) {
        // What cannot be removed now is tried again by the next command.
        let _removed = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_commands_are_removed_and_others_stay() {
        let base = tempfile::tempdir().unwrap();
        let one = RunFolder::new(base.path(), "private-").unwrap();
        let mode = fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "environments of functions are in it");
        let make = |name: &str, file: &str| {
            let path = base.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(file), "").unwrap();
            path
        };
        let killed = make("run-killed", LOCK);
        let others = [make("run-begins", "lock.new"), make("other", LOCK)];
        let lives = RunFolder::new(base.path(), "run-").unwrap();
        assert!(!killed.exists());
        let second = RunFolder::new(base.path(), "run-").unwrap();
        assert!(lives.path().exists() && others.iter().all(|path| path.exists()));
        let path = lives.path().to_owned();
        drop(lives);
        assert!(!path.exists() && second.path().exists());
        assert_eq!(abandoned(base.path(), "run-"), Vec::<PathBuf>::new());
        // A link to another folder is none of ours.
        std::os::unix::fs::symlink(&others[1], base.path().join("run-link")).unwrap();
        assert_eq!(abandoned(base.path(), "run-"), Vec::<PathBuf>::new());
    }
}
