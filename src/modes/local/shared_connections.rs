//! The callee's side in a worker: the connections that sandbox init has accepted and shares with its workers.
//!
//! Invariants: each request is read by exactly one worker, or by init. Init passes each connection with its caller
//! ([`CallerConnection`]); a worker closes its copy when the connection has ended.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use nix::poll::{PollFd, PollFlags, poll};

use cwasi_sys::clock::{Deadline, poll_timeout};
use cwasi_sys::seqpacket::{self, Received, SocketError};
use cwasi_sys::wakeup::Wakeup;
use cwasi_sys::watch::Watch;

use super::LocalError;
use super::incoming::{CallerConnection, ConnectionId, ParsedMessage};

/// Keys of the watched descriptors that are no connections. No connection has these numbers.
const INIT: u64 = u64::MAX;
const WAKEUP: u64 = u64::MAX - 1;

/// A source with something to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadySource {
    Init,
    /// A connection; another process may read it first.
    Connection(ConnectionId),
}

/// Up to this many connections, a worker uses `poll`, and `epoll` beyond. With `epoll` the kernel goes through the
/// watchers of a connection with every message and every answer.
const POLLED_MAX: usize = 8;

/// The connections of one worker, its socket to init, and the wake-up of followers.
#[derive(Debug)]
pub struct SharedConnections {
    /// Init, and the connections when they are many.
    watch: Watch,
    epolls: bool,
    /// A follower's sources: init and the wake-up.
    follower: Watch,
    wakeup: Rc<Wakeup>,
    connections: BTreeMap<ConnectionId, CallerConnection>,
    /// The index at which the next poll begins.
    turn: Cell<usize>,
    max_payload: u64,
}

impl SharedConnections {
    /// No connections yet; payloads may have at most `max_payload` bytes.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(init: BorrowedFd<'_>, wakeup: Rc<Wakeup>, max_payload: u64) -> io::Result<Self> {
        let (watch, follower) = (Watch::new()?, Watch::new()?);
        watch.add(init, INIT)?;
        follower.add(init, INIT)?;
        follower.add_exclusive(wakeup.as_fd(), WAKEUP)?;
        Ok(Self {
            watch,
            epolls: false,
            follower,
            wakeup,
            connections: BTreeMap::new(),
            turn: Cell::new(0),
            max_payload,
        })
    }

    /// Reads from a connection too.
    ///
    /// # Errors
    /// When the kernel's limit of watches is reached; other processes read the connection then.
    pub fn add(&mut self, connection: CallerConnection) -> io::Result<()> {
        if self.epolls {
            self.watch.add_exclusive(connection.fd.as_fd(), connection.id.0)?;
        }
        self.connections.insert(connection.id, connection);
        if !self.epolls && self.connections.len() > POLLED_MAX {
            self.epolls = true;
            for connection in self.connections.values() {
                self.watch.add_exclusive(connection.fd.as_fd(), connection.id.0)?;
            }
        }
        Ok(())
    }

    /// Waits until `until` for something to read.
    #[must_use]
    pub fn wait(&self, until: Option<Deadline>) -> Option<ReadySource> {
        if self.epolls { self.watched(until) } else { self.polled(until) }
    }

    fn watched(&self, until: Option<Deadline>) -> Option<ReadySource> {
        self.watch.wait_one(until).map(|key| match key {
            INIT => ReadySource::Init,
            key => ReadySource::Connection(ConnectionId(key)),
        })
    }

    /// [`Self::watched`] for few connections. Sources that stay ready take turns.
    fn polled(&self, until: Option<Deadline>) -> Option<ReadySource> {
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: [_; 1 + POLLED_MAX] = std::array::from_fn(|_| input(self.watch.as_fd()));
        for (fd, connection) in fds[1..].iter_mut().zip(self.connections.values()) {
            *fd = input(connection.fd.as_fd());
        }
        let fds = &mut fds[..=self.connections.len().min(POLLED_MAX)];
        if poll(fds, poll_timeout(until)).unwrap_or(0) == 0 {
            return None;
        }
        let first = self.turn.get() % fds.len();
        let mut indices = (first..fds.len()).chain(0..first);
        // Reading reports an error or an end.
        let index = indices.find(|index| fds[*index].any().unwrap_or(true))?;
        self.turn.set(index + 1);
        match index.checked_sub(1) {
            None => self.watched(Some(Deadline::PASSED)),
            Some(index) => self.connections.keys().nth(index).copied().map(ReadySource::Connection),
        }
    }

    /// Sleeps as a follower until it is woken to lead, or init has something, or until `until`.
    #[must_use]
    pub fn wait_as_follower(&self, until: Option<Deadline>) -> Option<ReadySource> {
        let key = self.follower.wait_one(until)?;
        if key == INIT {
            return Some(ReadySource::Init);
        }
        self.wakeup.clear();
        None
    }

    /// Wakes a follower, to lead.
    pub fn wake_follower(&self) {
        self.wakeup.wake_one();
    }

    /// Reads the next message of a connection. `None`: another process has read it, or the connection has ended and was
    /// removed.
    ///
    /// # Errors
    /// For a message that is no request. The connection is shut down for all processes.
    pub fn take(
        &mut self,
        id: ConnectionId,
        buffer: &mut [u8],
    ) -> Result<Option<ParsedMessage>, LocalError> {
        let Some(connection) = self.connections.get(&id) else { return Ok(None) };
        let fault = match seqpacket::try_receive(connection.fd.as_fd(), buffer) {
            Ok(None) => return Ok(None),
            Ok(Some(Received { len, descriptors })) => {
                match connection.clone().open(&buffer[..len], descriptors, self.max_payload) {
                    Ok(parsed) => return Ok(Some(parsed)),
                    Err(fault) => fault,
                }
            }
            Err(error) => error.into(),
        };
        let has_ended = matches!(fault, LocalError::Socket(SocketError::Closed));
        if let Some(connection) = self.connections.remove(&id) {
            if self.epolls {
                self.watch.remove(connection.fd.as_fd());
            }
            if !has_ended {
                seqpacket::end(connection.fd.as_fd());
            }
        }
        if has_ended { Ok(None) } else { Err(fault) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::local::fixture::send_frame;
    use cwasi_wire::envelope::{Hello, Request};

    fn caller_connection(number: u64, fd: OwnedFd) -> CallerConnection {
        CallerConnection {
            id: ConnectionId(number),
            fd: Rc::new(fd),
            caller: "a".into(),
            lends: false,
        }
    }

    fn connections(init: &OwnedFd) -> SharedConnections {
        SharedConnections::new(init.as_fd(), Rc::new(Wakeup::new().unwrap()), 10).unwrap()
    }

    fn request(id: u8) -> Request {
        Request { call_id: vec![id; 16], ..Request::default() }
    }

    #[test]
    fn each_request_has_one_reader() {
        let (_init, ours) = seqpacket::pair().unwrap();
        let (caller, connection) = seqpacket::pair().unwrap();
        let copy = connection.try_clone().unwrap();
        let mut workers = [connection, copy].map(|fd| {
            let mut connections = connections(&ours);
            connections.add(caller_connection(3, fd)).unwrap();
            connections
        });
        for id in 1..=3 {
            send_frame(caller.as_fd(), &request(id), b"x", None).unwrap();
        }
        let mut buffer = [0; 200];
        let mut read = Vec::new();
        for turn in [0, 1, 1] {
            assert_eq!(
                workers[turn].wait(Some(Deadline::PASSED)),
                Some(ReadySource::Connection(ConnectionId(3)))
            );
            match workers[turn].take(ConnectionId(3), &mut buffer) {
                Ok(Some(ParsedMessage::Request(direct))) => read.push(direct.id.0[0]),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(read, [1, 2, 3]);
        assert!(matches!(workers[0].take(ConnectionId(3), &mut buffer), Ok(None)));
        drop(caller);
        for connections in &mut workers {
            assert!(connections.wait(Some(Deadline::PASSED)).is_some());
            assert!(matches!(connections.take(ConnectionId(3), &mut buffer), Ok(None)));
            assert!(
                connections.connections.is_empty()
                    && connections.wait(Some(Deadline::PASSED)).is_none()
            );
        }
    }

    #[test]
    fn followers_sleep_until_they_lead() {
        let (init, ours) = seqpacket::pair().unwrap();
        let (caller, connection) = seqpacket::pair().unwrap();
        let wakeup = Rc::new(Wakeup::new().unwrap());
        let mut connections = SharedConnections::new(ours.as_fd(), Rc::clone(&wakeup), 10).unwrap();
        connections.add(caller_connection(3, connection)).unwrap();
        send_frame(caller.as_fd(), &request(1), b"x", None).unwrap();
        wakeup.wake_one();
        assert_eq!(connections.wait_as_follower(None), None, "called, and by nothing else");
        connections.wake_follower();
        assert_eq!(connections.wait_as_follower(None), None);
        seqpacket::send(init.as_fd(), &[b"x"], &[], None).unwrap();
        assert_eq!(connections.wait_as_follower(None), Some(ReadySource::Init));
        seqpacket::try_receive(ours.as_fd(), &mut [0; 9]).unwrap();
        let mut buffer = [0; 200];
        assert!(matches!(
            connections.take(ConnectionId(3), &mut buffer),
            Ok(Some(ParsedMessage::Request(_)))
        ));
        drop(caller);
        wakeup.wake_one();
        assert_eq!(connections.wait_as_follower(None), None);
        assert_eq!(
            connections.wait(Some(Deadline::PASSED)),
            Some(ReadySource::Connection(ConnectionId(3)))
        );
        assert!(matches!(connections.take(ConnectionId(3), &mut buffer), Ok(None)));
        assert!(connections.connections.is_empty());
    }

    #[test]
    fn readers_take_turns_with_init() {
        let (init, ours) = seqpacket::pair().unwrap();
        let mut connections = connections(&ours);
        seqpacket::send(init.as_fd(), &[b"x"], &[], None).unwrap();
        let mut callers = Vec::new();
        for number in 0..3 * POLLED_MAX as u64 {
            let (caller, connection) = seqpacket::pair().unwrap();
            send_frame(caller.as_fd(), &request(1), b"x", None).unwrap();
            callers.push(caller);
            connections.add(caller_connection(number, connection)).unwrap();
            let mut left: Vec<_> =
                connections.connections.keys().copied().map(ReadySource::Connection).collect();
            left.push(ReadySource::Init);
            for _ in 0..left.len() {
                let ready = connections.wait(Some(Deadline::PASSED)).unwrap();
                left.retain(|other| *other != ready);
            }
            assert_eq!(left, [], "with {} connections", callers.len());
        }
    }

    #[test]
    fn faults_close_connections_and_long_payloads_do_not() {
        let (init, ours) = seqpacket::pair().unwrap();
        let (caller, connection) = seqpacket::pair().unwrap();
        let others = connection.try_clone().unwrap();
        let mut connections = connections(&ours);
        connections.add(caller_connection(0, connection)).unwrap();
        let mut buffer = [0; 200];
        send_frame(caller.as_fd(), &request(1), &[0; 11], None).unwrap();
        assert!(matches!(
            connections.take(ConnectionId(0), &mut buffer),
            Ok(Some(ParsedMessage::Refused { .. }))
        ));
        send_frame(caller.as_fd(), &Hello::default(), b"", None).unwrap();
        assert!(connections.take(ConnectionId(0), &mut buffer).is_err());
        for end in [caller, others] {
            let read = seqpacket::receive(end.as_fd(), &mut buffer, Some(Deadline::PASSED));
            assert!(matches!(read, Err(SocketError::Closed)));
        }
        assert_eq!(connections.wait(Some(Deadline::PASSED)), None);
        drop(init);
        assert_eq!(connections.wait(Some(Deadline::PASSED)), Some(ReadySource::Init));
    }
}
