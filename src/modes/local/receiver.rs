//! The callee's side in sandbox init: listener, connections, requests. Never blocks; init polls.
//!
//! A connection is trusted to be introduced by a shim (only shims can reach the receiver's socket), and
//! then not trusted at all: whatever it sends that is no request closes it.
//!
//! Connections may be *shared* with workers, which read requests from copies of them ([`super::lines`]); each message
//! is read by one. Only init forgets a connection, and then it has ended for everybody.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use crate::modes::{CallError, Payload};
use crate::sys::seqpacket::{self, SocketError};
use crate::sys::watch::Watch;
use crate::wire::envelope::{Hello, Request};
use crate::wire::frame::{FRAME_MAX, HEADER_LEN};
use crate::wire::ids::{CallId, Identity};

use super::lines::Line;
use super::{LocalError, open_frame};

/// Most connections of one receiver; further callers wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 4096;

/// Bytes of the shortest request: its header and its id, with the id's tag and length.
const REQUEST_MIN: usize = HEADER_LEN + 16 + 2;

/// Bytes at the beginning of a request that tell it from others: its header, and its id with tag and length.
const HEAD_LEN: usize = REQUEST_MIN;

/// The beginning of a request.
pub type Head = [u8; HEAD_LEN];

/// Number of a connection within its receiver; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request that arrived and was not answered yet.
#[derive(Debug)]
pub struct Incoming {
    /// Where it came from.
    pub connection: ConnectionId,
    /// Where the answer goes; stays open while somebody holds it.
    pub reply_to: Rc<OwnedFd>,
    /// Who calls.
    pub caller: Identity,
    /// Its id.
    pub id: CallId,
    /// Deadline, trace, attempt.
    pub request: Request,
    /// The user's bytes.
    pub payload: Payload,
    /// Whether the answer may be lent to it.
    pub lends: bool,
}

/// What one look at a connection brought.
#[derive(Debug)]
pub enum Event {
    /// Nothing (any more): poll again.
    Idle,
    /// The connection was introduced.
    Introduced,
    /// A request that is not acceptable.
    Refused {
        /// Where its error goes.
        reply_to: Rc<OwnedFd>,
        /// The call.
        id: CallId,
        /// What is wrong with it.
        error: CallError,
    },
    /// A request.
    Request(Box<Incoming>),
    /// The connection ended and was forgotten; requests that came over it need no answer.
    Closed {
        /// What was wrong with it; `None` when the caller simply went away.
        fault: Option<LocalError>,
    },
}

#[derive(Debug)]
struct Connection {
    fd: Rc<OwnedFd>,
    /// Who it is, and whether it is of our trust group: what its shim says.
    caller: Option<(Identity, bool)>,
    /// Workers read from it too.
    shared: bool,
}

/// Listener and connections of one secondary.
#[derive(Debug)]
pub struct Receiver {
    listener: Option<OwnedFd>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// What only init reads, and the ends of the others.
    watch: Watch,
    /// What workers read too.
    shared: Watch,
    /// How many these are.
    shared_count: usize,
    next: u64,
    max_payload: u64,
    buffer: Vec<u8>,
}

impl Receiver {
    /// A receiver on a listening socket that takes payloads of at most `max_payload` bytes.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(listener: OwnedFd, max_payload: u64) -> io::Result<Self> {
        Ok(Self {
            listener: Some(listener),
            connections: BTreeMap::new(),
            next: 0,
            max_payload,
            buffer: vec![0; FRAME_MAX],
            watch: Watch::new()?,
            shared: Watch::new()?,
            shared_count: 0,
        })
    }

    /// The listener, to be polled; `None` when no further connection is taken now.
    #[must_use]
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        let room = self.connections.len() < CONNECTIONS_MAX;
        self.listener.as_ref().filter(|_| room).map(AsFd::as_fd)
    }

    /// To be polled for input: a connection that workers do not read has some, or a connection has ended.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Those connections.
    pub fn ready(&self) -> impl Iterator<Item = ConnectionId> {
        self.watch.ready().into_iter().map(ConnectionId)
    }

    /// To be polled for input: a connection that workers read too has some.
    #[must_use]
    pub fn shared_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// Those connections.
    pub fn shared_ready(&self) -> impl Iterator<Item = ConnectionId> {
        self.shared.ready().into_iter().map(ConnectionId)
    }

    /// How many connections workers read too.
    #[must_use]
    pub const fn shared_count(&self) -> usize {
        self.shared_count
    }

    /// Lets workers read from an introduced connection, which they get as a [`Line`]. From now on only its end is
    /// found by [`Self::ready`].
    ///
    /// # Errors
    /// When the kernel watches no more; workers must not get it then.
    pub fn share(&mut self, id: ConnectionId) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        self.shared.add(connection.fd.as_fd(), id.0)?;
        self.watch.only_end(connection.fd.as_fd(), id.0)?;
        connection.shared = true;
        self.shared_count += 1;
        Ok(())
    }

    /// What a worker needs to read from a connection; `None` when it is not introduced.
    #[must_use]
    pub fn line(&self, id: ConnectionId) -> Option<Line> {
        let connection = self.connections.get(&id)?;
        let (caller, lends) = connection.caller.as_ref()?;
        let fd = Rc::clone(&connection.fd);
        Some(Line { id, fd, caller: caller.function.clone(), lends: *lends })
    }

    /// Every connection that workers read.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        let shared = self.connections.iter().filter(|(_, connection)| connection.shared);
        shared.filter_map(|(id, _)| self.line(*id))
    }

    /// Where answers to calls on a connection go; `None` when it has ended.
    #[must_use]
    pub fn reply_to(&self, id: ConnectionId) -> Option<Rc<OwnedFd>> {
        self.connections.get(&id).map(|connection| Rc::clone(&connection.fd))
    }

    /// True when more than `limit` requests wait on these connections, as far as their bytes say: a connection's are
    /// taken to be as long as its first one, which is asked for only when it matters. A long one in front of short ones
    /// hides them until it is read.
    #[must_use]
    pub fn more_wait_than(&self, limit: usize, ids: &[ConnectionId]) -> bool {
        let connections = || ids.iter().filter_map(|id| self.connections.get(id));
        let count = |request_len: &dyn Fn(BorrowedFd<'_>) -> usize| {
            let requests = connections().map(|connection| {
                let fd = connection.fd.as_fd();
                seqpacket::unread(fd).unwrap_or(usize::MAX).div_ceil(request_len(fd))
            });
            requests.fold(0, usize::saturating_add)
        };
        let first = |fd: BorrowedFd<'_>| seqpacket::peek(fd, &mut []).unwrap_or(0).max(REQUEST_MIN);
        count(&|_| REQUEST_MIN) > limit && count(&first) > limit
    }

    /// The requests that are first on these connections.
    #[must_use]
    pub fn heads(&self, ids: &[ConnectionId]) -> Vec<(ConnectionId, Head)> {
        let connections = ids.iter().filter_map(|id| Some((*id, self.connections.get(id)?)));
        let heads = connections.filter_map(|(id, connection)| {
            let mut head = [0; HEAD_LEN];
            seqpacket::peek(connection.fd.as_fd(), &mut head)?;
            Some((id, head))
        });
        heads.collect()
    }

    /// Ends a connection for everybody who holds it; the next look at it finds that.
    pub fn end(&self, id: ConnectionId) {
        if let Some(connection) = self.connections.get(&id) {
            seqpacket::end(connection.fd.as_fd());
        }
    }

    /// Takes the connections that wait, and returns how many came.
    ///
    /// # Errors
    /// When descriptors run out; the connections wait on.
    pub fn accept(&mut self) -> Result<usize, SocketError> {
        let mut taken = 0;
        while let Some(listener) = self.listener() {
            let Some(fd) = seqpacket::accept_from(listener)? else { break };
            self.watch
                .add(fd.as_fd(), self.next)
                .map_err(|source| SocketError::Os { operation: "epoll_ctl", source })?;
            self.connections.insert(
                ConnectionId(self.next),
                Connection { fd: Rc::new(fd), caller: None, shared: false },
            );
            self.next += 1;
            taken += 1;
        }
        Ok(taken)
    }

    /// Stops taking new connections: callers get "unreachable" and try elsewhere.
    pub fn stop_accepting(&mut self) {
        self.listener = None;
    }

    /// Reads the next message of a connection, if one waits.
    pub fn next_event(&mut self, id: ConnectionId) -> Event {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Event::Closed { fault: None };
        };
        let received = match seqpacket::try_receive(connection.fd.as_fd(), &mut self.buffer) {
            Ok(Some(received)) => received,
            Ok(None) => return Event::Idle,
            Err(error) => return self.close(id, error.into()),
        };
        let message = &self.buffer[..received.len];
        let Some((caller, lends)) = connection.caller.clone() else {
            return match open_frame::<Hello>(message, received.descriptors, 0, 0) {
                Ok(opened) => {
                    connection.caller = Some((opened.envelope.identity(), opened.envelope.lends));
                    Event::Introduced
                }
                Err(fault) => self.close(id, fault),
            };
        };
        let reply_to = Rc::clone(&connection.fd);
        match open_request(message, received.descriptors, lends, self.max_payload) {
            Opening::Request { id: call, request, payload } => {
                let connection = id;
                Event::Request(Box::new(Incoming {
                    connection,
                    reply_to,
                    caller,
                    id: call,
                    request,
                    payload,
                    lends,
                }))
            }
            Opening::Refused { id: call, error } => Event::Refused { reply_to, id: call, error },
            Opening::Fault(fault) => self.close(id, fault),
        }
    }

    fn close(&mut self, id: ConnectionId, fault: LocalError) -> Event {
        if let Some(connection) = self.connections.remove(&id) {
            self.watch.remove(connection.fd.as_fd());
            if connection.shared {
                self.shared.remove(connection.fd.as_fd());
                self.shared_count -= 1;
                // Workers hold it too.
                seqpacket::end(connection.fd.as_fd());
            }
        }
        let gone = matches!(fault, LocalError::Socket(SocketError::Closed));
        Event::Closed { fault: (!gone).then_some(fault) }
    }
}

/// What a message on an introduced connection is.
pub(super) enum Opening {
    /// A request.
    Request { id: CallId, request: Request, payload: Payload },
    /// A request that is the caller's error.
    Refused { id: CallId, error: CallError },
    /// Nothing that may come there: the connection is to be ended.
    Fault(LocalError),
}

/// Opens a message of a caller that lends to us only when `lends`. A payload above the limit is the caller's error;
/// everything else malformed ends the connection.
pub(super) fn open_request(
    message: &[u8],
    descriptors: Vec<OwnedFd>,
    lends: bool,
    max_payload: u64,
) -> Opening {
    let opened = open_frame::<Request>(message, descriptors, 0, max_payload);
    match opened.and_then(|opened| opened.unless_lent(lends)) {
        Ok(opened) => match opened.envelope.id() {
            Some(id) => Opening::Request { id, request: opened.envelope, payload: opened.payload },
            None => Opening::Fault(bad_call_id()),
        },
        Err(LocalError::TooLarge { length, limit }) => match message_id(message) {
            Some(id) => {
                Opening::Refused { id, error: CallError::too_large("payload", length, limit) }
            }
            None => Opening::Fault(LocalError::TooLarge { length, limit }),
        },
        Err(fault) => Opening::Fault(fault),
    }
}

fn bad_call_id() -> LocalError {
    LocalError::Frame(crate::wire::frame::FrameError::Kind {
        kind: crate::wire::frame::Kind::Request as u8,
        flags: 0,
    })
}

/// The call id of a request whose payload was not acceptable.
fn message_id(message: &[u8]) -> Option<CallId> {
    crate::wire::frame::decode(message).ok()?.open::<Request>().ok()?.id()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::local::{send_frame, send_segment};

    fn connected(max_payload: u64) -> (tempfile::TempDir, Receiver, OwnedFd, ConnectionId) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sock");
        let mut receiver = Receiver::new(seqpacket::listener(&path).unwrap(), max_payload).unwrap();
        let fd = seqpacket::connect_to(&path).unwrap();
        assert_eq!(receiver.accept().unwrap(), 1);
        let id = *receiver.connections.keys().next().unwrap();
        (dir, receiver, fd, id)
    }

    #[test]
    fn a_connection_without_hello_is_closed() {
        let (_dir, mut receiver, fd, id) = connected(10);
        let request = Request { call_id: vec![1; 16], ..Request::default() };
        send_frame(fd.as_fd(), &request, b"x", &[], None).unwrap();
        assert!(matches!(receiver.next_event(id), Event::Closed { fault: Some(_) }));
        assert!(receiver.connections.is_empty());
    }

    #[test]
    fn an_introduced_connection_brings_requests_until_it_ends() {
        let (_dir, mut receiver, fd, id) = connected(10);
        let caller =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
        send_frame(fd.as_fd(), &Hello::of(&caller, "", "i"), b"", &[], None).unwrap();
        assert!(matches!(receiver.next_event(id), Event::Introduced));
        assert!(matches!(receiver.next_event(id), Event::Idle));
        let request = Request { call_id: vec![1; 16], ..Request::default() };
        send_frame(fd.as_fd(), &request, b"x", &[], None).unwrap();
        let Event::Request(incoming) = receiver.next_event(id) else { panic!("no request") };
        assert_eq!(incoming.caller, caller);
        drop(fd);
        assert!(matches!(receiver.next_event(id), Event::Closed { fault: None }));
    }

    #[test]
    fn requests_that_wait_are_counted_by_their_length() {
        let (_dir, mut receiver, fd, id) = connected(1 << 20);
        let caller =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
        send_frame(fd.as_fd(), &Hello::of(&caller, "", "i"), b"", &[], None).unwrap();
        assert!(matches!(receiver.next_event(id), Event::Introduced));
        assert!(!receiver.more_wait_than(0, &[id]) && receiver.heads(&[id]).is_empty());
        let mut heads = Vec::new();
        for len in [1, 32 << 10] {
            for number in 1..=4 {
                let request = Request { call_id: vec![number; 16], ..Request::default() };
                send_frame(fd.as_fd(), &request, &vec![7; len], &[], Some(0)).unwrap();
                let count = usize::from(number);
                assert!(receiver.more_wait_than(count - 1, &[id]), "{count} of {len}");
                assert!(!receiver.more_wait_than(count, &[id]), "{count} of {len}");
            }
            loop {
                heads.extend(receiver.heads(&[id]));
                if !matches!(receiver.next_event(id), Event::Request(_)) {
                    break;
                }
            }
        }
        let number = heads.len();
        heads.sort_unstable();
        heads.dedup();
        assert_eq!((number, heads.len()), (8, 8), "each of them is another");
    }

    #[test]
    fn only_the_shims_word_makes_a_lease_acceptable() {
        let pool = crate::sys::pool::SegmentPool::new(1 << 20);
        for lends in [true, false] {
            let (_dir, mut receiver, fd, id) = connected(100_000);
            let caller = Identity {
                namespace: "n".into(),
                pod_namespace: String::new(),
                function: "f".into(),
            };
            let hello = Hello::of(&caller, "", "i").lending(lends);
            send_frame(fd.as_fd(), &hello, b"", &[], None).unwrap();
            assert!(matches!(receiver.next_event(id), Event::Introduced));
            let lent = pool.copy_of(&[7; 70_000]).unwrap();
            let request = Request { call_id: vec![1; 16], ..Request::default() };
            send_segment(fd.as_fd(), &request, (&lent).into(), &[], None).unwrap();
            match receiver.next_event(id) {
                Event::Request(incoming) => assert!(lends && incoming.lends),
                Event::Closed { fault: Some(LocalError::Lease) } => assert!(!lends),
                other => panic!("{lends} {other:?}"),
            }
        }
    }
}
