//! A descriptor on tokio's reactor.
#![expect(unsafe_code, reason = "tokio cannot know that an OwnedFd keeps its number")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Lets the current runtime watch what `fd` has to read, its room to write, and its end.
///
/// # Errors
/// When the reactor takes no more descriptors.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch_for(fd, Interest::READABLE | Interest::WRITABLE)
}

/// The same for what `fd` has to read, and its end. A peer that reads wakes nobody here.
///
/// # Errors
/// When the reactor takes no more descriptors.
pub fn watch_reads(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch_for(fd, Interest::READABLE)
}

/// The same for room to write.
///
/// # Errors
/// When the reactor takes no more descriptors.
pub fn watch_room(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch_for(fd, Interest::WRITABLE)
}

/// The same for priority data, which files of cgroup v2 raise when they change.
///
/// # Errors
/// When the reactor takes no more descriptors, or the file has no events.
pub fn watch_priority(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch_for(fd, Interest::PRIORITY)
}

fn watch_for(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY:
    // - an OwnedFd is open and keeps its number until it is dropped, which AsyncFd does after deregistering.
    // - AsyncFd lends it as `&OwnedFd` only, so no other code can replace or close it before.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
