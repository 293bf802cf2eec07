//! One call over the network, as its bridge got it.

use tokio::time::Instant;

use crate::modes::{CallError, Payload};
use crate::wire::envelope::Join;
use crate::wire::ids::{CallId, Identity};

/// One call as its bridge got it.
#[derive(Debug)]
pub struct Order {
    /// The call's id.
    pub id: CallId,
    /// Who is called.
    pub callee: Identity,
    /// As the caller names it.
    pub target: String,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// W3C trace context, empty when not traced.
    pub traceparent: String,
    /// Starts at 1.
    pub attempt: u32,
    /// The run of the workflow, as its caller said.
    pub run: Vec<u8>,
    /// Which group it is part of, if it is one.
    pub join: Option<Join>,
    /// The user's bytes.
    pub payload: Payload,
}

impl Order {
    pub(super) fn unreachable(&self, message: impl ToString) -> CallError {
        CallError::Unreachable { target: self.target.clone(), message: message.to_string() }
    }

    pub(super) fn unknown(&self, message: impl ToString) -> CallError {
        CallError::Broken { target: self.target.clone(), message: message.to_string() }
    }

    pub(super) fn timeout(&self) -> CallError {
        CallError::Timeout { target: self.target.clone() }
    }
}
