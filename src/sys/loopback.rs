//! The loopback device of a new network namespace, which is down at first. Runs in builders.
#![expect(
    unsafe_code,
    reason = "ioctl(2) on a network interface has no safe wrapper in our libraries"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// The device's name, as the kernel wants it.
const NAME: &[u8] = b"lo";

/// Enters a network namespace, and sets its loopback device up: 127.0.0.1 and ::1 exist from then on. The calling
/// thread stays in the namespace.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel refuses.
pub fn bring_up_in(namespace: &Path) -> io::Result<()> {
    setns(File::open(namespace)?, CloneFlags::CLONE_NEWNET)?;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: 0 },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(NAME) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let asked = |result: libc::c_int| {
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY:
    // - the request is an `ifreq` with a name that ends with a zero; the kernel writes its flags.
    asked(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as libc::Ioctl, &mut request)
    })?;
    // SAFETY:
    // - the call above has written the flags, and every number is one.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let up = libc::c_short::try_from(libc::IFF_UP).unwrap_or_default();
    request.ifr_ifru.ifru_flags = flags | up;
    // SAFETY:
    // - as above; the kernel reads the flags.
    asked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &request) })
}
