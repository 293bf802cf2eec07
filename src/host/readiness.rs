//! A descriptor on tokio's reactor.
#![expect(unsafe_code, reason = "tokio cannot know that an OwnedFd keeps its number")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Lets the current runtime watch `fd`.
///
/// # Errors
/// When the reactor takes no more descriptors.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY:
    // - an OwnedFd is open and keeps its number until it is dropped, which AsyncFd does after deregistering.
    // - AsyncFd lends it as `&OwnedFd` only, so no other code can replace or close it before.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}

/// The same for what `fd` has to read, and its end. A peer that reads wakes nobody here.
///
/// # Errors
/// When the reactor takes no more descriptors.
pub fn watch_reads(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY:
    // - as above.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// The same for room to write.
///
/// # Errors
/// When the reactor takes no more descriptors.
pub fn watch_room(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY:
    // - as above.
    unsafe { AsyncFd::register_with_interest(fd, Interest::WRITABLE) }.map_err(io::Error::from)
}

/// The same for priority data, which files of cgroup v2 raise when they change.
///
/// # Errors
/// When the reactor takes no more descriptors, or the file has no events.
pub fn watch_priority(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY:
    // - as above.
    unsafe { AsyncFd::register_with_interest(fd, Interest::PRIORITY) }.map_err(io::Error::from)
}
