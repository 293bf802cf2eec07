//! A container's root file system: mounted when containerd sends mounts, unmounted at the end.

use std::io;
use std::path::{Path, PathBuf};

use containerd_shim::mount::mount_rootfs;
use containerd_shim::protos::api::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Bytes of a mount's options for which the library stays in the working directory: it leaves it when they come near a page.
const SHORT_OPTIONS_MAX: usize = 2048;
/// Mounts that may lie on one another.
const STACKED_MAX: u32 = 64;

/// A root file system that cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// The directory.
    #[error("{} cannot be made: {source}", path.display())]
    Directory {
        /// Where.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The mount.
    #[error("{kind} cannot be mounted on {}: {message}", path.display())]
    Mount {
        /// File system type.
        kind: String,
        /// Where.
        path: PathBuf,
        /// What the library says.
        message: String,
    },
}

/// Mounts `mounts` on `rootfs` in their order. A long list of overlay layers is mounted on a thread of its own: the library
/// leaves the shared working directory for it.
///
/// # Errors
/// When one fails; the ones before it are undone.
pub fn mount(mounts: &[Mount], rootfs: &Path) -> Result<(), RootfsError> {
    let made = std::fs::create_dir_all(rootfs);
    made.map_err(|source| RootfsError::Directory { path: rootfs.to_owned(), source })?;
    let mount_all = || mounts.iter().try_for_each(|one| mount_one(one, rootfs));
    let result = if mounts.iter().all(has_short_options) {
        mount_all()
    } else {
        let mounted = std::thread::scope(|scope| scope.spawn(mount_all).join());
        mounted.unwrap_or_else(|_| {
            Err(RootfsError::Mount {
                kind: "rootfs".to_owned(),
                path: rootfs.to_owned(),
                message: "the mounting thread panicked".to_owned(),
            })
        })
    };
    if result.is_err() {
        unmount(rootfs);
    }
    result
}

fn has_short_options(mount: &Mount) -> bool {
    mount.options.iter().map(|option| option.len() + 1).sum::<usize>() <= SHORT_OPTIONS_MAX
}

fn mount_one(one: &Mount, rootfs: &Path) -> Result<(), RootfsError> {
    let target = rootfs.join(one.target.trim_start_matches('/'));
    let some = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());
    let (kind, source) = (some(&one.type_), some(&one.source));
    mount_rootfs(kind.as_deref(), source.as_deref(), &one.options, &target).map_err(|error| {
        RootfsError::Mount { kind: one.type_.clone(), path: target, message: error.to_string() }
    })
}

/// Unmounts everything from `rootfs`; what is still in use goes away with its last user.
pub fn unmount(rootfs: &Path) {
    for _ in 0..STACKED_MAX {
        match umount2(rootfs, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINTR) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return,
            Err(errno) => {
                tracing::warn!(rootfs = %rootfs.display(), %errno, "root file system stays mounted");
                return;
            }
        }
    }
}
