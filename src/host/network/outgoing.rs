//! One outgoing call over the network, as its bridge received it. Runs in the shim daemon.

use tokio::time::Instant;

use cwasi_modes::causes::{Break, Unreached};
use cwasi_modes::{CallError, Payload};
use cwasi_wire::envelope::{Join, Metadata};
use cwasi_wire::ids::{CallId, Identity};

#[derive(Clone, Debug)]
pub struct OutgoingCall {
    pub id: CallId,
    pub callee: Identity,
    /// The target in the caller's words.
    pub target: String,
    /// End of the caller's wait.
    pub deadline: Instant,
    /// W3C trace context; empty if the call is not traced.
    pub traceparent: String,
    /// What goes with it; empty without.
    pub tracestate: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Id of the workflow's run.
    pub run: Vec<u8>,
    /// Its group of a fan-in.
    pub join: Option<Join>,
    /// Of an HTTP request.
    pub metadata: Vec<Metadata>,
    /// As in [`cwasi_wire::envelope::Request`].
    pub max_head: u32,
    /// The user's bytes.
    pub payload: Payload,
}

#[derive(Debug)]
pub struct CallResponse {
    /// The user's bytes.
    pub payload: Payload,
    /// What the callee set beside them.
    pub metadata: Vec<Metadata>,
}

impl OutgoingCall {
    pub(super) fn unreachable(&self, cause: Unreached) -> CallError {
        CallError::Unreachable { target: self.target.clone(), cause }
    }

    /// No shim has the call, because of this error.
    pub(super) fn unsent(&self, error: impl ToString) -> CallError {
        self.unreachable(Unreached::Unsent { error: error.to_string() })
    }

    pub(super) fn unknown(&self, cause: Break) -> CallError {
        CallError::Broken { target: self.target.clone(), cause }
    }

    pub(super) fn timeout(&self) -> CallError {
        CallError::Timeout { target: self.target.clone() }
    }
}
