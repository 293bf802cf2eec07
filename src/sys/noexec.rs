//! Mounts without programs and libraries: sets `MS_NOEXEC` on a whole tree of mounts.
//!
//! A second line of defence behind the seccomp filter of `sandbox::exec_filter`: the kernel refuses exec and executable
//! mappings of every file of such a mount.
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
pub fn forbid(root: &Path) -> io::Result<bool> {
    let root = CString::new(root.as_os_str().as_bytes())?;
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOEXEC,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY:
    // - a NUL-terminated path, and a structure of the length that is said, both read during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            root.as_ptr(),
            libc::AT_RECURSIVE,
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
