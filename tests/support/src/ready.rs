//! Where a guarded containerd has its files.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::link::Link;
use crate::node_dir::NodeDir;

/// containerd's folder of tasks, in its state and in its root.
const TASKS: &str = "io.containerd.runtime.v2.task";

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

    /// The fixture's own folder as that of a node: what containerd's environment names.
    #[must_use]
    pub fn node(&self) -> NodeDir {
        NodeDir::new(self.dir.clone())
    }

    /// Folder with the nodes of the scenes that share this fixture.
    #[must_use]
    pub fn scenes(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// Every containerd namespace that ever had a task here.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        ["root", "state"]
            .iter()
            .filter_map(|parent| fs::read_dir(self.dir.join(parent).join(TASKS)).ok())
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Bundles of a containerd namespace.
    #[must_use]
    pub fn bundles(&self, namespace: &str) -> PathBuf {
        self.dir.join("state").join(TASKS).join(namespace)
    }

    /// containerd's and the shims' log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("containerd.log")
    }
}
