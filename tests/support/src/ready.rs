//! Where a guarded containerd has its files.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::link::Link;

/// Addresses and paths of a guarded containerd: the guard's one line of output, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Directory of this fixture; gone when the guard is.
    pub dir: PathBuf,
    /// Folder with `ctr` of the same version.
    pub bin_dir: PathBuf,
    /// Its cable, when it lives in a network of its own.
    pub link: Option<Link>,
}

impl Ready {
    /// containerd's own process; another one after a restart.
    ///
    /// # Panics
    /// When the guard is gone.
    #[must_use]
    pub fn containerd_pid(&self) -> i32 {
        let text = fs::read_to_string(self.pid_file()).expect("the guard writes containerd's pid");
        text.parse().expect("a process id")
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.dir.join("containerd.pid")
    }

    /// Exists while a test restarts containerd: its end is expected, and the guard starts another one.
    #[must_use]
    pub(crate) fn restart_file(&self) -> PathBuf {
        self.dir.join("restart")
    }

    /// Exists while a test wants no containerd: the guard starts the next one when it is gone.
    #[must_use]
    pub(crate) fn absence_file(&self) -> PathBuf {
        self.dir.join("absence")
    }

    /// containerd's socket.
    #[must_use]
    pub fn address(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    /// CWASI's state directory in this fixture.
    #[must_use]
    pub fn cwasi_state(&self) -> PathBuf {
        self.dir.join("cwasi")
    }

    /// `TMPDIR` of all processes in this fixture.
    #[must_use]
    pub fn temporary(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    /// Directory of `ctr`'s FIFOs.
    #[must_use]
    pub fn fifos(&self) -> PathBuf {
        self.dir.join("fifo")
    }

    /// containerd's and the shims' log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("containerd.log")
    }
}
