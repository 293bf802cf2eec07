//! The directories that guests may open: their mounts, and the view of the image's files that the builder has mounted
//! ([`FILES_DIR`](cwasi_wire::control::FILES_DIR)), or their [`HostPaths`] without a container. Runs in a worker.
//!
//! WASI has neither a root nor a working directory, only named directories. Each language's library resolves paths
//! among them in its own way:
//!
//! - wasi-libc (C, C++, Rust) takes the longest name that is a prefix of the path, without leading slashes on both
//!   sides, and of two empty names (`/`, `.`) the last.
//! - Go joins relative paths with `PWD` and takes the longest name. It ignores names without a leading slash, and the
//!   engine passes all but `/` without one.
//! - Zig and others take the first directory as the working directory.

use std::path::{Path, PathBuf};

use cwasi_vm::Preopen;
use cwasi_wire::control::{Files, FunctionLaunch};

use super::host_paths::{HostLocation, HostPath, HostPaths};

/// A guest's names for its root and its working directory.
const ROOT: &str = "/";
const CURRENT: &str = ".";
/// Variable that tells some guests their working directory.
const PWD: &str = "PWD";

/// The directories, in the order in which the guest sees them.
pub fn preopens(launch: &FunctionLaunch, host_paths: &HostPaths) -> Vec<Preopen> {
    let mounts = launch.preopens.iter().map(|name| preopen(name.clone(), host_paths.mount(name)));
    let Some(files) = &launch.files else { return mounts.collect() };
    let root = preopen(ROOT.into(), host_paths.root());
    if files.cwd == Path::new(ROOT) {
        return [root].into_iter().chain(mounts).collect();
    }
    let current = current(files, &launch.preopens, host_paths);
    let tops = top_directories(&root);
    let tops = tops.into_iter().filter(|top| !launch.preopens.contains(&top.name));
    [current.clone()].into_iter().chain(mounts).chain(tops).chain([root, current]).collect()
}

/// The working directory, which may lie in a mount that others change.
fn current(files: &Files, mounts: &[PathBuf], host_paths: &HostPaths) -> Preopen {
    let name = CURRENT.into();
    if mounts.contains(&files.cwd) {
        return preopen(name, host_paths.mount(&files.cwd));
    }
    let HostLocation { path, below, read_only } = host_paths.locate(&files.cwd);
    Preopen { name, path: below, inside: Some(path), read_only }
}

fn preopen(name: PathBuf, HostPath { path, read_only }: HostPath) -> Preopen {
    Preopen { name, path, inside: None, read_only }
}

/// Those whose absolute paths are to be found although relative ones begin at the working directory.
fn top_directories(root: &Preopen) -> Vec<Preopen> {
    let mut names: Vec<String> = std::fs::read_dir(&root.path)
        .into_iter()
        .flatten()
        .flatten()
        // Not what a symbolic link names: it may be `/proc`.
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && !name.contains(':'))
        .collect();
    names.sort();
    let below = |name: String| Preopen {
        path: root.path.join(&name),
        name: Path::new(ROOT).join(name),
        ..root.clone()
    };
    names.into_iter().map(below).collect()
}

/// The guest's environment: with its working directory, unless the container has the variable.
pub fn environment(launch: &FunctionLaunch) -> Vec<String> {
    let mut env = launch.env.clone();
    if let Some(Files { cwd, .. }) = &launch.files
        && cwd != Path::new(ROOT)
        && !env.iter().any(|entry| entry.split('=').next() == Some(PWD))
        && let Some(cwd) = cwd.to_str()
    {
        env.push(format!("{PWD}={cwd}"));
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_the_engine_can_name_are_top_directories() {
        let root = tempfile::tempdir().unwrap();
        for name in ["etc", "app", ".hidden", "a:b"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        std::fs::write(root.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/proc", root.path().join("link")).unwrap();
        let root = Preopen::from(root.path());
        let tops = top_directories(&root);
        let names: Vec<_> = tops.iter().map(|top| top.name.to_str().unwrap()).collect();
        assert_eq!(names, ["/app", "/etc"]);
    }
}
