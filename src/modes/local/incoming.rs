//! A request on a caller's connection, as sandbox init and its workers read it.
//!
//! Nothing after a connection's hello is trusted: a message that is no request closes the connection.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::{CallError, Payload};
use cwasi_wire::envelope::{Request, SharedConnection};
use cwasi_wire::frame::{FrameError, FrameKind, decode};
use cwasi_wire::ids::CallId;

use super::{LocalError, open_payload};

/// Number of a connection within its receiver; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Clone, Debug)]
pub struct CallerConnection {
    /// Its number in the receiver.
    pub id: ConnectionId,
    pub fd: Rc<OwnedFd>,
    pub caller: String,
    /// Segments may be lent both ways.
    pub lends: bool,
}

/// A request that arrived and was not answered yet.
#[derive(Debug)]
pub struct IncomingRequest {
    /// The connection that it came over, and that its answer takes.
    pub connection: CallerConnection,
    pub id: CallId,
    pub request: Request,
    /// The user's bytes.
    pub payload: Payload,
}

/// A call within the receiver that took it: where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallKey {
    /// The connection that the request came over.
    pub connection: ConnectionId,
    /// The caller's id of the call.
    pub id: CallId,
}

/// A message on a connection after its hello.
#[derive(Debug)]
pub enum ParsedMessage {
    Request(Box<IncomingRequest>),
    /// A request that is not acceptable.
    Refused {
        /// The connection that its error takes.
        connection: CallerConnection,
        id: CallId,
        /// What is wrong with it.
        error: CallError,
    },
}

impl IncomingRequest {
    /// Where its answer goes.
    #[must_use]
    pub const fn key(&self) -> CallKey {
        CallKey { connection: self.connection.id, id: self.id }
    }
}

impl CallerConnection {
    /// Opens a message that came over this connection.
    ///
    /// # Errors
    /// For a message that is no request, and for a lease of a caller that may not lend: the connection must be closed.
    pub fn open(
        self,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
        max_payload: u64,
    ) -> Result<ParsedMessage, LocalError> {
        let frame = decode(message)?;
        let request = frame.open::<Request>()?;
        let id =
            request.id().ok_or(FrameError::Kind { kind: FrameKind::Request as u8, flags: 0 })?;
        match open_payload(frame.payload, descriptors, 0, max_payload, self.lends) {
            Ok((payload, _)) => {
                let incoming = IncomingRequest { connection: self, id, request, payload };
                Ok(ParsedMessage::Request(Box::new(incoming)))
            }
            Err(LocalError::TooLarge { length, limit }) => {
                let error = CallError::too_large("payload", length, limit);
                Ok(ParsedMessage::Refused { connection: self, id, error })
            }
            Err(fault) => Err(fault),
        }
    }

    /// Describes it to a process that gets its descriptor.
    pub fn envelope(&self) -> SharedConnection {
        SharedConnection {
            connection: self.id.0,
            caller: self.caller.clone(),
            lends: self.lends,
            ..SharedConnection::default()
        }
    }

    /// The connection that came with this description.
    pub fn of(envelope: SharedConnection, fd: Rc<OwnedFd>) -> Self {
        let SharedConnection { connection, caller, lends, .. } = envelope;
        Self { id: ConnectionId(connection), fd, caller, lends }
    }
}
