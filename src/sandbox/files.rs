//! The directories that guests may open: their mounts, and the view of the image's files that the builder has mounted
//! ([`FILES_DIR`]). Runs in a worker.
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

use crate::vm::Preopen;
use crate::wire::control::{FILES_DIR, Files, FunctionLaunch};

/// A guest's names for its root and its working directory.
const ROOT: &str = "/";
const CURRENT: &str = ".";
/// Variable that tells some guests their working directory.
const PWD: &str = "PWD";

/// The directories, in the order in which the guest sees them.
pub fn preopens(launch: &FunctionLaunch) -> Vec<Preopen> {
    let mounts = launch.preopens.iter().map(|path| Preopen::from(path.clone()));
    let Some(files) = &launch.files else { return mounts.collect() };
    let root = Preopen { name: ROOT.into(), path: FILES_DIR.into(), inside: None };
    if files.cwd == Path::new(ROOT) {
        return [root].into_iter().chain(mounts).collect();
    }
    let current = current(files, &launch.preopens);
    let tops = top_directories(Path::new(FILES_DIR));
    let tops = tops.into_iter().filter(|top| !launch.preopens.contains(&top.name));
    [current.clone()].into_iter().chain(mounts).chain(tops).chain([root, current]).collect()
}

/// The working directory, which may lie in a mount that others change.
fn current(files: &Files, mounts: &[PathBuf]) -> Preopen {
    let name = CURRENT.into();
    if mounts.contains(&files.cwd) {
        return Preopen { name, path: files.cwd.clone(), inside: None };
    }
    Preopen { name, path: files.cwd.clone(), inside: Some(FILES_DIR.into()) }
}

/// Those whose absolute paths are to be found although relative ones begin at the working directory.
fn top_directories(root: &Path) -> Vec<Preopen> {
    let mut names: Vec<String> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        // Not what a symbolic link names: it may be `/proc`.
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && !name.contains(':'))
        .collect();
    names.sort();
    let preopen = |name: String| Preopen {
        path: root.join(&name),
        name: Path::new(ROOT).join(name),
        inside: None,
    };
    names.into_iter().map(preopen).collect()
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
        let tops = top_directories(root.path());
        let names: Vec<_> = tops.iter().map(|top| top.name.to_str().unwrap()).collect();
        assert_eq!(names, ["/app", "/etc"]);
    }
}
