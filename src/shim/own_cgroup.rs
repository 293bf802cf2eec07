//! The cgroup of a shim daemon itself, and so of its zygote and its builders (`ShimCgroup`).
//!
//! Runs in the daemon, before it starts anything. Containers leave it for their own, compilers for theirs. The cgroup is
//! shared by all daemons that name it, and stays: an operator may have set limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cgroups;

/// Controllers that are wanted in it with cgroup v2, where they can be had.
const CONTROLLERS: [&str; 4] = ["+cpu", "+memory", "+pids", "+io"];
/// What a cgroup of the v1 controller `cpuset` must name before it takes a process.
const CPUSET: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// The daemon cannot be moved.
#[derive(Debug, thiserror::Error)]
#[error("the shim cannot enter the cgroup {}, which ShimCgroup (shim_cgroup) names: {source}", path.display())]
pub struct OwnCgroupError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Moves this process into the cgroup `path` of each hierarchy, which is made where it is not there; an empty path changes
/// nothing.
///
/// # Errors
/// When it can neither be made nor entered.
pub fn enter(path: &str) -> Result<(), OwnCgroupError> {
    if path.is_empty() {
        return Ok(());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let directories = cgroups::planned(Path::new(path), &mounts);
    if directories.is_empty() {
        let source = io::Error::other("no cgroup hierarchy with controllers is mounted");
        return Err(OwnCgroupError { path: path.into(), source });
    }
    for directory in directories {
        let entered =
            make(&directory).and_then(|()| cgroups::write_procs(&directory, std::process::id()));
        entered.map_err(|source| OwnCgroupError { path: directory, source })?;
    }
    Ok(())
}

fn make(directory: &Path) -> io::Result<()> {
    if directory.exists() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        make(parent)?;
        for controller in CONTROLLERS {
            // Only cgroup v2 has the file; a parent that refuses one leaves the shim without that number.
            let _without = fs::OpenOptions::new()
                .write(true)
                .open(parent.join("cgroup.subtree_control"))
                .and_then(|mut file| io::Write::write_all(&mut file, controller.as_bytes()));
        }
    }
    match fs::create_dir(directory) {
        // Another daemon was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    for file in CPUSET {
        inherit(directory, file)?;
    }
    Ok(())
}

/// Copies a value that a new cgroup v1 has not got from its parent.
fn inherit(directory: &Path, file: &str) -> io::Result<()> {
    let Some(parent) = directory.parent() else { return Ok(()) };
    let own = directory.join(file);
    let is_empty = fs::read_to_string(&own).is_ok_and(|value| value.trim().is_empty());
    // With cgroup v2 an empty one means the parent's.
    if !is_empty || directory.join("cgroup.controllers").exists() {
        return Ok(());
    }
    fs::write(own, fs::read_to_string(parent.join(file))?)
}
