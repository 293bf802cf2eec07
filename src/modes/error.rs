//! How a call ends that gets no response: one errno of the guest ABI each, one text, and what travels of both.

use cwasi_abi::Errno;

use crate::wire::envelope::{Detail, Outcome};

/// How the text of [`CallError::Timeout`] ends. Senders that know no [`Detail`] are told from others by it.
const LATE: &str = "did not end before its deadline";

/// Why a call did not end with a response. Each variant is one errno of the guest ABI ([`Self::errno`]);
/// the text is what the guest reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request itself is not valid.
    #[error("{message}")]
    Invalid {
        /// What is wrong.
        message: String,
    },
    /// Nobody of that name.
    #[error("{message}")]
    NoSuchFunction {
        /// What was looked for and where.
        message: String,
    },
    /// Policy.
    #[error("{message}")]
    Refused {
        /// Which rule.
        message: String,
    },
    /// The deadline passed.
    #[error("call to {target} {LATE}")]
    Timeout {
        /// The callee.
        target: String,
    },
    /// The deadline passed, and it is known why.
    #[error("{message}")]
    Late {
        /// Which parts are missing, or which output nobody reads.
        message: String,
    },
    /// Workers and queue full.
    #[error("{message}")]
    Overloaded {
        /// Which bounds.
        message: String,
    },
    /// The callee trapped.
    #[error("{message}")]
    Trapped {
        /// The trap.
        message: String,
    },
    /// The callee answered with an error.
    #[error("{message}")]
    Failed {
        /// The callee's message.
        message: String,
    },
    /// Payload or response above the limit.
    #[error("{message}")]
    TooLarge {
        /// Which one, its length and the limit; see [`CallError::too_large`].
        message: String,
    },
    /// Not accepted by the callee; a retry is safe.
    #[error("{target} cannot be reached: {message}")]
    Unreachable {
        /// The callee.
        target: String,
        /// Why.
        message: String,
    },
    /// Accepted, then the callee died: whether it ran is unknown.
    #[error("{target} died while it served the call: {message}")]
    Broken {
        /// The callee.
        target: String,
        /// How.
        message: String,
    },
    /// This node does not offer it.
    #[error("{message}")]
    NotAvailable {
        /// What, and what it needs.
        message: String,
    },
    /// A fault of the host.
    #[error("host fault: {message}")]
    Internal {
        /// For the host's log.
        message: String,
    },
}

impl CallError {
    /// `what` (payload or response, and whose) of `length` bytes is above `limit` bytes.
    #[must_use]
    pub fn too_large(what: &str, length: u64, limit: u64) -> Self {
        let message = format!(
            "{what} of {length} bytes is larger than the limit of {limit} bytes; raise cwasi.max-payload or send less"
        );
        Self::TooLarge { message }
    }

    /// The guest-visible code.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Invalid { .. } => Errno::InvalidArgument,
            Self::NoSuchFunction { .. } => Errno::NoSuchFunction,
            Self::Refused { .. } => Errno::Refused,
            Self::Timeout { .. } | Self::Late { .. } => Errno::Timeout,
            Self::Overloaded { .. } => Errno::Overloaded,
            Self::Trapped { .. } => Errno::Trapped,
            Self::Failed { .. } => Errno::Failed,
            Self::TooLarge { .. } => Errno::PayloadTooLarge,
            Self::Unreachable { .. } => Errno::Unreachable,
            Self::Broken { .. } => Errno::Broken,
            Self::NotAvailable { .. } => Errno::NotAvailable,
            Self::Internal { .. } => Errno::Internal,
        }
    }

    /// What travels beside the errno, so that [`Self::from_wire`] gives back the same error.
    #[must_use]
    pub fn wire_message(&self) -> String {
        match self {
            Self::Broken { message, .. } | Self::Unreachable { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// What travels beside the text.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let detail = match self {
            Self::Timeout { .. } => Detail::DETAIL_DEADLINE,
            Self::Late { .. } => Detail::DETAIL_EXPLAINED,
            _ => Detail::DETAIL_NONE,
        };
        Outcome { errno: self.errno().code(), detail }
    }

    /// The error behind an outcome and a text that came over the wire.
    #[must_use]
    pub fn from_wire(outcome: Outcome, message: String, target: &str) -> Self {
        let Outcome { errno, detail } = outcome;
        let target = target.to_owned();
        let is_plain = match detail {
            Detail::DETAIL_DEADLINE => true,
            Detail::DETAIL_EXPLAINED => false,
            Detail::DETAIL_NONE => message.ends_with(LATE),
        };
        match Errno::from_code(errno) {
            Some(Errno::InvalidArgument) => Self::Invalid { message },
            Some(Errno::NoSuchFunction) => Self::NoSuchFunction { message },
            Some(Errno::Refused) => Self::Refused { message },
            Some(Errno::Timeout) if is_plain => Self::Timeout { target },
            Some(Errno::Timeout) => Self::Late { message },
            Some(Errno::Overloaded) => Self::Overloaded { message },
            Some(Errno::Trapped) => Self::Trapped { message },
            Some(Errno::PayloadTooLarge) => Self::TooLarge { message },
            Some(Errno::Failed) => Self::Failed { message },
            Some(Errno::Unreachable) => Self::Unreachable { target, message },
            Some(Errno::Broken) => Self::Broken { target, message },
            Some(Errno::NotAvailable) => Self::NotAvailable { message },
            _ => Self::Internal { message: format!("{target} answered errno {errno}: {message}") },
        }
    }

    /// True when the callee certainly did not accept the call.
    #[must_use]
    pub const fn not_accepted(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_error() -> Vec<CallError> {
        let message = || "why".to_owned();
        let target = || "callee".to_owned();
        vec![
            CallError::Invalid { message: message() },
            CallError::NoSuchFunction { message: message() },
            CallError::Refused { message: message() },
            CallError::Timeout { target: target() },
            CallError::Late { message: format!("1 of 2 parts; so it {LATE}") },
            CallError::Overloaded { message: message() },
            CallError::Trapped { message: message() },
            CallError::Failed { message: message() },
            CallError::TooLarge { message: message() },
            CallError::Unreachable { target: target(), message: message() },
            CallError::Broken { target: target(), message: message() },
            CallError::NotAvailable { message: message() },
        ]
    }

    #[test]
    fn an_error_arrives_as_it_was_whatever_its_text_ends_with() {
        for error in every_error() {
            let arrived = CallError::from_wire(error.outcome(), error.wire_message(), "callee");
            assert_eq!(arrived, error);
        }
    }

    /// Nodes are upgraded one after the other.
    #[test]
    fn an_older_sender_is_understood_by_its_text() {
        let older = |text: &str| {
            let outcome = Outcome { errno: Errno::Timeout.code(), detail: Detail::DETAIL_NONE };
            CallError::from_wire(outcome, text.to_owned(), "callee")
        };
        let plain = CallError::Timeout { target: "n/callee".to_owned() }.to_string();
        assert_eq!(older(&plain), CallError::Timeout { target: "callee".to_owned() });
        let explained = "1 of 2 parts of `k` arrived in 30s; missing: 1";
        assert_eq!(older(explained), CallError::Late { message: explained.to_owned() });
    }

    /// An older reader knows errno and text, and tells a plain timeout by the text's end.
    #[test]
    fn an_older_reader_finds_what_it_looks_for() {
        let timeout = CallError::Timeout { target: "callee".to_owned() };
        assert!(timeout.wire_message().ends_with("did not end before its deadline"));
        for error in every_error() {
            assert_eq!(error.outcome().errno, error.errno().code());
        }
    }
}
