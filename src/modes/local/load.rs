//! What waiting requests and answers hold of a process' resources. Pure.

use crate::Payload;

/// What messages hold, or may hold at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub messages: usize,
    /// Bytes of payloads.
    pub bytes: u64,
    /// Descriptors of payloads that came as segments.
    pub descriptors: usize,
}

impl Load {
    /// Of one message. Only a payload that came in its frame is memory of the process.
    #[must_use]
    pub fn of(payload: &Payload) -> Self {
        let (bytes, descriptors) = match payload {
            Payload::Inline(bytes) => (bytes.len() as u64, 0),
            // A leased one comes with its token.
            Payload::Segment(segment) => (0, 1 + usize::from(segment.token().is_some())),
        };
        Self { messages: 1, bytes, descriptors }
    }

    /// Of all of them.
    #[must_use]
    pub fn sum(loads: impl IntoIterator<Item = Self>) -> Self {
        loads.into_iter().fold(Self::default(), Self::and)
    }

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_add(other.messages),
            bytes: self.bytes.saturating_add(other.bytes),
            descriptors: self.descriptors.saturating_add(other.descriptors),
        }
    }

    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(other.messages),
            bytes: self.bytes.saturating_sub(other.bytes),
            descriptors: self.descriptors.saturating_sub(other.descriptors),
        }
    }
}
