//! Makes all mounts of a function `noexec`: the barrier behind the seccomp filter. Runs in the builder.
//!
//! libcontainer drops the needed privilege before it calls code of ours in the container. So the builder sets the
//! flag from outside, after the container is built and before its workload starts, for all mounts at once. A kernel
//! before Linux 5.12 cannot do that; then the filter is the only barrier.

use std::fs::File;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{LinuxNamespaceType, Spec};
use nix::sched::{CloneFlags, setns};
use nix::unistd::{Pid, fchdir};

use cwasi_sys::mount_flags;

use super::{BuilderError, function_devices};

/// Whether a function's mounts may be changed: they are its own, and no program of the image has to run in them (the
/// operator's `startContainer` hooks do).
pub fn is_possible(spec: &Spec) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_deref());
    let has_own_mounts = namespaces.unwrap_or_default().iter().any(|namespace| {
        namespace.typ() == LinuxNamespaceType::Mount && namespace.path().is_none()
    });
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.start_container().as_deref());
    has_own_mounts && hooks.is_none_or(<[_]>::is_empty)
}

/// Changes the mounts of the container with this init, and finishes the `/dev` of its guests, if they have one.
///
/// # Errors
/// When the kernel refuses.
pub fn apply(init: Pid, has_devices: bool) -> Result<(), BuilderError> {
    let path = PathBuf::from(format!("/proc/{init}/ns/mnt"));
    let failed = |operation: &'static str| {
        let path = path.clone();
        move |source: std::io::Error| BuilderError::Mount { operation, path, source: source.into() }
    };
    let open = |path: &Path| File::open(path).map_err(failed("opening the mounts of"));
    let (theirs, own) = (open(&path)?, open(Path::new("/proc/self/ns/mnt"))?);
    // Entering mounts changes it.
    let directory = open(Path::new("."))?;
    let enter = |mounts: &File| setns(mounts, CloneFlags::CLONE_NEWNS).map_err(Into::into);
    enter(&theirs).map_err(failed("entering the mounts of"))?;
    // No path of the image is looked up: the root is the first one there is.
    let forbidden = mount_flags::forbid_exec(Path::new("/"));
    let finished = if has_devices { function_devices::finish() } else { Ok(()) };
    enter(&own).map_err(failed("leaving the mounts of"))?;
    fchdir(&directory).map_err(|error| failed("leaving the mounts of")(error.into()))?;
    let _too_old_for_it = forbidden.map_err(failed("forbidding programs in the mounts of"))?;
    finished.map_err(failed("making the guests' /dev in the mounts of"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn possible(namespaces: &str, hooks: &str) -> bool {
        let text = format!(
            r#"{{"ociVersion":"1.0.2","linux":{{"namespaces":[{namespaces}]}},"hooks":{{{hooks}}}}}"#
        );
        is_possible(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn mounts_of_others_stay_as_they_are() {
        assert!(possible(r#"{"type":"pid"},{"type":"mount"}"#, ""));
        assert!(!possible(r#"{"type":"pid"}"#, ""));
        assert!(!possible(r#"{"type":"mount","path":"/proc/1/ns/mnt"}"#, ""));
    }

    #[test]
    fn hooks_that_run_in_the_container_can() {
        let mount = r#"{"type":"mount"}"#;
        let hook = |name: &str| format!(r#""{name}":[{{"path":"/bin/true"}}]"#);
        assert!(!possible(mount, &hook("startContainer")));
        assert!(possible(mount, &hook("createRuntime")));
        assert!(possible(mount, r#""startContainer":[]"#));
    }
}
