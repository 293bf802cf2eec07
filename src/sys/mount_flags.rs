//! Flags of mounts that exist: without programs and libraries, or read-only.
//!
//! The first is a second line of defence behind the seccomp filter of `sandbox::exec_filter`: the kernel refuses exec and
//! executable mappings of every file of such a mount.
#![expect(unsafe_code, reason = "a system call without a wrapper")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;

/// Has the mount at `root`, and every mount below it, run and load nothing; false when the kernel cannot do that to a
/// tree at once (before Linux 5.12).
///
/// # Errors
/// When `root` is no mount of this process's mount namespace, or the process may not change it.
pub fn forbid_exec(root: &Path) -> io::Result<bool> {
    set(root, libc::MOUNT_ATTR_NOEXEC, libc::AT_RECURSIVE)
}

/// Has the mount at `place` take no changes; false as for [`forbid_exec`].
///
/// # Errors
/// As for [`forbid_exec`].
pub fn make_read_only(place: &Path) -> io::Result<bool> {
    set(place, libc::MOUNT_ATTR_RDONLY, libc::AT_SYMLINK_NOFOLLOW)
}

fn set(place: &Path, attr_set: u64, flags: i32) -> io::Result<bool> {
    let place = CString::new(place.as_os_str().as_bytes())?;
    let attr = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY:
    // - a NUL-terminated path, and a structure of the length that is said, both read during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            place.as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    match Errno::result(result) {
        Ok(_) => Ok(true),
        Err(Errno::ENOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
