//! What the state says of a container, and how `delete` finds the state of a bundle.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{StateError, read_json, write_json};
use cwasi_wire::ids::Identity;

/// File in a bundle that names the state directory for `delete`.
const POINTER_FILE: &str = "cwasi.json";

/// Names our state for a bundle; containerd passes no options to `delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pointer {
    pub state_dir: PathBuf,
    pub group: String,
}

impl Pointer {
    /// Writes it into a bundle.
    ///
    /// # Errors
    /// When the bundle cannot be written.
    pub fn write(&self, bundle: &Path) -> Result<(), StateError> {
        write_json(&bundle.join(POINTER_FILE), self)
    }

    /// Reads it from a bundle; `None` if this runtime never started the bundle.
    ///
    /// # Errors
    /// When the file exists and cannot be read.
    pub fn read(bundle: &Path) -> Result<Option<Self>, StateError> {
        read_json(&bundle.join(POINTER_FILE))
    }
}

/// The record of a container, for a `delete` after the daemon's death.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerRecord {
    pub namespace: String,
    pub id: String,
    /// Group it belongs to.
    pub group: String,
    pub bundle: PathBuf,
    /// Root file system; unmounted when `rootfs_mounted`.
    pub rootfs: PathBuf,
    /// True when the daemon mounted it.
    pub rootfs_mounted: bool,
    /// Init process, 0 before it exists.
    pub pid: i32,
    /// Its start time in clock ticks after boot: tells it from a later process with the same pid.
    pub pid_started: u64,
    /// Its cgroup directories, never a root. Before they exist, the planned ones.
    pub cgroups: Vec<PathBuf>,
    /// The daemon's pid, which is also the session of its children; 0 in records of older versions.
    #[serde(default)]
    pub shim_pid: i32,
    /// Start time of the daemon, in the unit of `pid_started`.
    #[serde(default)]
    pub shim_started: u64,
    /// Function in the registry, when it is a secondary.
    pub registered: Option<RegisteredAs>,
    /// Receiver socket, when it is a secondary.
    pub receiver: Option<PathBuf>,
}

/// Key of a registry record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredAs {
    pub identity: Identity,
    pub instance: String,
}
