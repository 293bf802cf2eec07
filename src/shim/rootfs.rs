//! Mounts and unmounts a container's root file system. Runs in the shim daemon and in `delete`.

use std::io;
use std::path::{Path, PathBuf};

use containerd_shim::mount::mount_rootfs;
use containerd_shim::protos::api::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Longest mount options for which the library keeps the working directory: it changes it when they approach a page.
const SHORT_OPTIONS_MAX: usize = 2048;
/// Most mounts on top of each other.
const STACKED_MAX: u32 = 64;

#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    #[error("{} cannot be made: {source}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{kind} cannot be mounted on {}: {message}", path.display())]
    Mount {
        /// The file system's type.
        kind: String,
        path: PathBuf,
        message: String,
    },
}

/// Mounts `mounts` on `rootfs` in their order. Uses a thread for long lists of overlay layers, because the library
/// changes the working directory for them.
///
/// # Errors
/// When one fails; earlier ones are unmounted.
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

/// Unmounts everything from `rootfs`. A mount in use goes with its last user.
pub fn unmount(rootfs: &Path) {
    for _ in 0..STACKED_MAX {
        match umount2(rootfs, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINTR) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return,
            Err(errno) => {
                tracing::warn!(rootfs = %rootfs.display(), %errno, "root file system cannot be unmounted");
                return;
            }
        }
    }
}
