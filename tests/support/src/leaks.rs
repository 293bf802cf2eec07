//! Checks that a container left nothing behind: processes, files of CWASI's state directory, mounts, cgroups,
//! temporary files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::processes;
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

/// Everything that should be gone once no container of `namespace` exists; one line each.
/// `guard_pid` is the fixture's subreaper.
#[must_use]
pub fn find(ready: &Ready, guard_pid: i32, namespace: &str) -> Vec<String> {
    let mut found = Vec::new();
    let containerd = ready.containerd_pid();
    for process in processes::descendants(guard_pid) {
        if process.pid != containerd {
            found.push(format!("process {} ({}) {}", process.pid, process.state, process.command));
        }
    }
    for folder in STATE_FOLDERS {
        let left = entries(&ready.cwasi_state().join(folder));
        found.extend(left.into_iter().map(|path| format!("state {}", path.display())));
    }
    let bundles = ready.dir.join("state/io.containerd.runtime.v2.task").join(namespace);
    found.extend(entries(&bundles).into_iter().map(|path| format!("bundle {}", path.display())));
    let temporary = entries(&ready.temporary()).into_iter().chain(entries(&ready.fifos()));
    found.extend(temporary.map(|path| format!("temporary {}", path.display())));
    found.extend(shared_files().into_iter().map(|path| format!("shared {}", path.display())));
    let mounts = mounts_below(&ready.dir);
    found.extend(mounts.into_iter().map(|path| format!("mount {}", path.display())));
    let cgroups = cgroups_of(namespace).into_iter().flat_map(|parent| directories(&parent));
    found.extend(cgroups.map(|path| format!("cgroup {}", path.display())));
    found
}

/// Mount points below `dir`, in mount order.
#[must_use]
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    // The table has no path with symbolic links.
    let dir = fs::canonicalize(dir).unwrap_or_else(|_gone| dir.to_owned());
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
