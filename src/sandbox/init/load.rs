//! The resources of sandbox init that waiting requests hold. Pure.

use crate::modes::Payload;
use crate::modes::local::IncomingRequest;

/// What requests hold, or may hold at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Their number.
    pub requests: usize,
    /// Bytes of payloads.
    pub bytes: u64,
    /// Descriptors of payloads that came as segments.
    pub descriptors: usize,
}

impl Load {
    /// Of one request. Only a payload that came in its frame is memory of init.
    pub fn of(request: &IncomingRequest) -> Self {
        let (bytes, descriptors) = match &request.payload {
            Payload::Inline(bytes) => (bytes.len() as u64, 0),
            // A leased one comes with its token.
            Payload::Segment(segment) => (0, 1 + usize::from(segment.token().is_some())),
        };
        Self { requests: 1, bytes, descriptors }
    }

    /// Of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            bytes: self.bytes.saturating_add(other.bytes),
            descriptors: self.descriptors.saturating_add(other.descriptors),
        }
    }

    /// Of the others.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            bytes: self.bytes.saturating_sub(other.bytes),
            descriptors: self.descriptors.saturating_sub(other.descriptors),
        }
    }
}
