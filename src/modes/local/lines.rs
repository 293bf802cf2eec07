//! The callee's side in a worker: connections that its init accepted and shares with all workers. Whoever is free
//! reads the next request; each is read by one of them, or by init.
//!
//! Init knows the connections and says who calls ([`Line`]); a worker forgets one when it has ended.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::modes::{CallError, Payload};
use crate::sys::seqpacket::{self, SocketError};
use crate::sys::wakeup::Wakeup;
use crate::sys::watch::Watch;
use crate::wire::envelope::Request;
use crate::wire::ids::CallId;

use super::LocalError;
use super::receiver::{ConnectionId, Opening, open_request};

/// Numbers of what is watched besides connections; no connection has them.
const INIT: u64 = u64::MAX;
const CALL: u64 = u64::MAX - 1;

/// A connection and who is at its other end.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its number in the receiver.
    pub id: ConnectionId,
    /// The connection.
    pub fd: Rc<OwnedFd>,
    /// The caller's function.
    pub caller: String,
    /// Segments may be lent both ways.
    pub lends: bool,
}

/// A request that was read.
#[derive(Debug)]
pub struct Arrived {
    /// Where it came from, and where the answer goes.
    pub line: Line,
    /// Its id.
    pub id: CallId,
    /// Deadline, trace, attempt.
    pub request: Request,
    /// The user's bytes.
    pub payload: Payload,
}

/// What has something to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Init's socket.
    Init,
    /// A connection; somebody else may be faster.
    Line(ConnectionId),
}

/// What one look at a connection brought.
#[derive(Debug)]
pub enum Taken {
    /// Somebody else was faster, or it has ended and was forgotten.
    Nothing,
    /// A request.
    Request(Box<Arrived>),
    /// A request that is the caller's error.
    Refused {
        /// Where it came from.
        fd: Rc<OwnedFd>,
        /// The call.
        id: CallId,
        /// What is wrong with it.
        error: CallError,
    },
    /// Something that may not come there. The connection has been ended for everybody.
    Fault(LocalError),
}

/// As many connections are polled. One that is watched instead is in a list of each worker that watches it, and the kernel
/// goes through all of them with every message and every answer.
const POLLED_MAX: usize = 8;

/// The connections of one worker, its socket to init, and what wakes it when it is a follower.
#[derive(Debug)]
pub struct Lines {
    /// Init, and the connections when they are many.
    watch: Watch,
    epolls: bool,
    /// What a follower sleeps on: init and the wake-up.
    follower: Watch,
    wakeup: Wakeup,
    lines: BTreeMap<ConnectionId, Line>,
    /// Which of the connections is looked at first.
    turn: Cell<usize>,
    max_payload: u64,
}

impl Lines {
    /// No connections yet; payloads may have at most `max_payload` bytes.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(init: BorrowedFd<'_>, wakeup: Wakeup, max_payload: u64) -> io::Result<Self> {
        let (watch, follower) = (Watch::new()?, Watch::new()?);
        watch.add(init, INIT)?;
        follower.add(init, INIT)?;
        follower.add_beside(wakeup.as_fd(), CALL)?;
        Ok(Self {
            watch,
            epolls: false,
            follower,
            wakeup,
            lines: BTreeMap::new(),
            turn: Cell::new(0),
            max_payload,
        })
    }

    /// Reads from a connection too.
    ///
    /// # Errors
    /// When the kernel watches no more: others read it.
    pub fn add(&mut self, line: Line) -> io::Result<()> {
        if self.epolls {
            self.watch.add_beside(line.fd.as_fd(), line.id.0)?;
        }
        self.lines.insert(line.id, line);
        if !self.epolls && self.lines.len() > POLLED_MAX {
            self.epolls = true;
            for line in self.lines.values() {
                self.watch.add_beside(line.fd.as_fd(), line.id.0)?;
            }
        }
        Ok(())
    }

    /// Waits at most `timeout_ms` (`None` = for ever) until there is something to be read.
    #[must_use]
    pub fn wait(&self, timeout_ms: Option<u16>) -> Option<Ready> {
        if self.epolls { self.watched(timeout_ms) } else { self.polled(timeout_ms) }
    }

    fn watched(&self, timeout_ms: Option<u16>) -> Option<Ready> {
        self.watch.wait_one(timeout_ms).map(|key| match key {
            INIT => Ready::Init,
            key => Ready::Line(ConnectionId(key)),
        })
    }

    /// [`Self::watched`] of few connections. Those that stay ready take turns, with init.
    fn polled(&self, timeout_ms: Option<u16>) -> Option<Ready> {
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: [_; 1 + POLLED_MAX] = std::array::from_fn(|_| input(self.watch.as_fd()));
        for (fd, line) in fds[1..].iter_mut().zip(self.lines.values()) {
            *fd = input(line.fd.as_fd());
        }
        let fds = &mut fds[..=self.lines.len().min(POLLED_MAX)];
        let timeout = timeout_ms.map_or(PollTimeout::NONE, PollTimeout::from);
        if poll(fds, timeout).unwrap_or(0) == 0 {
            return None;
        }
        let first = self.turn.get() % fds.len();
        let mut places = (first..fds.len()).chain(0..first);
        // An error or an end is found by whoever reads.
        let place = places.find(|place| fds[*place].any().unwrap_or(true))?;
        self.turn.set(place + 1);
        match place.checked_sub(1) {
            None => self.watched(Some(0)),
            Some(place) => self.lines.keys().nth(place).copied().map(Ready::Line),
        }
    }

    /// Sleeps as a follower until it is woken to lead, or init has something, or for at most `timeout_ms` (`None` = for ever).
    #[must_use]
    pub fn wait_as_follower(&self, timeout_ms: Option<u16>) -> Option<Ready> {
        let key = self.follower.wait_one(timeout_ms)?;
        if key == INIT {
            return Some(Ready::Init);
        }
        self.wakeup.clear();
        None
    }

    /// Wakes a follower, to lead.
    pub fn wake_follower(&self) {
        self.wakeup.wake_one();
    }

    /// Reads the next request of a connection, if there still is one.
    pub fn take(&mut self, id: ConnectionId, buffer: &mut [u8]) -> Taken {
        let Some(line) = self.lines.get(&id) else { return Taken::Nothing };
        let received = match seqpacket::try_receive(line.fd.as_fd(), buffer) {
            Ok(Some(received)) => received,
            Ok(None) => return Taken::Nothing,
            Err(SocketError::Closed) => {
                self.forget(id);
                return Taken::Nothing;
            }
            Err(fault) => return self.end(id, fault.into()),
        };
        let message = &buffer[..received.len];
        match open_request(message, received.descriptors, line.lends, self.max_payload) {
            Opening::Request { id, request, payload } => {
                let line = line.clone();
                Taken::Request(Box::new(Arrived { line, id, request, payload }))
            }
            Opening::Refused { id, error } => Taken::Refused { fd: Rc::clone(&line.fd), id, error },
            Opening::Fault(fault) => self.end(id, fault),
        }
    }

    fn end(&mut self, id: ConnectionId, fault: LocalError) -> Taken {
        if let Some(line) = self.forget(id) {
            seqpacket::end(line.fd.as_fd());
        }
        Taken::Fault(fault)
    }

    fn forget(&mut self, id: ConnectionId) -> Option<Line> {
        let line = self.lines.remove(&id)?;
        if self.epolls {
            self.watch.remove(line.fd.as_fd());
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::local::send_frame;
    use crate::wire::envelope::Hello;

    fn line(number: u64, fd: OwnedFd) -> Line {
        Line { id: ConnectionId(number), fd: Rc::new(fd), caller: "a".into(), lends: false }
    }

    fn request(id: u8) -> Request {
        Request { call_id: vec![id; 16], ..Request::default() }
    }

    #[test]
    fn each_request_is_read_by_one() {
        let (_init, ours) = seqpacket::pair().unwrap();
        let (caller, connection) = seqpacket::pair().unwrap();
        let copy = connection.try_clone().unwrap();
        let mut workers = [connection, copy].map(|fd| {
            let mut lines = Lines::new(ours.as_fd(), Wakeup::new().unwrap(), 10).unwrap();
            lines.add(line(3, fd)).unwrap();
            lines
        });
        for id in 1..=3 {
            send_frame(caller.as_fd(), &request(id), b"x", &[], None).unwrap();
        }
        let mut buffer = [0; 200];
        let mut read = Vec::new();
        for turn in [0, 1, 1] {
            assert_eq!(workers[turn].wait(Some(0)), Some(Ready::Line(ConnectionId(3))));
            match workers[turn].take(ConnectionId(3), &mut buffer) {
                Taken::Request(arrived) => read.push(arrived.id.0[0]),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(read, [1, 2, 3]);
        assert!(matches!(workers[0].take(ConnectionId(3), &mut buffer), Taken::Nothing));
        drop(caller);
        for lines in &mut workers {
            assert!(lines.wait(Some(0)).is_some());
            assert!(matches!(lines.take(ConnectionId(3), &mut buffer), Taken::Nothing));
            assert!(lines.lines.is_empty() && lines.wait(Some(0)).is_none());
        }
    }

    #[test]
    fn a_follower_is_woken_to_lead_and_sleeps_through_requests_and_ends() {
        let (init, ours) = seqpacket::pair().unwrap();
        let (caller, connection) = seqpacket::pair().unwrap();
        let wakeup = Wakeup::new().unwrap();
        let same = wakeup.share().unwrap().into();
        let mut lines = Lines::new(ours.as_fd(), same, 10).unwrap();
        lines.add(line(3, connection)).unwrap();
        send_frame(caller.as_fd(), &request(1), b"x", &[], None).unwrap();
        wakeup.wake_one();
        assert_eq!(lines.wait_as_follower(None), None, "called, and by nothing else");
        lines.wake_follower();
        assert_eq!(lines.wait_as_follower(None), None);
        seqpacket::send(init.as_fd(), &[b"x"], &[], None).unwrap();
        assert_eq!(lines.wait_as_follower(None), Some(Ready::Init));
        seqpacket::try_receive(ours.as_fd(), &mut [0; 9]).unwrap();
        let mut buffer = [0; 200];
        assert!(matches!(lines.take(ConnectionId(3), &mut buffer), Taken::Request(_)));
        drop(caller);
        wakeup.wake_one();
        assert_eq!(lines.wait_as_follower(None), None);
        assert_eq!(lines.wait(Some(0)), Some(Ready::Line(ConnectionId(3))));
        assert!(matches!(lines.take(ConnectionId(3), &mut buffer), Taken::Nothing));
        assert!(lines.lines.is_empty());
    }

    #[test]
    fn few_connections_and_many_take_turns_with_init() {
        let (init, ours) = seqpacket::pair().unwrap();
        let mut lines = Lines::new(ours.as_fd(), Wakeup::new().unwrap(), 10).unwrap();
        seqpacket::send(init.as_fd(), &[b"x"], &[], None).unwrap();
        let mut callers = Vec::new();
        for number in 0..3 * POLLED_MAX as u64 {
            let (caller, connection) = seqpacket::pair().unwrap();
            send_frame(caller.as_fd(), &request(1), b"x", &[], None).unwrap();
            callers.push(caller);
            lines.add(line(number, connection)).unwrap();
            let mut left: Vec<_> = lines.lines.keys().copied().map(Ready::Line).collect();
            left.push(Ready::Init);
            for _ in 0..left.len() {
                let ready = lines.wait(Some(0)).unwrap();
                left.retain(|other| *other != ready);
            }
            assert_eq!(left, [], "with {} connections", callers.len());
        }
    }

    #[test]
    fn a_fault_ends_the_connection_for_everybody_and_a_long_payload_does_not() {
        let (init, ours) = seqpacket::pair().unwrap();
        let (caller, connection) = seqpacket::pair().unwrap();
        let others = connection.try_clone().unwrap();
        let mut lines = Lines::new(ours.as_fd(), Wakeup::new().unwrap(), 10).unwrap();
        lines.add(line(0, connection)).unwrap();
        let mut buffer = [0; 200];
        send_frame(caller.as_fd(), &request(1), &[0; 11], &[], None).unwrap();
        assert!(matches!(lines.take(ConnectionId(0), &mut buffer), Taken::Refused { .. }));
        send_frame(caller.as_fd(), &Hello::default(), b"", &[], None).unwrap();
        assert!(matches!(lines.take(ConnectionId(0), &mut buffer), Taken::Fault(_)));
        for end in [caller, others] {
            let read = seqpacket::receive(end.as_fd(), &mut buffer, Some(0));
            assert!(matches!(read, Err(SocketError::Closed)));
        }
        assert_eq!(lines.wait(Some(0)), None);
        drop(init);
        assert_eq!(lines.wait(Some(0)), Some(Ready::Init));
    }
}
