//! The receiver: the callee's listener and connections in sandbox init. Never blocks; init polls.
//!
//! The first message of a connection is a shim's hello, which is trusted, because only shims can reach the receiver's
//! socket. Nothing else on it is trusted: a message that is no request closes the connection.
//!
//! Init may *share* connections with workers, which read requests from copies ([`super::shared_connections`]). Exactly
//! one process reads each message. When init removes a connection, it has ended for all processes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_sys::watch::Watch;
use cwasi_wire::envelope::Hello;
use cwasi_wire::frame::{FRAME_MAX, HEADER_LEN};

use super::incoming::{CallerConnection, ConnectionId, ParsedMessage};
use super::{LocalError, open_frame};

/// Most connections of one receiver; further callers wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 4096;

/// Bytes of the shortest request: its header and its id, with the id's tag and length.
const REQUEST_MIN: usize = HEADER_LEN + 16 + 2;

/// The beginning of a request up to its id, which differs between requests.
pub type RequestHead = [u8; REQUEST_MIN];

/// The result of reading from a connection once.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// Nothing (any more): poll again.
    Idle,
    /// The connection was introduced.
    Introduced,
    Message(ParsedMessage),
    /// The connection has ended and was removed; its requests need no answer.
    Closed {
        /// The fault; `None` when the caller closed it.
        fault: Option<LocalError>,
    },
}

#[derive(Debug)]
struct AcceptedConnection {
    fd: Rc<OwnedFd>,
    /// Known from its hello on.
    caller: Option<CallerConnection>,
    /// Workers read from it too.
    shared: bool,
}

/// Listener and connections of one secondary.
#[derive(Debug)]
pub struct Receiver {
    listener: Option<OwnedFd>,
    connections: BTreeMap<ConnectionId, AcceptedConnection>,
    /// Input of connections that only init reads, and the ends of shared ones.
    watch: Watch,
    /// Input of shared connections.
    shared: Watch,
    next: u64,
    max_payload: u64,
    buffer: PageBuffer,
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
            buffer: PageBuffer::new(FRAME_MAX),
            watch: Watch::new()?,
            shared: Watch::new()?,
        })
    }

    /// The listener, to be polled; `None` when no further connection is taken now.
    #[must_use]
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        let room = self.connections.len() < CONNECTIONS_MAX;
        self.listener.as_ref().filter(|_| room).map(AsFd::as_fd)
    }

    /// To be polled for input: a connection that only init reads has some, or a shared one has ended.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    pub fn ready(&self) -> impl Iterator<Item = ConnectionId> + use<> {
        self.watch.ready().into_iter().map(ConnectionId)
    }

    /// To be polled for input: a connection that workers read too has some.
    #[must_use]
    pub fn shared_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    pub fn shared_ready(&self) -> impl Iterator<Item = ConnectionId> + use<> {
        self.shared.ready().into_iter().map(ConnectionId)
    }

    /// Lets workers read from an introduced connection, which they get as a [`CallerConnection`]. From now on only its
    /// end is found by [`Self::ready`].
    ///
    /// # Errors
    /// When the kernel watches no more; workers must not get it then.
    pub fn share(&mut self, id: ConnectionId) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        self.shared.add(connection.fd.as_fd(), id.0)?;
        self.watch.only_end(connection.fd.as_fd(), id.0)?;
        connection.shared = true;
        Ok(())
    }

    /// A connection for a worker; `None` before its hello.
    #[must_use]
    pub fn caller_connection(&self, id: ConnectionId) -> Option<CallerConnection> {
        self.connections.get(&id)?.caller.clone()
    }

    /// Every connection that workers read.
    pub fn shared_connections(&self) -> impl Iterator<Item = CallerConnection> {
        let shared = self.connections.values().filter(|connection| connection.shared);
        shared.filter_map(|connection| connection.caller.clone())
    }

    /// Where answers to calls on a connection go; `None` when it has ended.
    #[must_use]
    pub fn reply_to(&self, id: ConnectionId) -> Option<Rc<OwnedFd>> {
        self.connections.get(&id).map(|connection| Rc::clone(&connection.fd))
    }

    /// True when more than `limit` requests wait on these connections, as far as their bytes say: a connection's are
    /// taken to be as long as its first one. A long one in front of short ones hides them until it is read.
    #[must_use]
    pub fn more_wait_than(&self, limit: usize, ids: &[ConnectionId]) -> bool {
        let count = |request_len: fn(BorrowedFd<'_>) -> Option<usize>| {
            let connections = ids.iter().filter_map(|id| self.connections.get(id));
            let requests = connections.map(|connection| {
                let fd = connection.fd.as_fd();
                // The length comes first: when a worker reads the only request in between, no bytes are left.
                let Some(len) = request_len(fd) else { return 0 };
                seqpacket::unread(fd).unwrap_or(usize::MAX).div_ceil(len.max(REQUEST_MIN))
            });
            requests.fold(0, usize::saturating_add)
        };
        // Most of the time there are too few bytes for so many of the shortest.
        count(|_| Some(REQUEST_MIN)) > limit && count(|fd| seqpacket::peek(fd, &mut [])) > limit
    }

    /// The request that is first on a connection.
    #[must_use]
    pub fn head(&self, id: ConnectionId) -> Option<RequestHead> {
        let mut head = [0; REQUEST_MIN];
        seqpacket::peek(self.connections.get(&id)?.fd.as_fd(), &mut head)?;
        Some(head)
    }

    /// Shuts a connection down for all processes that hold it. The next read reports that.
    pub fn end(&self, id: ConnectionId) {
        if let Some(connection) = self.connections.get(&id) {
            seqpacket::end(connection.fd.as_fd());
        }
    }

    /// Accepts the waiting connections.
    ///
    /// # Errors
    /// When descriptors run out; the connections wait on.
    pub fn accept(&mut self) -> Result<(), SocketError> {
        while let Some(listener) = self.listener() {
            let Some(fd) = seqpacket::accept_from(listener)? else { break };
            self.watch
                .add(fd.as_fd(), self.next)
                .map_err(|source| SocketError::Os { operation: "epoll_ctl", source })?;
            self.connections.insert(
                ConnectionId(self.next),
                AcceptedConnection { fd: Rc::new(fd), caller: None, shared: false },
            );
            self.next += 1;
        }
        Ok(())
    }

    /// Stops taking new connections: callers get "unreachable" and try elsewhere. Those that have connected already are
    /// accepted, because the caller of a request that is never read could not know whether it ran.
    ///
    /// # Errors
    /// As [`Self::accept`]; it takes none any more all the same.
    pub fn stop_accepting(&mut self) -> Result<(), SocketError> {
        let Some(listener) = &self.listener else { return Ok(()) };
        seqpacket::refuse_further(listener.as_fd());
        let accepted = self.accept();
        self.listener = None;
        accepted
    }

    /// Takes no further request: callers get "unreachable" and try elsewhere. What they have sent can be read, and
    /// after it each connection ends.
    pub fn refuse_requests(&self) {
        for connection in self.connections.values() {
            seqpacket::refuse_further(connection.fd.as_fd());
        }
    }

    /// Reads the next message of a connection, if one waits.
    pub fn next_event(&mut self, id: ConnectionId) -> ConnectionEvent {
        let Some(connection) = self.connections.get_mut(&id) else {
            return ConnectionEvent::Closed { fault: None };
        };
        let received = match seqpacket::try_receive(connection.fd.as_fd(), &mut self.buffer) {
            Ok(Some(received)) => received,
            Ok(None) => return ConnectionEvent::Idle,
            Err(error) => return self.close(id, error.into()),
        };
        let message = &self.buffer[..received.len];
        let parsed = match &connection.caller {
            Some(caller) => caller
                .clone()
                .open(message, received.descriptors, self.max_payload)
                .map(ConnectionEvent::Message),
            None => open_frame::<Hello>(message, received.descriptors, 0, 0).map(|hello| {
                let Hello { function: caller, lends, .. } = hello.envelope;
                let fd = Rc::clone(&connection.fd);
                connection.caller = Some(CallerConnection { id, fd, caller, lends });
                ConnectionEvent::Introduced
            }),
        };
        parsed.unwrap_or_else(|fault| self.close(id, fault))
    }

    fn close(&mut self, id: ConnectionId, fault: LocalError) -> ConnectionEvent {
        if let Some(connection) = self.connections.remove(&id) {
            self.watch.remove(connection.fd.as_fd());
            if connection.shared {
                self.shared.remove(connection.fd.as_fd());
                // Workers hold copies.
                seqpacket::end(connection.fd.as_fd());
            }
        }
        let gone = matches!(fault, LocalError::Socket(SocketError::Closed));
        ConnectionEvent::Closed { fault: (!gone).then_some(fault) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::fixture::send_frame;
    use crate::local::send_as_is;
    use cwasi_sys::clock::Deadline;
    use cwasi_wire::envelope::Request;
    use cwasi_wire::ids::Identity;

    fn connected(max_payload: u64) -> (tempfile::TempDir, Receiver, OwnedFd, ConnectionId) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.sock");
        let mut receiver = Receiver::new(seqpacket::listener(&path).unwrap(), max_payload).unwrap();
        let fd = seqpacket::connect_to(&path).unwrap();
        receiver.accept().unwrap();
        assert_eq!(receiver.connections.len(), 1);
        let id = *receiver.connections.keys().next().unwrap();
        (dir, receiver, fd, id)
    }

    #[test]
    fn connections_without_hello_are_closed() {
        let (_dir, mut receiver, fd, id) = connected(10);
        let request = Request { call_id: vec![1; 16], ..Request::default() };
        send_frame(fd.as_fd(), &request, b"x", None).unwrap();
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Closed { fault: Some(_) }));
        assert!(receiver.connections.is_empty());
    }

    #[test]
    fn introduced_connections_deliver_requests() {
        let (_dir, mut receiver, fd, id) = connected(10);
        let caller =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
        send_frame(fd.as_fd(), &Hello::of(&caller, "", "i"), b"", None).unwrap();
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Introduced));
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Idle));
        let request = Request { call_id: vec![1; 16], ..Request::default() };
        send_frame(fd.as_fd(), &request, b"x", None).unwrap();
        let ConnectionEvent::Message(ParsedMessage::Request(incoming)) = receiver.next_event(id)
        else {
            panic!("no request")
        };
        assert_eq!(incoming.connection.caller, caller.function);
        drop(fd);
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Closed { fault: None }));
    }

    #[test]
    fn requests_before_a_shutdown_are_read() {
        let (dir, mut receiver, fd, id) = connected(10);
        let caller =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
        let path = dir.path().join("r.sock");
        let waiting = seqpacket::connect_to(&path).unwrap();
        send_frame(waiting.as_fd(), &Hello::of(&caller, "", "i"), b"", None).unwrap();
        receiver.stop_accepting().unwrap();
        assert!(matches!(seqpacket::connect_to(&path), Err(SocketError::Closed)));
        assert_eq!(receiver.connections.len(), 2, "one had connected and was not accepted yet");

        let request = Request { call_id: vec![1; 16], ..Request::default() };
        send_frame(fd.as_fd(), &Hello::of(&caller, "", "i"), b"", None).unwrap();
        send_frame(fd.as_fd(), &request, b"x", None).unwrap();
        receiver.refuse_requests();
        let sent = send_frame(fd.as_fd(), &request, b"x", None);
        assert!(matches!(sent, Err(LocalError::Socket(SocketError::Closed))), "{sent:?}");
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Introduced));
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Message(_)));
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Closed { fault: None }));
    }

    #[test]
    fn waiting_requests_are_counted_by_length() {
        let (_dir, mut receiver, fd, id) = connected(1 << 20);
        let caller =
            Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
        send_frame(fd.as_fd(), &Hello::of(&caller, "", "i"), b"", None).unwrap();
        assert!(matches!(receiver.next_event(id), ConnectionEvent::Introduced));
        assert!(!receiver.more_wait_than(0, &[id]) && receiver.head(id).is_none());
        let mut heads = Vec::new();
        for len in [1, 32 << 10] {
            for number in 1..=4 {
                let request = Request { call_id: vec![number; 16], ..Request::default() };
                send_frame(fd.as_fd(), &request, &vec![7; len], Some(Deadline::PASSED)).unwrap();
                let count = usize::from(number);
                assert!(receiver.more_wait_than(count - 1, &[id]), "{count} of {len}");
                assert!(!receiver.more_wait_than(count, &[id]), "{count} of {len}");
            }
            loop {
                heads.extend(receiver.head(id));
                if !matches!(receiver.next_event(id), ConnectionEvent::Message(_)) {
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
    fn leases_need_the_shims_permission() {
        let pool = crate::pool::SegmentPool::new(1 << 20);
        for lends in [true, false] {
            let (_dir, mut receiver, fd, id) = connected(100_000);
            let caller = Identity {
                namespace: "n".into(),
                pod_namespace: String::new(),
                function: "f".into(),
            };
            let hello = Hello::of(&caller, "", "i").lending(lends);
            send_frame(fd.as_fd(), &hello, b"", None).unwrap();
            assert!(matches!(receiver.next_event(id), ConnectionEvent::Introduced));
            let lent = pool.copy_of(&[7; 70_000]).unwrap();
            let request = Request { call_id: vec![1; 16], ..Request::default() };
            send_as_is(fd.as_fd(), &request, (&lent).into(), &[], None).unwrap();
            match receiver.next_event(id) {
                ConnectionEvent::Message(ParsedMessage::Request(incoming)) => {
                    assert!(lends && incoming.connection.lends)
                }
                ConnectionEvent::Closed { fault: Some(LocalError::Lease) } => assert!(!lends),
                other => panic!("{lends} {other:?}"),
            }
        }
    }
}
