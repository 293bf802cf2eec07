//! The shim's files: one directory per group, one record per container. Runs in launcher, shim daemon and `delete`.
//!
//! Paths are short, because `sun_path` holds 108 bytes and a Kubernetes bundle path is longer.
//!
//! Invariant: a record is complete before its resources are made, so `delete` can clean up after a killed daemon.
//!
//! Here are the paths; `files` reads and writes them, `record` has the content of two.

mod files;
mod record;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use cwasi_sys::random::bytes16;
use cwasi_wire::ids::short_hash;
use files::PRIVATE_DIR;
pub use files::{
    PRIVATE_FILE, StateError, create_private_dir, private_dirs, read_json, remove_file, unfinished,
    write_file, write_json, write_json_if_dir_exists,
};
pub use record::{ContainerRecord, Pointer, RegisteredAs};

/// Permissions of group and others.
const OTHERS: u32 = 0o077;
/// How the ids of groups begin that are no shim's; those of shims are hexadecimal.
const HOST_GROUP: &str = "host-";
/// Random bytes in such an id.
const HOST_GROUP_BYTES: usize = 8;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_files_are_those_of_one_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ab.json");
        for name in ["ab.json", "ab.7.new", "ab.x.new", "ab.7.json", "abc.8.new", "ab.new"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(unfinished(&path), [(dir.path().join("ab.7.new"), 7)]);
        assert_eq!(unfinished(&dir.path().join("none/ab.json")), []);
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
