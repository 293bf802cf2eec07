//! The device filter of a cgroup v2: an eBPF program that allows or denies access to devices.
#![expect(unsafe_code, reason = "the bpf system call has no wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Commands, program and attach types of `linux/bpf.h`.
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
/// Programs of the cgroups above stay in force.
const BPF_F_ALLOW_MULTI: u32 = 2;
/// Any but a GPL name: the program calls no helper that needs one.
const LICENSE: &std::ffi::CStr = c"Apache-2.0";

/// A program that the kernel has taken.
#[derive(Debug)]
pub struct DeviceFilter(OwnedFd);

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`; the kernel takes the rest for zero.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
}

/// The same for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

impl DeviceFilter {
    /// Loads a program into the kernel: `instructions` are `struct bpf_insn`s.
    ///
    /// # Errors
    /// When the kernel refuses it: without `CAP_BPF`, or with more rules than a program may have.
    pub fn load(instructions: &[u8]) -> io::Result<Self> {
        let attributes = Load {
            prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
            insn_cnt: u32::try_from(instructions.len() / 8).unwrap_or(u32::MAX),
            insns: instructions.as_ptr().expose_provenance() as u64,
            license: LICENSE.as_ptr().expose_provenance() as u64,
        };
        // SAFETY:
        // - the instructions and the license live until the call has returned, and the kernel copies both.
        let fd = unsafe { bpf(BPF_PROG_LOAD, &attributes) }?;
        // SAFETY:
        // - the kernel has just made this descriptor for us (close-on-exec).
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Attaches it to a cgroup and those below it, beside programs that are attached already. It stays when `self` is
    /// dropped.
    ///
    /// # Errors
    /// When the directory is no cgroup of version 2.
    pub fn attach(&self, cgroup: &Path) -> io::Result<()> {
        let cgroup = File::open(cgroup)?;
        let number = |fd: i32| u32::try_from(fd).unwrap_or(u32::MAX);
        let attributes = Attach {
            target_fd: number(cgroup.as_raw_fd()),
            attach_bpf_fd: number(self.0.as_raw_fd()),
            attach_type: BPF_CGROUP_DEVICE,
            attach_flags: BPF_F_ALLOW_MULTI,
        };
        // SAFETY:
        // - there are no addresses among the attributes.
        unsafe { bpf(BPF_PROG_ATTACH, &attributes) }.map(drop)
    }
}

/// The system call.
///
/// # Safety
/// Every address in `attributes` is good for what `command` does with it.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    let address: *const T = attributes;
    // SAFETY:
    // - `attributes` is as long as is said, and lives until the call has returned;
    // - the addresses in it are the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, address, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(result).map_err(io::Error::other)
}
