//! Bind mounts: from the descriptors of their sources, with propagation as in runc. Runs in the builder.
//!
//! libcontainer opens a bind mount's source by its path. It refuses the recursive values of `rootfsPropagation`, which
//! Kubernetes writes, and ignores `rprivate`, `rslave`, `rshared` of a mount: its clone keeps its source's propagation.
//! So the builder enters a mount namespace of its own, clones each source by its descriptor to a staging directory, sets
//! the clone's propagation, and names the clone as the source. No other process can change these paths, and the
//! namespace ends with the builder.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{Mount, Spec};
use libcontainer::rootfs::utils::is_bind;
use libcontainer::syscall::Syscall;
use libcontainer::syscall::linux::{MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH};
use libcontainer::syscall::syscall::create_syscall;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::BuilderError;
use super::causes::MountCause;
use super::mount_sources::MountSources;

/// Beside the containers in libcontainer's root: empty but in the mount namespaces of builders. Nothing is ever removed
/// from it there, because it shows the hosts' directories.
const STAGING: &str = ".mounts";

/// Propagation by its name in a specification. An unbindable mount could not be staged; a private one is as isolated.
const PROPAGATIONS: [(&str, MsFlags); 4] = [
    ("shared", MsFlags::MS_SHARED),
    ("slave", MsFlags::MS_SLAVE),
    ("private", MsFlags::MS_PRIVATE),
    ("unbindable", MsFlags::MS_PRIVATE),
];

/// A clone of a bind mount's source.
struct Clone {
    tree: OwnedFd,
    is_directory: bool,
    /// `None`: as the source's.
    propagation: Option<MsFlags>,
}

/// Stages the bind mounts of `spec` below libcontainer's `root`. Their sources are names of `sources`.
///
/// # Errors
/// When the kernel refuses.
pub fn apply(spec: &mut Spec, sources: &MountSources, root: &Path) -> Result<(), BuilderError> {
    name_root_propagation(spec);
    let mut mounts = spec.mounts().clone().unwrap_or_default();
    let staged: Vec<&mut Mount> = mounts.iter_mut().filter(|mount| is_bind(mount)).collect();
    if staged.is_empty() {
        return Ok(());
    }
    let syscall = create_syscall();
    // In the host's namespace: only there is a clone a peer of its source.
    let clones = staged.iter().map(|mount| clone(sources, mount)).collect::<Result<Vec<_>, _>>()?;
    let directory = enter(root)?;
    for (number, (mount, clone)) in staged.into_iter().zip(clones).enumerate() {
        let target = directory.join(number.to_string());
        attach(&*syscall, &clone, &target)?;
        mount.set_source(Some(target));
    }
    spec.set_mounts(Some(mounts));
    Ok(())
}

/// Writes the root's propagation as libcontainer knows it: it is always recursive there.
fn name_root_propagation(spec: &mut Spec) {
    let Some(mut linux) = spec.linux().clone() else { return };
    let Some(given) = linux.rootfs_propagation().clone() else { return };
    let plain = given.strip_prefix('r').unwrap_or(&given).to_owned();
    linux.set_rootfs_propagation(Some(plain));
    spec.set_linux(Some(linux));
}

/// The last propagation among a mount's options.
fn propagation(mount: &Mount) -> Option<MsFlags> {
    let options = mount.options().as_ref()?;
    options.iter().rev().find_map(|option| {
        PROPAGATIONS.iter().find_map(|(name, flag)| match option.strip_prefix('r') {
            _ if option == name => Some(*flag),
            Some(recursive) if recursive == *name => Some(*flag | MsFlags::MS_REC),
            _ => None,
        })
    })
}

fn clone(sources: &MountSources, mount: &Mount) -> Result<Clone, BuilderError> {
    let name = mount.source().clone().unwrap_or_default();
    // A path that was not resolved is mounted by nobody.
    let source = sources.get(&name).ok_or(nix::Error::EBADF).map_err(failed("finding", &name))?;
    let options = mount.options().as_deref().unwrap_or_default();
    let recursive = options.iter().any(|option| option == "rbind");
    let tree =
        source.clone_mount(recursive).map_err(failed("cloning the mount of", source.path()))?;
    Ok(Clone { tree, is_directory: source.is_folder(), propagation: propagation(mount) })
}

/// Enters a mount namespace that receives the host's mounts and sends it none, and makes the staging directory there.
fn enter(root: &Path) -> Result<PathBuf, BuilderError> {
    let directory = root.join(STAGING);
    let none = None::<&str>;
    fs::create_dir_all(&directory).map_err(failed("making", &directory))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("a mount namespace for", &directory))?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(failed("leaving the host's mounts for", &directory))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("cwasi-mounts"), &directory, Some("tmpfs"), flags, Some("mode=700"))
        .map_err(failed("mounting", &directory))?;
    Ok(directory)
}

fn attach(syscall: &dyn Syscall, clone: &Clone, target: &Path) -> Result<(), BuilderError> {
    let none = None::<&str>;
    if clone.is_directory {
        fs::create_dir(target).map_err(failed("making", target))?;
    } else {
        File::create(target).map_err(failed("making", target))?;
    }
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(target);
    let opened = opened.map_err(failed("opening", target))?;
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    syscall
        .move_mount(clone.tree.as_fd(), None, opened.as_fd(), None, flags)
        .map_err(failed("mounting", target))?;
    if let Some(propagation) = clone.propagation {
        mount(none, target, none, propagation, none)
            .map_err(failed("the propagation of", target))?;
    }
    Ok(())
}

fn failed<E>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> BuilderError
where
    E: Into<MountCause>,
{
    move |source| BuilderError::Mount { operation, path: path.to_owned(), source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount_with(options: &str) -> Mount {
        let text =
            format!(r#"{{"destination":"/d","source":"/s","type":"bind","options":[{options}]}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_last_propagation_counts_and_other_options_are_none() {
        let (private, slave) = (MsFlags::MS_PRIVATE, MsFlags::MS_SLAVE);
        for (options, expected) in [
            (r#""rbind","ro""#, None),
            (r#""rbind","rprivate""#, Some(private | MsFlags::MS_REC)),
            (r#""bind","private""#, Some(private)),
            (r#""rprivate","slave""#, Some(slave)),
            (r#""rshared""#, Some(MsFlags::MS_SHARED | MsFlags::MS_REC)),
            (r#""runbindable""#, Some(private | MsFlags::MS_REC)),
            (r#""relatime","rro""#, None),
        ] {
            assert_eq!(propagation(&mount_with(options)), expected, "{options}");
        }
    }

    #[test]
    fn the_roots_propagation_loses_its_recursion() {
        for (given, expected) in
            [("rslave", "slave"), ("rshared", "shared"), ("private", "private")]
        {
            let mut spec = Spec::default();
            let mut linux = spec.linux().clone().unwrap();
            linux.set_rootfs_propagation(Some(given.into()));
            spec.set_linux(Some(linux));
            name_root_propagation(&mut spec);
            let linux = spec.linux().as_ref().unwrap();
            assert_eq!(linux.rootfs_propagation().as_deref(), Some(expected));
        }
    }
}
