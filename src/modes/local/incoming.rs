//! A request on a caller's connection, as sandbox init and its workers read it.
//!
//! Nothing after a connection's hello is trusted: a message that is no request closes the connection.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::modes::{CallError, Payload};
use crate::wire::envelope::Request;
use crate::wire::frame::{FrameError, Kind, decode};
use crate::wire::ids::CallId;

use super::{LocalError, open_frame};

/// Number of a connection within its receiver; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A connection and its caller.
#[derive(Clone, Debug)]
pub struct CallerConnection {
    /// Its number in the receiver.
    pub id: ConnectionId,
    /// The connection.
    pub fd: Rc<OwnedFd>,
    /// The caller's function.
    pub caller: String,
    /// Segments may be lent both ways.
    pub lends: bool,
}

/// A request that arrived and was not answered yet.
#[derive(Debug)]
pub struct IncomingRequest {
    /// The connection that it came over, and that its answer takes.
    pub connection: CallerConnection,
    /// Its id.
    pub id: CallId,
    /// Deadline, trace, attempt.
    pub request: Request,
    /// The user's bytes.
    pub payload: Payload,
}

/// A message on a connection after its hello.
#[derive(Debug)]
pub enum ParsedMessage {
    /// A request.
    Request(Box<IncomingRequest>),
    /// A request that is not acceptable.
    Refused {
        /// The connection that its error takes.
        connection: CallerConnection,
        /// The call.
        id: CallId,
        /// What is wrong with it.
        error: CallError,
    },
    /// No request: the connection must be closed.
    Fault(LocalError),
}

impl CallerConnection {
    /// Opens a message that came over this connection. A payload above the limit is the caller's error; everything else
    /// malformed, and a lease of a caller that may not lend, ends the connection.
    pub(crate) fn open(
        self,
        message: &[u8],
        descriptors: Vec<OwnedFd>,
        max_payload: u64,
    ) -> ParsedMessage {
        let opened = open_frame::<Request>(message, descriptors, 0, max_payload);
        match opened.and_then(|opened| opened.unless_lent(self.lends)) {
            Ok(opened) => match opened.envelope.id() {
                Some(id) => {
                    let (request, payload) = (opened.envelope, opened.payload);
                    ParsedMessage::Request(Box::new(IncomingRequest {
                        connection: self,
                        id,
                        request,
                        payload,
                    }))
                }
                None => ParsedMessage::Fault(bad_call_id()),
            },
            Err(LocalError::TooLarge { length, limit }) => match message_id(message) {
                Some(id) => {
                    let error = CallError::too_large("payload", length, limit);
                    ParsedMessage::Refused { connection: self, id, error }
                }
                None => ParsedMessage::Fault(LocalError::TooLarge { length, limit }),
            },
            Err(fault) => ParsedMessage::Fault(fault),
        }
    }
}

fn bad_call_id() -> LocalError {
    LocalError::Frame(FrameError::Kind { kind: Kind::Request as u8, flags: 0 })
}

/// The call id of a request whose payload was not acceptable.
fn message_id(message: &[u8]) -> Option<CallId> {
    decode(message).ok()?.open::<Request>().ok()?.id()
}
