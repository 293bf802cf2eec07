//! Where the directories of a function without a container are on the host. In a container they are where the guest
//! names them, and a [`HostPaths`] is empty.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cwasi_sys::file_access::FileAccess;
use cwasi_wire::control::FILES_DIR;

/// A directory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    pub path: PathBuf,
    /// True if the guest may only read it.
    pub read_only: bool,
}

/// A path of the guest on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLocation {
    /// The directory of the host.
    pub path: PathBuf,
    /// Its path below that directory; links in it lead nowhere else.
    pub below: PathBuf,
    /// True if the guest may only read it.
    pub read_only: bool,
}

/// Directories of the host by their names in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPaths(BTreeMap<PathBuf, HostPath>);

impl HostPaths {
    /// The paths of a function without mounts: its root, which it may only read.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self([(PathBuf::from("/"), HostPath { path: root, read_only: true })].into())
    }

    pub fn add(&mut self, target: PathBuf, path: HostPath) {
        self.0.insert(target, path);
    }

    /// Where a path is: in the innermost mount around it, or in the root.
    #[must_use]
    pub fn locate(&self, inside: &Path) -> HostLocation {
        // Of paths that contain each other, the longest is the last.
        let mount = self.0.iter().rev().find(|(target, _)| inside.starts_with(target));
        let (target, HostPath { path, read_only }) = match mount {
            Some((target, host)) => (target.as_path(), host.clone()),
            None => (Path::new("/"), self.root()),
        };
        let below = inside.strip_prefix(target).unwrap_or(inside).to_owned();
        HostLocation { path, below, read_only }
    }

    /// Directory of the guest's root.
    #[must_use]
    pub fn root(&self) -> HostPath {
        self.of(Path::new("/"), FILES_DIR)
    }

    /// Directory of a mount.
    #[must_use]
    pub fn mount(&self, inside: &Path) -> HostPath {
        self.of(inside, inside)
    }

    fn of(&self, inside: &Path, otherwise: impl Into<PathBuf>) -> HostPath {
        let known = self.0.get(inside).cloned();
        // In a container the kernel knows which mounts are read-only.
        known.unwrap_or_else(|| HostPath { path: otherwise.into(), read_only: false })
    }

    /// What the function's processes may access; `None` in a container, whose mounts decide.
    #[must_use]
    pub fn access(&self, tcp: bool) -> Option<FileAccess> {
        if self.0.is_empty() {
            return None;
        }
        let mut access = FileAccess { tcp, ..FileAccess::default() };
        for host in self.0.values() {
            let list = if host.read_only { &mut access.readable } else { &mut access.writable };
            list.push(host.path.clone());
        }
        Some(access)
    }
}
