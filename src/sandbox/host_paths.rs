//! Where the directories of a function without a container are on the host. In a container they are where the guest
//! names them, and a [`HostPaths`] is empty.
//!
//! Invariant: the builder opens each directory once. Landlock and guests get it by its descriptor, which init and
//! workers keep open, so that a path that changes meanwhile leads nowhere else.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use cwasi_sys::file_access::FileAccess;
use cwasi_sys::resolved_path::ResolvedPath;
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

/// An open directory of the host.
#[derive(Clone, Debug)]
struct OpenDirectory {
    resolved: ResolvedPath,
    read_only: bool,
}

impl OpenDirectory {
    fn host_path(&self) -> HostPath {
        HostPath { path: self.resolved.by_descriptor(), read_only: self.read_only }
    }
}

/// Directories of the host by their names in the guest.
#[derive(Clone, Debug, Default)]
pub struct HostPaths(BTreeMap<PathBuf, OpenDirectory>);

impl HostPaths {
    /// The paths of a function without mounts: its root, which it may only read.
    #[must_use]
    pub fn new(root: ResolvedPath) -> Self {
        Self([(PathBuf::from("/"), OpenDirectory { resolved: root, read_only: true })].into())
    }

    pub fn add(&mut self, target: PathBuf, resolved: ResolvedPath, read_only: bool) {
        self.0.insert(target, OpenDirectory { resolved, read_only });
    }

    /// The descriptors by which the paths lead to the directories.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.values().map(|directory| directory.resolved.as_fd())
    }

    /// Where a path is: in the innermost mount around it, or in the root.
    #[must_use]
    pub fn locate(&self, inside: &Path) -> HostLocation {
        // Of paths that contain each other, the longest is the last.
        let mount = self.0.iter().rev().find(|(target, _)| inside.starts_with(target));
        let (target, HostPath { path, read_only }) = match mount {
            Some((target, directory)) => (target.as_path(), directory.host_path()),
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
        let known = self.0.get(inside).map(OpenDirectory::host_path);
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
        for OpenDirectory { resolved, read_only } in self.0.values() {
            let list = if *read_only { &mut access.readable } else { &mut access.writable };
            list.push(resolved.clone());
        }
        Some(access)
    }
}
