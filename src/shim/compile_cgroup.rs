//! The compilers' cgroups: a parent that bounds all compilers of this node, and a child for each. Runs in the shim
//! daemon.
//!
//! Works with cgroup v1 and v2. The memory controller is required, others are used if present. All compilers together
//! weigh as much as one container, because the parent has the default weight. If no cgroup can be made (a read-only
//! hierarchy, or a delegated one with processes of its own), compilers stay in the daemon's cgroup with their other
//! limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::cgroups;
use cwasi_wire::ids::short_hash;

/// Controllers to use if present.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// Most processes and threads of one compiler.
const TASKS_MAX: &str = "32";
/// Attempts to make a cgroup while other shims remove the empty parent.
const TRIES: u32 = 4;

/// A hierarchy for the compilers' cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CompileHierarchy {
    mount: PathBuf,
    controllers: Vec<String>,
    unified: bool,
}

/// Makes cgroups for compilers.
#[derive(Debug)]
pub struct CompileCgroups {
    /// Path of the parent below each hierarchy's root; empty = no cgroups.
    parent: String,
    /// Prefix of the children's names: compilers of another cache have their own slots.
    prefix: String,
    memory_total: u64,
    /// True after the reason for having no cgroups was logged.
    said: AtomicBool,
}

/// One compiler's cgroups; removed when dropped.
#[derive(Debug)]
pub struct JobCgroup {
    directories: Vec<PathBuf>,
    parents: Vec<PathBuf>,
}

impl CompileCgroups {
    /// Cgroups below `parent`, for the compilers that share the cache in `cache_dir`.
    #[must_use]
    pub fn new(parent: &str, cache_dir: &Path, memory_total: u64) -> Self {
        let prefix = short_hash(&[&cache_dir.display().to_string()]);
        let parent = parent.to_owned();
        Self { parent, prefix, memory_total, said: AtomicBool::new(false) }
    }

    /// Makes cgroups for the compiler in `slot`. `None` if that is impossible; the reason is logged once.
    pub fn make(&self, slot: usize, memory: u64) -> Option<JobCgroup> {
        if self.parent.is_empty() {
            return None;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let made = self.make_in(&hierarchies(&mounts, has_controllers), slot, memory);
        made.inspect_err(|error| {
            if !self.said.swap(true, Ordering::Relaxed) {
                let parent = &self.parent;
                tracing::warn!(parent, %error, "compilers get no cgroup of their own; their other limits hold");
            }
        })
        .ok()
    }

    fn make_in(
        &self,
        hierarchies: &[CompileHierarchy],
        slot: usize,
        memory: u64,
    ) -> io::Result<JobCgroup> {
        if !hierarchies.iter().any(|one| one.controllers.iter().any(|name| name == "memory")) {
            return Err(io::Error::other("no hierarchy has the memory controller"));
        }
        let child = format!("{}-{slot}", self.prefix);
        // Dropping it removes the cgroups made so far.
        let mut job = JobCgroup { directories: Vec::new(), parents: Vec::new() };
        for hierarchy in hierarchies {
            let parent = hierarchy.mount.join(&self.parent);
            let directory = parent.join(&child);
            job.directories.push(directory.clone());
            job.parents.push(parent.clone());
            // The last compiler of another shim may remove the parent at any time.
            let mut tries = 0;
            while let Err(error) = self.make_one(hierarchy, &parent, &directory, memory) {
                tries += 1;
                if error.kind() != io::ErrorKind::NotFound || tries == TRIES {
                    let error = format!("{}: {error}", directory.display());
                    return Err(io::Error::other(error));
                }
            }
        }
        Ok(job)
    }

    fn make_one(
        &self,
        hierarchy: &CompileHierarchy,
        parent: &Path,
        directory: &Path,
        memory: u64,
    ) -> io::Result<()> {
        fs::create_dir_all(parent)?;
        if hierarchy.unified {
            let inside = |above: &&Path| above.starts_with(&hierarchy.mount);
            let above: Vec<_> = parent.ancestors().take_while(inside).collect();
            for above in above.into_iter().rev() {
                delegate(above, hierarchy)?;
            }
        }
        let has = |name: &str| hierarchy.controllers.iter().any(|one| one == name);
        if has("memory") {
            limit_memory(parent, self.memory_total, hierarchy.unified)?;
        }
        match fs::create_dir(directory) {
            // A killed daemon left it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        if has("memory") {
            limit_memory(directory, memory, hierarchy.unified)?;
        }
        if has("pids") {
            // Missing if it is not delegated.
            let _without = write(directory, "pids.max", TASKS_MAX);
        }
        Ok(())
    }
}

/// Enables the hierarchy's controllers for children of `directory`.
fn delegate(directory: &Path, hierarchy: &CompileHierarchy) -> io::Result<()> {
    let enabled = fs::read_to_string(directory.join("cgroup.subtree_control"))?;
    for name in &hierarchy.controllers {
        if !enabled.split_whitespace().any(|one| one == name) {
            let enabled = write(directory, "cgroup.subtree_control", &format!("+{name}"));
            if name == "memory" {
                enabled?;
            }
        }
    }
    Ok(())
}

fn limit_memory(directory: &Path, bytes: u64, unified: bool) -> io::Result<()> {
    // The kernel takes signed numbers, and treats values near their maximum as unlimited.
    let bytes = i64::try_from(bytes).map_or_else(|_| "-1".to_owned(), |bytes| bytes.to_string());
    if unified {
        let bytes = if bytes == "-1" { "max" } else { bytes.as_str() };
        write(directory, "memory.max", bytes)?;
        // Missing without swap.
        let _no_swap = write(directory, "memory.swap.max", "0");
        return Ok(());
    }
    // Only old kernels have this file; without it the parent would bound nothing.
    let _already = write(directory, "memory.use_hierarchy", "1");
    // The limit with swap may not be less than the limit: one of the two orders succeeds.
    let sum = write(directory, "memory.memsw.limit_in_bytes", &bytes);
    write(directory, "memory.limit_in_bytes", &bytes)?;
    if sum.is_err() {
        // Missing without swap accounting.
        let _no_swap = write(directory, "memory.memsw.limit_in_bytes", &bytes);
    }
    Ok(())
}

/// Writes an existing file. Fails if `directory` is not a cgroup.
fn write(directory: &Path, file: &str, value: &str) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::OpenOptions::new().write(true).open(directory.join(file))?;
    file.write_all(value.as_bytes())
}

fn has_controllers(mount: &Path) -> String {
    fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default()
}

/// The hierarchies with our controllers, from the text of `/proc/self/mountinfo`. `controllers` reads those of a
/// unified hierarchy.
fn hierarchies(mountinfo: &str, controllers: impl Fn(&Path) -> String) -> Vec<CompileHierarchy> {
    let mut found: Vec<CompileHierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, system)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4).map(PathBuf::from) else { continue };
        let mut system = system.split(' ');
        let unified = match system.next() {
            Some("cgroup2") => true,
            Some("cgroup") => false,
            _ => continue,
        };
        let names = if unified {
            controllers(&point)
        } else {
            system.nth(1).unwrap_or_default().replace(',', " ")
        };
        let taken = |name: &str| found.iter().any(|one| one.controllers.iter().any(|n| n == name));
        let controllers: Vec<String> = names
            .split_whitespace()
            .filter(|name| CONTROLLERS.contains(name) && !taken(name))
            .map(ToOwned::to_owned)
            .collect();
        if !controllers.is_empty() {
            found.push(CompileHierarchy { mount: point, controllers, unified });
        }
    }
    found
}

impl JobCgroup {
    /// Moves a process into these cgroups.
    pub fn take(&self, pid: i32) {
        for directory in &self.directories {
            // An ended process cannot be moved, and needs no limits.
            if let Err(error) = write(directory, "cgroup.procs", &pid.to_string()) {
                tracing::debug!(pid, %error, path = %directory.display(), "a compiler could not be moved into its cgroup");
            }
        }
    }

    /// True if the OOM killer ended a process of it.
    #[must_use]
    pub fn ran_out_of_memory(&self) -> bool {
        cgroups::oom_kills(&self.directories) > 0
    }
}

impl Drop for JobCgroup {
    fn drop(&mut self) {
        cgroups::remove(&self.directories);
        for parent in &self.parents {
            // Other compilers may be in it.
            let _used = fs::remove_dir(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let v1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let one = |mount: &str, controllers: &[&str], unified| CompileHierarchy {
            mount: mount.into(),
            controllers: controllers.iter().map(ToString::to_string).collect(),
            unified,
        };
        let expected = [
            one("/sys/fs/cgroup/cpu,cpuacct", &["cpu"], false),
            one("/sys/fs/cgroup/memory", &["memory"], false),
        ];
        assert_eq!(hierarchies(v1, |_| String::new()), expected);
        let v2 = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let all = hierarchies(v2, |_| "cpuset cpu io memory pids".to_owned());
        assert_eq!(all, [one("/sys/fs/cgroup", &["cpu", "memory", "pids"], true)]);
    }

    #[test]
    fn without_a_memory_controller_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = CompileCgroups::new("p", Path::new("/cache"), 1 << 30);
        assert!(cgroups.make_in(&[], 0, 1).is_err());
        // No cgroup: its files are not there.
        let plain = CompileHierarchy {
            mount: dir.path().to_owned(),
            controllers: vec!["memory".to_owned()],
            unified: false,
        };
        assert!(cgroups.make_in(&[plain], 0, 1).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
