//! Locks of a workflow's services on one node, so that no command removes a service that another one needs.
//!
//! A workflow has two bytes of one file of the state directory. A command locks them by its open file (`F_OFD_SETLK`),
//! so the kernel frees them when the command ends, also by SIGKILL.
//! - *use*: shared by all commands that start functions with services, until these functions have containers that name
//!   their services, or have ended; for the command alone that removes unused services.
//! - *change*: held by one command, while it looks for services and starts or removes them.
//!
//! Invariant: a command waits for *change* with *use* shared or free, and only tries to have *use* alone. So two
//! commands never wait for each other.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cwasi_host::state::{PRIVATE_FILE, StateDir};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use sha2::{Digest as _, Sha256};

use crate::failure::{Exit, Failure};

/// The file with the bytes of all workflows.
const FILE: &str = "services.lock";
/// Longest wait for another command that starts or removes services.
const WAIT_MAX: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// Places of workflows in the file. Workflows of one place wait for each other without need.
const PLACES: u64 = 1 << 61;

/// The bytes of one workflow.
#[derive(Debug)]
pub struct ServiceLock {
    file: File,
    path: PathBuf,
    workflow: String,
    /// Byte of *use*; the next one is that of *change*.
    place: i64,
}

/// *change*, until it is dropped.
#[derive(Debug)]
pub struct Changing<'a> {
    lock: &'a ServiceLock,
    /// It has *use* alone, too.
    is_alone: bool,
}

#[derive(Clone, Copy, Debug)]
enum Byte {
    Use = 0,
    Change = 1,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Shared,
    Alone,
    Free,
}

impl ServiceLock {
    /// Opens the file of a state directory, and locks nothing.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn open(state: &Path, namespace: &str, workflow: &str) -> Result<Self, Failure> {
        let path = state.join(FILE);
        let open = || {
            StateDir::new(state).prepare().map_err(io::Error::other)?;
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).mode(PRIVATE_FILE);
            options.open(&path)
        };
        let file = open().with_context(|| format!("{} cannot be opened", path.display()))?;
        let digest = Sha256::digest(format!("{namespace} {workflow}"));
        let number = digest.iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        let place = i64::try_from(number % PLACES * 2).unwrap_or_default();
        Ok(Self { file, path, workflow: workflow.to_owned(), place })
    }

    /// Shares *use* from now on.
    ///
    /// # Errors
    /// When another command has it alone for too long.
    pub async fn share(&self) -> Result<(), Failure> {
        self.wait(Byte::Use, Kind::Shared).await
    }

    /// Takes *change*.
    ///
    /// # Errors
    /// When another command has it for too long.
    pub async fn change(&self) -> Result<Changing<'_>, Failure> {
        self.wait(Byte::Change, Kind::Alone).await?;
        Ok(Changing { lock: self, is_alone: false })
    }

    async fn wait(&self, byte: Byte, kind: Kind) -> Result<(), Failure> {
        let until = Instant::now() + WAIT_MAX;
        while !self.set(byte, kind)? {
            if Instant::now() >= until {
                let text = format!(
                    "another command has started or removed services of workflow {} for {} s: wait for its end, or \
                     end it",
                    self.workflow,
                    WAIT_MAX.as_secs()
                );
                return Err(Failure::text(Exit::TryAgain, text));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// False if another command's lock contradicts it.
    fn set(&self, byte: Byte, kind: Kind) -> Result<bool, Failure> {
        #[expect(clippy::cast_possible_truncation, reason = "constants of one digit")]
        let [shared, alone, free, from_start] =
            [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK, libc::SEEK_SET]
                .map(|it| it as libc::c_short);
        let range = libc::flock {
            l_type: match kind {
                Kind::Shared => shared,
                Kind::Alone => alone,
                Kind::Free => free,
            },
            l_whence: from_start,
            l_start: self.place + byte as i64,
            l_len: 1,
            l_pid: 0,
        };
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(errno) => {
                let error = io::Error::from(errno);
                let text = format!("{} cannot be locked", self.path.display());
                Err(anyhow::Error::new(error).context(text).into())
            }
        }
    }
}

impl Changing<'_> {
    /// Gives up *use*, and takes it alone until `self` is dropped. False if other commands share it: the last one of
    /// them removes what is unused then.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn is_last_user(&mut self) -> Result<bool, Failure> {
        self.lock.set(Byte::Use, Kind::Free)?;
        self.is_alone = self.lock.set(Byte::Use, Kind::Alone)?;
        Ok(self.is_alone)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // The end of the command frees what cannot be freed here.
        if self.is_alone {
            let _freed = self.lock.set(Byte::Use, Kind::Free);
        }
        let _freed = self.lock.set(Byte::Change, Kind::Free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_command_that_uses_services_may_remove_them() {
        let state = tempfile::tempdir().unwrap();
        let open = |workflow| ServiceLock::open(state.path(), "n", workflow).unwrap();
        let [one, two, other] = ["w", "w", "x"].map(open);
        for lock in [&one, &two, &other] {
            lock.share().await.unwrap();
        }
        // The first one gives its share up, and the second one is the last.
        let mut change = one.change().await.unwrap();
        assert!(!two.set(Byte::Change, Kind::Alone).unwrap(), "one command changes at a time");
        assert!(!change.is_last_user().unwrap());
        drop(change);
        let mut change = two.change().await.unwrap();
        assert!(change.is_last_user().unwrap());
        assert!(!one.set(Byte::Use, Kind::Shared).unwrap(), "nothing starts while it removes");
        assert!(other.change().await.unwrap().is_last_user().unwrap(), "of another workflow");
        drop(change);
        one.share().await.unwrap();
        // A command that ends without a word is no user any more.
        let mut change = two.change().await.unwrap();
        assert!(!change.is_last_user().unwrap());
        drop(one);
        assert!(change.is_last_user().unwrap());
    }
}
