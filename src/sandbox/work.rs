//! Work for a worker: one call, or the calls of a group of parts. Sandbox init queues and assigns it. A worker
//! has it when it begins it, also of a request that it read itself.

use cwasi_modes::local::{CallKey, IncomingRequest};
use cwasi_sys::clock::Deadline;

/// The input of one invocation.
#[derive(Debug)]
pub struct Work {
    /// How many parts the group should have; `None` for a call that is handled alone.
    pub expected: Option<u32>,
    pub deadline: Deadline,
    first: (u32, Box<IncomingRequest>),
    others: Vec<(u32, Box<IncomingRequest>)>,
}

impl Work {
    /// A call that is handled alone.
    #[must_use]
    pub const fn one(call: Box<IncomingRequest>, deadline: Deadline) -> Self {
        Self { expected: None, deadline, first: (0, call), others: Vec::new() }
    }

    /// Parts with their numbers, ascending; `None` when there are none.
    pub fn group(
        expected: u32,
        deadline: Deadline,
        parts: impl IntoIterator<Item = (u32, Box<IncomingRequest>)>,
    ) -> Option<Self> {
        let mut parts = parts.into_iter();
        let first = parts.next()?;
        Some(Self { expected: Some(expected), deadline, first, others: parts.collect() })
    }

    /// The call that stands for all of it.
    #[must_use]
    pub fn first(&self) -> &IncomingRequest {
        &self.first.1
    }

    /// Every call with its number.
    pub fn parts(&self) -> impl Iterator<Item = &(u32, Box<IncomingRequest>)> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub fn calls(&self) -> impl Iterator<Item = &IncomingRequest> {
        self.parts().map(|(_, call)| &**call)
    }

    /// Where the answers of all calls go.
    pub fn keys(&self) -> impl Iterator<Item = CallKey> {
        self.calls().map(IncomingRequest::key)
    }
}

#[cfg(test)]
pub mod fixture {
    //! Requests for the tests of init's queues.

    use std::os::fd::OwnedFd;
    use std::rc::Rc;

    use cwasi_modes::Payload;
    use cwasi_modes::local::{CallerConnection, ConnectionId, IncomingRequest};
    use cwasi_sys::seqpacket;
    use cwasi_wire::envelope::Request;
    use cwasi_wire::ids::CallId;

    /// A connection without a reader.
    pub fn connection(id: u64) -> CallerConnection {
        let fd = Rc::<OwnedFd>::new(seqpacket::pair().unwrap().0);
        CallerConnection { id: ConnectionId(id), fd, caller: "a".into(), lends: false }
    }

    /// A request with an id of 16 such bytes.
    pub fn request(connection: CallerConnection, id: u8, payload: Payload) -> Box<IncomingRequest> {
        let request = Request { call_id: vec![id; 16], ..Request::default() };
        Box::new(IncomingRequest { connection, id: CallId([id; 16]), request, payload })
    }
}
