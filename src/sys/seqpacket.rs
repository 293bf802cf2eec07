//! `SOCK_SEQPACKET` Unix sockets: every send is one message with its descriptors, and exactly one reader gets it.
//!
//! All system calls are non-blocking; operations wait with `poll`. So a deadline holds whichever processes share the
//! socket.
#![expect(unsafe_code, reason = "descriptors that arrive as numbers must be owned; an ioctl")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, recv, recvmsg, sendmsg, shutdown, socket, socketpair,
};

use super::clock::{self, Deadline, monotonic_ns, poll_timeout};

/// Most descriptors that one message carries.
pub const DESCRIPTORS_MAX: usize = 8;
/// Time between two tries to send descriptors while too many are on their way.
const PAUSE: Duration = Duration::from_millis(1);
/// Connections that may wait in a listener's backlog: as many as there are parts of a group, whose callers come at
/// once. The kernel's `somaxconn` (4096) bounds it too.
pub const BACKLOG: i32 = 1024;

/// Why a message was not sent or received.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The peer is gone; nothing of this message reached it.
    #[error("the peer closed the connection")]
    Closed,
    /// The deadline passed before the socket was ready.
    #[error("the deadline passed while waiting for the socket")]
    Deadline,
    /// A message was longer than the buffer, or carried more descriptors than allowed.
    #[error(
        "the peer's message is longer than {limit} bytes or carries more than {DESCRIPTORS_MAX} descriptors"
    )]
    Truncated {
        /// Length of the buffer in bytes.
        limit: usize,
    },
    /// A system call failed.
    #[error("{operation} failed: {source}")]
    Os {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
}

impl SocketError {
    fn os(operation: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Os { operation, source: errno.into() }
    }
}

#[derive(Debug)]
pub struct Received {
    /// Bytes in the buffer.
    pub len: usize,
    /// Descriptors in the order in which they were sent, all close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// A connected pair.
///
/// # Errors
/// When descriptors run out.
pub fn pair() -> Result<(OwnedFd, OwnedFd), SocketError> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(SocketError::os("socketpair"))
}

/// A listening socket at `path` (at most 107 bytes), non-blocking.
///
/// # Errors
/// When the path is too long or taken.
pub fn listener(path: &Path) -> Result<OwnedFd, SocketError> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(SocketError::os("socket"))?;
    let address = UnixAddr::new(path).map_err(SocketError::os("socket address"))?;
    bind(fd.as_raw_fd(), &address).map_err(SocketError::os("bind"))?;
    // nix's bound is that of the C library's headers, which is musl's 128. The kernel's own is `net.core.somaxconn`.
    // SAFETY:
    // - plain integers; `fd` is open.
    Errno::result(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })
        .map_err(SocketError::os("listen"))?;
    Ok(fd)
}

/// A connection to the listener at `path`. Never blocks: a full backlog is [`SocketError::Deadline`].
///
/// # Errors
/// [`SocketError::Closed`] when no process listens there.
pub fn connect_to(path: &Path) -> Result<OwnedFd, SocketError> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(SocketError::os("socket"))?;
    let address = UnixAddr::new(path).map_err(SocketError::os("socket address"))?;
    match connect(fd.as_raw_fd(), &address) {
        Ok(()) => Ok(fd),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Err(SocketError::Closed),
        Err(Errno::EAGAIN) => Err(SocketError::Deadline),
        Err(errno) => Err(SocketError::os("connect")(errno)),
    }
}

/// The next waiting connection; `None` when there is none.
///
/// # Errors
/// When descriptors run out.
pub fn accept_from(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>, SocketError> {
    match accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
        // SAFETY:
        // - accept4 returned a descriptor that has no other owner.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        // EINVAL: the last one, after `refuse_further`.
        Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR | Errno::EINVAL) => Ok(None),
        Err(errno) => Err(SocketError::os("accept4")(errno)),
    }
}

/// Sends `parts` as one message with `descriptors`; waits for room until `deadline`.
///
/// # Errors
/// [`SocketError::Closed`] when the peer is gone: the message was not accepted.
pub fn send(
    fd: BorrowedFd<'_>,
    parts: &[&[u8]],
    descriptors: &[BorrowedFd<'_>],
    deadline: Option<Deadline>,
) -> Result<(), SocketError> {
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() { &rights[..0] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        match sendmsg::<UnixAddr>(fd.as_raw_fd(), &slices, control, flags, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN) => wait(fd, PollFlags::POLLOUT, deadline)?,
            // This user's processes have more descriptors on their way than RLIMIT_NOFILE; no event says when less.
            Err(Errno::ETOOMANYREFS) => pause(deadline)?,
            Err(Errno::EINTR) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => {
                return Err(SocketError::Closed);
            }
            Err(errno) => return Err(SocketError::os("sendmsg")(errno)),
        }
    }
}

/// Receives one message into `buffer`; waits until `deadline`.
///
/// # Errors
/// [`SocketError::Closed`] at the end of the connection; descriptors of a refused message are closed.
pub fn receive(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    deadline: Option<Deadline>,
) -> Result<Received, SocketError> {
    loop {
        match try_receive(fd, buffer)? {
            Some(received) => return Ok(received),
            None => wait(fd, PollFlags::POLLIN, deadline)?,
        }
    }
}

/// As [`receive`], where no message is expected yet: waits first, which saves a system call.
///
/// # Errors
/// As [`receive`].
pub fn wait_and_receive(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    deadline: Option<Deadline>,
) -> Result<Received, SocketError> {
    match wait(fd, PollFlags::POLLIN, deadline) {
        // A message that came just before the deadline is received.
        Ok(()) | Err(SocketError::Deadline) => receive(fd, buffer, deadline),
        Err(error) => Err(error),
    }
}

/// Receives one message if one waits.
///
/// # Errors
/// As [`receive`].
pub fn try_receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<Received>, SocketError> {
    let limit = buffer.len();
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut slices = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let mut reset = false;
    let message = loop {
        match recvmsg::<UnixAddr>(fd.as_raw_fd(), &mut slices, Some(&mut space), flags) {
            Ok(message) => break message,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(None),
            // Reported once, and before the messages that the peer had sent when it went away.
            Err(Errno::ECONNRESET) if !reset => reset = true,
            Err(Errno::ECONNRESET) => return Err(SocketError::Closed),
            Err(errno) => return Err(SocketError::os("recvmsg")(errno)),
        }
    };
    let mut descriptors = Vec::new();
    for control in message.cmsgs().map_err(SocketError::os("recvmsg"))? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            // SAFETY:
            // - the kernel just installed these descriptors for us; they have no other owner.
            descriptors
                .extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    if message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        return Err(SocketError::Truncated { limit });
    }
    if message.bytes == 0 && descriptors.is_empty() {
        // Our messages are never empty, so this is the end of the connection.
        return Err(SocketError::Closed);
    }
    Ok(Some(Received { len: message.bytes, descriptors }))
}

/// Shuts a connection down for all processes that hold it, here and at its peer. Earlier messages can still be read.
pub fn end(fd: BorrowedFd<'_>) {
    // It fails for what has ended already only.
    let _ended = shutdown(fd.as_raw_fd(), Shutdown::Both);
}

/// Lets the peer send no further message, or connect no further socket to a listener: its call is
/// [`SocketError::Closed`]. What it has sent can still be received, and answered.
pub fn refuse_further(fd: BorrowedFd<'_>) {
    // It fails for what has ended already only.
    let _ended = shutdown(fd.as_raw_fd(), Shutdown::Read);
}

/// Bytes of all messages that wait to be received, or of a pipe those that wait to be read; `None` when the kernel does
/// not say.
#[must_use]
pub fn unread(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY:
    // - FIONREAD writes one int, to a place that lives until the call returns.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    usize::try_from(bytes).ok().filter(|_| result == 0)
}

/// Memory of the kernel, in bytes, for messages that the peer has not received; `None` when the kernel does not say.
#[must_use]
pub fn unreceived(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY:
    // - TIOCOUTQ writes one int, to a place that lives until the call returns.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    usize::try_from(bytes).ok().filter(|_| result == 0)
}

/// Copies the beginning of the message that is received next, which stays where it is. Its whole length; `None` when
/// there is no message.
#[must_use]
pub fn peek(fd: BorrowedFd<'_>, beginning: &mut [u8]) -> Option<usize> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
    recv(fd.as_raw_fd(), beginning, flags).ok().filter(|len| *len > 0)
}

/// True when a message could be sent now, as far as the peer's reading goes.
#[must_use]
pub fn has_room(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).unwrap_or(0) > 0
}

/// Waits until one of `input` has a message (or an error, which the next call reports), or until there is room on
/// `room`. The indices of the former; none when `deadline` passed, or when there is room only.
///
/// # Errors
/// When the system cannot wait.
pub fn wait_any(
    input: &[BorrowedFd<'_>],
    room: Option<BorrowedFd<'_>>,
    deadline: Option<Deadline>,
) -> Result<Vec<usize>, SocketError> {
    let mut fds: Vec<_> = input.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    fds.extend(room.map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
    loop {
        let timeout = poll_timeout(deadline);
        match poll(&mut fds, timeout) {
            Ok(0) if timeout == PollTimeout::ZERO => return Ok(Vec::new()),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => break,
            Err(errno) => return Err(SocketError::os("poll")(errno)),
        }
    }
    let hit = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
    Ok((0..input.len()).filter(|index| hit(&fds[*index])).collect())
}

/// Pauses before another try.
fn pause(deadline: Option<Deadline>) -> Result<(), SocketError> {
    if deadline.is_some_and(|deadline| deadline.has_passed(monotonic_ns())) {
        return Err(SocketError::Deadline);
    }
    clock::pause(PAUSE);
    Ok(())
}

/// Waits until one of `events` (or an error, which the next call reports) is there.
fn wait(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Option<Deadline>,
) -> Result<(), SocketError> {
    loop {
        let timeout = poll_timeout(deadline);
        if timeout == PollTimeout::ZERO {
            return Err(SocketError::Deadline);
        }
        let mut fds = [PollFd::new(fd.as_fd(), events)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(SocketError::os("poll")(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn boundaries_and_descriptors_arrive_together() {
        let (a, b) = pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        send(a.as_fd(), &[b"one", b"+"], &[file.as_fd()], None).unwrap();
        send(a.as_fd(), &[b"two"], &[], None).unwrap();
        let mut buffer = [0; 16];
        let first = receive(b.as_fd(), &mut buffer, None).unwrap();
        assert_eq!((&buffer[..first.len], first.descriptors.len()), (&b"one+"[..], 1));
        let second = receive(b.as_fd(), &mut buffer, None).unwrap();
        assert_eq!((&buffer[..second.len], second.descriptors.len()), (&b"two"[..], 0));
    }

    #[test]
    fn errors_distinguish_close_deadline_and_length() {
        let (a, b) = pair().unwrap();
        let mut buffer = [0; 4];
        let soon = Some(Deadline::after(Duration::from_millis(1)));
        assert!(matches!(receive(b.as_fd(), &mut buffer, soon), Err(SocketError::Deadline)));
        send(a.as_fd(), &[b"longer"], &[], None).unwrap();
        assert!(matches!(
            receive(b.as_fd(), &mut buffer, None),
            Err(SocketError::Truncated { limit: 4 })
        ));
        drop(a);
        assert!(matches!(receive(b.as_fd(), &mut buffer, None), Err(SocketError::Closed)));
        assert!(matches!(send(b.as_fd(), &[b"x"], &[], None), Err(SocketError::Closed)));
    }

    #[test]
    fn messages_before_a_close_are_received() {
        let (a, b) = pair().unwrap();
        send(b.as_fd(), &[b"never read"], &[], None).unwrap();
        send(a.as_fd(), &[b"1"], &[], None).unwrap();
        send(a.as_fd(), &[b"2"], &[], None).unwrap();
        drop(a);
        let mut buffer = [0; 16];
        for expected in [b"1", b"2"] {
            let received = receive(b.as_fd(), &mut buffer, None).unwrap();
            assert_eq!(&buffer[..received.len], expected);
        }
        assert!(matches!(receive(b.as_fd(), &mut buffer, None), Err(SocketError::Closed)));
    }

    #[test]
    fn unread_bytes_are_counted_and_shutdown_ends_all_copies() {
        let (a, b) = pair().unwrap();
        let copy = b.try_clone().unwrap();
        assert_eq!(unread(b.as_fd()), Some(0));
        send(a.as_fd(), &[b"one"], &[], None).unwrap();
        send(a.as_fd(), &[b"three"], &[], None).unwrap();
        let mut beginning = [0; 2];
        assert_eq!(unread(copy.as_fd()), Some(8));
        assert_eq!((peek(copy.as_fd(), &mut beginning), &beginning), (Some(3), b"on"));
        assert_eq!((peek(copy.as_fd(), &mut []), peek(a.as_fd(), &mut [])), (Some(3), None));
        end(copy.as_fd());
        let mut buffer = [0; 16];
        assert!(matches!(receive(a.as_fd(), &mut buffer, None), Err(SocketError::Closed)));
        assert!(matches!(send(a.as_fd(), &[b"x"], &[], None), Err(SocketError::Closed)));
        assert_eq!(receive(b.as_fd(), &mut buffer, None).unwrap().len, 3);
    }

    #[test]
    fn wait_any_returns_readable_sockets() {
        let pairs: Vec<_> = (0..3).map(|_| pair().unwrap()).collect();
        let input: Vec<_> = pairs.iter().map(|(a, _)| a.as_fd()).collect();
        let soon = || Some(Deadline::after(Duration::from_millis(1)));
        assert!(wait_any(&input, None, soon()).unwrap().is_empty());
        assert!(wait_any(&input, Some(input[0]), None).unwrap().is_empty(), "there is room");
        send(pairs[2].1.as_fd(), &[b"x"], &[], None).unwrap();
        assert_eq!(wait_any(&input, Some(input[0]), None).unwrap(), [2]);
        assert_eq!(wait_any(&input, None, Some(Deadline::PASSED)).unwrap(), [2]);
        assert!(wait_any(&[], None, soon()).unwrap().is_empty());
    }
}
