//! The devices that guests see. Runs in the builder.
//!
//! Guests do not see the container's `/dev`, in which the engine's own mounts are. They have one with the devices that do
//! nothing but read and write, and with links to their streams, which WASI resolves itself (`vm/wasi`). It is read-only
//! for guests: a device can be written nevertheless.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::OciSpecError;
use libcontainer::oci_spec::runtime::{
    LinuxDevice, LinuxDeviceBuilder, LinuxDeviceType, Mount, MountBuilder, Spec,
};

use cwasi_sys::mount_flags;
use cwasi_wire::control::FILES_DIR;

/// Their names, and their minor numbers among the memory devices.
const DEVICES: [(&str, i64); 5] =
    [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];
/// Major number of the memory devices.
const MEMORY: i64 = 1;
/// The process's streams, as every container has them.
const STREAMS: [(&str, &str); 3] =
    [("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")];
/// Everybody may read and write the devices.
const DEVICE_MODE: u32 = 0o666;
/// Room for the links and for mount points, and for nothing else.
const OPTIONS: [&str; 5] = ["nosuid", "noexec", "mode=555", "size=4k", "nr_inodes=64"];

fn directory() -> PathBuf {
    Path::new(FILES_DIR).join("dev")
}

/// The mount of the guests' `/dev`.
///
/// # Errors
/// When it cannot be described.
pub fn mount() -> Result<Mount, OciSpecError> {
    let mount = MountBuilder::default().destination(directory()).typ("tmpfs").source("tmpfs");
    mount.options(OPTIONS.map(str::to_owned)).build()
}

/// Adds the devices to those of the container.
///
/// # Errors
/// When one cannot be described.
pub fn add(spec: &mut Spec) -> Result<(), OciSpecError> {
    let Some(mut linux) = spec.linux().clone() else { return Ok(()) };
    let mut devices = linux.devices().clone().unwrap_or_default();
    for (name, minor) in DEVICES {
        devices.push(device(name, minor)?);
    }
    linux.set_devices(Some(devices));
    spec.set_linux(Some(linux));
    Ok(())
}

fn device(name: &str, minor: i64) -> Result<LinuxDevice, OciSpecError> {
    LinuxDeviceBuilder::default()
        .path(directory().join(name))
        .typ(LinuxDeviceType::C)
        .major(MEMORY)
        .minor(minor)
        .file_mode(DEVICE_MODE)
        .uid(0_u32)
        .gid(0_u32)
        .build()
}

/// Finishes it, in the container's mount namespace.
///
/// # Errors
/// When the kernel refuses.
pub fn finish() -> io::Result<()> {
    let directory = directory();
    link_streams(&directory)?;
    // A kernel that cannot do that (before Linux 5.12) leaves what guests write there bounded.
    mount_flags::make_read_only(&directory).map(drop)
}

/// Makes the links to the process's streams in a `/dev`; what is there already stays.
///
/// # Errors
/// When the kernel refuses.
pub fn link_streams(directory: &Path) -> io::Result<()> {
    for (name, target) in STREAMS {
        match symlink(target, directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
