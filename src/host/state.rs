//! The shim's files: one directory per group, one record per container. Runs in launcher, shim daemon and `delete`.
//!
//! Paths are short, because `sun_path` holds 108 bytes and a Kubernetes bundle path is longer.
//!
//! Invariant: a record is complete before its resources are made, so `delete` can clean up after a killed daemon.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use cwasi_sys::random::bytes16;
use cwasi_wire::ids::{Identity, short_hash};

/// File in a bundle that names the state directory for `delete`.
const POINTER_FILE: &str = "cwasi.json";
/// Modes of the state's directories and files: nothing for other users.
const PRIVATE_DIR: u32 = 0o700;
/// The same for files.
pub const PRIVATE_FILE: u32 = 0o600;
/// Permissions of group and others.
const OTHERS: u32 = 0o077;
/// How the ids of groups begin that are no shim's; those of shims are hexadecimal.
const HOST_GROUP: &str = "host-";
/// Bytes that tell two such groups apart.
const HOST_GROUP_BYTES: usize = 8;
/// Largest state file in bytes.
const STATE_FILE_MAX: u64 = 8 * 1024 * 1024;

/// A failed operation on a state file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A failed file operation.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The state directory is not this user's.
    #[error(
        "state directory {} belongs to user {owner}: remove it, or set state_dir to another one",
        path.display()
    )]
    Owner { path: PathBuf, owner: u32 },
    /// A file of an unknown format.
    #[error("{} cannot be read: {source}", path.display())]
    Content {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

impl StateError {
    /// For `map_err`.
    pub fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { operation, path, source }
    }
}

#[derive(Clone, Debug)]
pub struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// State under `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the directory for this user alone, and narrows one that other users could enter: below it are the logs of
    /// all functions, their environments, and locks that others could hold.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to another user.
    pub fn prepare(&self) -> Result<(), StateError> {
        let root = &self.root;
        create_private_dir(root)?;
        let found = fs::metadata(root).map_err(StateError::io("read", root))?;
        if found.uid() != geteuid().as_raw() {
            return Err(StateError::Owner { path: root.clone(), owner: found.uid() });
        }
        if found.mode() & OTHERS != 0 {
            let private = Permissions::from_mode(PRIVATE_DIR);
            fs::set_permissions(root, private).map_err(StateError::io("narrow", root))?;
        }
        Ok(())
    }

    /// Directory of one group.
    #[must_use]
    pub fn group(&self, group: &str) -> GroupDir {
        GroupDir { path: self.root.join("g").join(group), id: group.to_owned() }
    }

    /// Directory of a new group of a process of the host, which calls functions and is no shim.
    #[must_use]
    pub fn new_host_group(&self) -> GroupDir {
        self.group(&format!("{HOST_GROUP}{}", hex::encode(&bytes16()[..HOST_GROUP_BYTES])))
    }

    /// Edges of an ended group.
    #[must_use]
    pub fn kept_edges(&self, group: &str) -> PathBuf {
        self.root.join("edges").join(format!("{group}.json"))
    }

    /// Sums of the metrics of all ended groups.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.json")
    }

    /// Directory of the spans of ended groups, and of the host's callers.
    #[must_use]
    pub fn kept_spans(&self) -> PathBuf {
        self.root.join("traces")
    }

    /// Record of one container.
    #[must_use]
    pub fn record(&self, namespace: &str, id: &str) -> PathBuf {
        self.root.join("c").join(format!("{}.json", container_key(namespace, id)))
    }
}

/// Name of a container in file names and in libcontainer's state.
#[must_use]
pub fn container_key(namespace: &str, id: &str) -> String {
    short_hash(&[namespace, id])
}

/// Files of one group.
#[derive(Clone, Debug)]
pub struct GroupDir {
    path: PathBuf,
    id: String,
}

impl GroupDir {
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// True for the group of a process of the host ([`super::host_group`]).
    #[must_use]
    pub fn is_of_host(&self) -> bool {
        self.id.starts_with(HOST_GROUP)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Socket of the Task service.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join("s.sock")
    }

    /// The group's lock ([`super::group_lock`]).
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// The daemon's process id.
    #[must_use]
    pub fn pid(&self) -> PathBuf {
        self.path.join("daemon.pid")
    }

    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path.join("daemon.log")
    }

    #[must_use]
    pub fn oci(&self) -> PathBuf {
        self.path.join("oci")
    }

    /// Metrics of the group's edges.
    #[must_use]
    pub fn edges(&self) -> PathBuf {
        self.path.join("edges.json")
    }

    /// Metrics of the group's secondaries.
    #[must_use]
    pub fn functions(&self) -> PathBuf {
        self.path.join("functions.json")
    }

    /// Stages of the starts of the group's containers.
    #[must_use]
    pub fn start_stages(&self) -> PathBuf {
        self.path.join("stages.json")
    }

    /// Spans of the group's functions.
    #[must_use]
    pub fn spans(&self) -> PathBuf {
        self.path.join("spans.jsonl")
    }

    /// The group's node configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// Directory of the marks of started containers whose `Create` is still to come.
    #[must_use]
    pub fn starts(&self) -> PathBuf {
        self.path.join("starts")
    }

    /// Mark of one such start.
    #[must_use]
    pub fn start_mark(&self, namespace: &str, id: &str) -> PathBuf {
        self.starts().join(container_key(namespace, id))
    }
}

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

/// Makes a directory, and those above it, for this user alone.
///
/// # Errors
/// When the file system refuses.
pub fn create_private_dir(path: &Path) -> Result<(), StateError> {
    private_dirs().create(path).map_err(StateError::io("create directory", path))
}

/// Makes directories, and those above them, for this user alone.
pub fn private_dirs() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(PRIVATE_DIR);
    builder
}

/// Writes `value` atomically: a reader sees the old file or the new one.
///
/// # Errors
/// When the directory cannot be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|source| StateError::Content { path: path.to_owned(), source })?;
    write_file(path, &bytes)
}

/// Writes `bytes` atomically: a reader sees the old file or the new one.
///
/// # Errors
/// When the directory cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    if let Some(parent) = path.parent() {
        create_private_dir(parent)?;
    }
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let result = write_private(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    result.map_err(|source| {
        // Removes a half-written temporary file.
        let _ = fs::remove_file(&temporary);
        StateError::Io { operation: "write", path: path.to_owned(), source }
    })
}

/// Readable by root only: the group's configuration may hold the password of Redis.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(path)?.write_all(bytes)
}

/// Reads a state file; `None` if it does not exist.
///
/// # Errors
/// When it cannot be read or is longer than [`STATE_FILE_MAX`].
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let read = fs::metadata(path).and_then(|meta| {
        if meta.len() > STATE_FILE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fs::read(path)
    });
    match read {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StateError::Content { path: path.to_owned(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StateError::io("read", path)(source)),
    }
}

/// Removes a file; a missing one is no error.
///
/// # Errors
/// When it exists and cannot be removed.
pub fn remove_file(path: &Path) -> Result<(), StateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StateError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_absence_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path());
        let path = state.record("ns", "a");
        assert_eq!(read_json::<Pointer>(&path).unwrap(), None);
        let pointer = Pointer { state_dir: dir.path().into(), group: "g".into() };
        write_json(&path, &pointer).unwrap();
        assert_eq!(read_json(&path).unwrap(), Some(pointer));
        remove_file(&path).unwrap();
        remove_file(&path).unwrap();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn other_users_do_not_enter_the_state() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        // One that an older version made.
        let old = dir.path().join("old");
        fs::create_dir(&old).unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o755)).unwrap();
        for root in [old, dir.path().join("new/state")] {
            let state = StateDir::new(&root);
            state.prepare().unwrap();
            state.prepare().unwrap();
            assert_eq!(mode(&root), PRIVATE_DIR);
            let record = state.record("n", "a");
            write_json(&record, &1).unwrap();
            assert_eq!(
                (mode(record.parent().unwrap()), mode(&record)),
                (PRIVATE_DIR, PRIVATE_FILE)
            );
        }
    }

    #[test]
    fn another_users_state_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(dir.path(), Some(12345), None).is_err() {
            // Only root gives directories away.
            return;
        }
        let refused = StateDir::new(dir.path()).prepare().unwrap_err().to_string();
        assert!(refused.contains("belongs to user 12345"), "{refused}");
    }

    #[test]
    fn sockets_fit_into_sun_path_with_the_longest_ids() {
        let id = "i".repeat(63);
        let state = StateDir::new(Path::new("/run/cwasi"));
        let group = state.group(&container_key(&"n".repeat(63), &id));
        assert!(group.socket().as_os_str().len() < 108);
    }
}
