//! Checks that the containers of a scene left nothing behind: processes, files of CWASI's state directory, mounts,
//! cgroups, temporary files.
//!
//! Scenes share a containerd, and each looks for what is its own: in its node's folder, and what its containerd namespace
//! names. Some leftovers name no namespace, such as a temporary file. They are everybody's ([`Leak::is_own`]).

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::node_dir::NodeDir;
use crate::processes::{self, Process};
use crate::ready::Ready;

/// Deepest nesting of a containerd namespace's cgroup below its hierarchy.
const CGROUP_DEPTH: usize = 3;
/// Directories of CWASI's state directory that stay; their contents must be removed.
const STATE_FOLDERS: [&str; 5] = ["g", "c", "f", "r", "runs"];
/// Shared places where a library of ours could leave something, by a part of the name.
const SHARED_PLACES: [&str; 3] = ["/run", "/dev/shm", "/tmp"];
const SHARED_NAMES: [&str; 3] = ["youki", "libcontainer", "wasmedge"];

/// Names of our libraries' files in places shared with the whole machine.
fn shared_files() -> Vec<PathBuf> {
    SHARED_PLACES
        .iter()
        .flat_map(|place| entries(Path::new(place)))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            SHARED_NAMES.iter().any(|part| name.contains(part))
        })
        .collect()
}

/// Something that should be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Its kind and its path or process id.
    pub name: String,
    /// What else helps to find its cause.
    detail: String,
    /// False when another scene of this containerd may have made it.
    pub is_own: bool,
}

impl Leak {
    fn at(kind: &str, path: &Path, is_own: bool) -> Self {
        Self { name: format!("{kind} {}", path.display()), detail: String::new(), is_own }
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.detail)
    }
}

/// Where a scene's containers may leave something.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    pub ready: &'a Ready,
    /// The fixture's subreaper.
    pub guard_pid: i32,
    pub namespace: &'a str,
    pub node: &'a NodeDir,
    /// Other scenes use the containerd at the same time.
    pub is_shared: bool,
}

impl Places<'_> {
    /// Processes of the scene's containers and shims, and those of nobody; containerd is neither.
    #[must_use]
    pub fn processes(&self) -> Vec<(Process, bool)> {
        let mut namespaces = self.ready.namespaces();
        namespaces.push(self.namespace.to_owned());
        let containerd = self.ready.containerd_pid();
        let mut found = Vec::new();
        for (process, namespace) in processes::by_namespace(self.guard_pid, &namespaces) {
            if process.pid == containerd {
                continue;
            }
            match namespace {
                _ if !self.is_shared => found.push((process, true)),
                Some(name) if name == self.namespace => found.push((process, true)),
                Some(_) => {}
                None => found.push((process, false)),
            }
        }
        found
    }

    /// Everything that should be gone once no container of the scene exists.
    #[must_use]
    pub fn search(&self) -> Vec<Leak> {
        let mut found = Vec::new();
        for (process, is_own) in self.processes() {
            let detail = format!(" ({}) {}", process.state, process.command);
            found.push(Leak { name: format!("process {}", process.pid), detail, is_own });
        }
        for folder in STATE_FOLDERS {
            let left = entries(&self.node.state().join(folder));
            found.extend(left.iter().map(|path| Leak::at("state", path, true)));
        }
        let bundles = entries(&self.ready.bundles(self.namespace));
        found.extend(bundles.iter().map(|path| Leak::at("bundle", path, true)));
        let temporary = [self.node.temporary(), self.node.fifos()];
        let temporary = temporary.iter().flat_map(|folder| entries(folder));
        found.extend(temporary.map(|path| Leak::at("temporary", &path, true)));
        if self.is_shared {
            let shims = entries(&self.ready.node().temporary());
            found.extend(shims.iter().map(|path| Leak::at("temporary", path, false)));
        }
        found.extend(shared_files().iter().map(|path| Leak::at("shared", path, false)));
        for mount in mounts_below(&self.ready.dir) {
            match self.owner_of_mount(&mount) {
                Some(true) => found.push(Leak::at("mount", &mount, true)),
                None => found.push(Leak::at("mount", &mount, false)),
                Some(false) => {}
            }
        }
        let cgroups =
            cgroups_of(self.namespace).into_iter().flat_map(|parent| directories(&parent));
        found.extend(cgroups.map(|path| Leak::at("cgroup", &path, true)));
        found
    }

    /// True for a mount of this scene, false for another's, `None` for one that names no scene.
    fn owner_of_mount(&self, mount: &Path) -> Option<bool> {
        if !self.is_shared || mount.starts_with(canonical(self.node.path())) {
            return Some(true);
        }
        let is_in = |folder: PathBuf| mount.starts_with(canonical(&folder));
        if is_in(self.ready.bundles(self.namespace)) {
            return Some(true);
        }
        let of_others = is_in(self.ready.bundles("")) || is_in(self.ready.scenes());
        of_others.then_some(false)
    }
}

/// As the table of mounts names it: it has no path with symbolic links.
fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_gone| path.to_owned())
}

/// Mount points below `dir`, in mount order.
#[must_use]
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let dir = canonical(dir);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|path| path.starts_with(&dir))
        .collect()
}

/// Cgroup directories named like a containerd namespace, in every hierarchy (containers are below).
#[must_use]
pub fn cgroups_of(namespace: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut level = directories(Path::new("/sys/fs/cgroup"));
    for _ in 0..CGROUP_DEPTH {
        let next: Vec<PathBuf> = level.iter().flat_map(|path| directories(path)).collect();
        found.extend(level.into_iter().filter(|path| path.ends_with(namespace)));
        level = next;
    }
    found
}

/// Removes a namespace's cgroups as far as they are empty. containerd and runc leave the namespace's own
/// directory as well.
pub fn remove_cgroups(namespace: &str) {
    for parent in cgroups_of(namespace) {
        for child in directories(&parent) {
            // A cgroup with processes refuses; the leak check has reported it.
            let _busy = fs::remove_dir(child);
        }
        let _busy = fs::remove_dir(parent);
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn directories(dir: &Path) -> Vec<PathBuf> {
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(is_directory)
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_finds_what_is_its_own_and_what_is_nobodys() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_owned();
        let ready = Ready { dir: dir.clone(), bin_dir: dir.clone(), link: None };
        fs::write(dir.join("containerd.pid"), "1").unwrap();
        let [one, _other] = ["one", "other"].map(|name| {
            let node = NodeDir::create(ready.scenes().join(name)).unwrap();
            fs::create_dir_all(node.state().join("g/group")).unwrap();
            fs::create_dir_all(ready.bundles(name).join("c")).unwrap();
            node
        });
        fs::create_dir_all(ready.node().temporary().join("nobodys")).unwrap();
        // No process has this id.
        let places = Places {
            ready: &ready,
            guard_pid: i32::MAX,
            namespace: "one",
            node: &one,
            is_shared: true,
        };
        let mut found = places.search();
        // Other tests of this machine may have them.
        found.retain(|leak| !leak.name.starts_with("shared "));
        let own =
            [("state", one.state().join("g/group")), ("bundle", ready.bundles("one").join("c"))];
        let mut wanted = own.map(|(kind, path)| Leak::at(kind, &path, true)).to_vec();
        wanted.push(Leak::at("temporary", &ready.node().temporary().join("nobodys"), false));
        assert_eq!(found, wanted);
    }

    #[test]
    fn mounts_are_found_through_a_symbolic_link() {
        // One that stays, whatever other tests do.
        let (mount, parent) = (PathBuf::from("/proc"), Path::new("/"));
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(parent, &link).unwrap();
        assert!(
            mounts_below(&link).contains(&mount),
            "{} below {}",
            mount.display(),
            parent.display()
        );
    }
}
