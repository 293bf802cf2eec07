//! Where a function can have a mount. Runs in the command `cwasi`, for workflow files, and in the shim daemon, for
//! every container.

use std::path::{Component, Path, PathBuf};

/// Longest target in bytes: the kernel's `PATH_MAX` without the final zero.
pub const TARGET_MAX: usize = 4095;
/// The kernel's folders, of which a function sees nothing.
const KERNEL_FOLDERS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Why a function cannot have a mount there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountProblem {
    /// It is relative, or climbs.
    #[error("must be an absolute path without `..`")]
    Relative,
    /// It cannot be a path.
    #[error("must have at most {TARGET_MAX} bytes and no control characters")]
    Characters,
    #[error(
        "is the whole container, whose device files would be made in the mounted folder: mount it below, such as at /data"
    )]
    Root,
    #[error(
        "is where the container's device files are made, which would then be in the mounted folder: mount it elsewhere, such \
         as at /data"
    )]
    Devices,
    /// A link of the image, or of a mounted folder, leads to one of these.
    #[error(
        "leads by a symbolic link to where the container's device files are made, which would then be in the mounted folder: \
         mount it elsewhere, such as at /data"
    )]
    Link,
    /// A folder at a file's path, or a file at a folder's.
    #[error("and its source are not both folders, or both files")]
    Kind,
    #[error(
        "does not exist in the folder that is mounted read-only around it: make it there, or mount that folder writable"
    )]
    Missing,
    #[error(
        "is in a folder of the kernel (/dev, /proc, /sys), of which a function sees nothing: mount it elsewhere, such as at \
         /data"
    )]
    Kernel,
    #[error(
        "has a part that begins with a dot, and the engine would show this folder to the function under another name: mount it \
         elsewhere"
    )]
    Dot,
    #[error("has a colon, which the engine takes for a separator: mount the folder elsewhere")]
    Colon,
}

/// An absolute path of a container in a workflow file, without superfluous `/` and `.`.
///
/// # Errors
/// When it is relative or climbs, or cannot be a path.
pub fn plain_path(text: &str) -> Result<PathBuf, MountProblem> {
    let path = Path::new(text);
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(MountProblem::Relative);
    }
    if text.len() > TARGET_MAX || text.chars().any(char::is_control) {
        return Err(MountProblem::Characters);
    }
    Ok(plain(path))
}

/// The target of a mount in a workflow file, as [`plain_path`].
///
/// # Errors
/// When a function cannot have a mount there, or would not see it.
pub fn mount_target(text: &str) -> Result<PathBuf, MountProblem> {
    let target = plain_path(text)?;
    if target == Path::new("/") {
        return Err(MountProblem::Root);
    }
    if target == Path::new("/dev") {
        return Err(MountProblem::Devices);
    }
    if KERNEL_FOLDERS.iter().any(|folder| target.starts_with(folder)) {
        return Err(MountProblem::Kernel);
    }
    Ok(target)
}

/// A path without superfluous `/` and `.`, which the engine would pass on to the guest.
#[must_use]
pub fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Checks the target of a mounted folder, which the engine names to the guest. Single files may have any name.
///
/// # Errors
/// When the engine has no way to name it.
pub fn folder_target(target: &Path) -> Result<(), MountProblem> {
    let bytes = target.as_os_str().as_encoded_bytes();
    if bytes.contains(&b':') {
        return Err(MountProblem::Colon);
    }
    let begins_with_dot = |part: Component<'_>| match part {
        Component::Normal(name) => name.as_encoded_bytes().starts_with(b"."),
        _ => false,
    };
    if target.components().any(begins_with_dot) { Err(MountProblem::Dot) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_plain_paths_below_the_root() {
        for (text, target) in [
            ("/data", "/data"),
            ("/w//x/", "/w/x"),
            ("/./w/./x", "/w/x"),
            ("/run", "/run"),
            ("/devices", "/devices"),
            ("/a/dev", "/a/dev"),
            ("/app/.env", "/app/.env"),
            ("/...", "/..."),
        ] {
            let found = mount_target(text).unwrap();
            assert_eq!(found.as_os_str(), target, "{text}");
        }
        let long = format!("/{}", "a".repeat(TARGET_MAX));
        for (text, problem) in [
            ("", MountProblem::Relative),
            ("data", MountProblem::Relative),
            ("./data", MountProblem::Relative),
            ("/a/../dev", MountProblem::Relative),
            ("/..", MountProblem::Relative),
            ("/a\0b", MountProblem::Characters),
            ("/a\nb", MountProblem::Characters),
            (&long, MountProblem::Characters),
            ("/", MountProblem::Root),
            ("//", MountProblem::Root),
            ("/./", MountProblem::Root),
            ("/dev", MountProblem::Devices),
            ("//dev/.", MountProblem::Devices),
            ("/dev/shm", MountProblem::Kernel),
            ("/proc", MountProblem::Kernel),
            ("/sys/fs", MountProblem::Kernel),
        ] {
            assert_eq!(mount_target(text), Err(problem), "{text:?}");
        }
    }

    #[test]
    fn folders_have_names_that_the_engine_can_write() {
        for (text, problem) in [
            ("/.hid", MountProblem::Dot),
            ("/w/.cache/x", MountProblem::Dot),
            ("/...", MountProblem::Dot),
            ("/w:x", MountProblem::Colon),
        ] {
            assert_eq!(folder_target(Path::new(text)), Err(problem), "{text}");
        }
        assert_eq!(folder_target(Path::new("/a.b/c")), Ok(()));
    }
}
