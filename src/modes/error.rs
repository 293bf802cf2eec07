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
    /// Nobody has room for it.
    #[error(transparent)]
    Overloaded(#[from] Overload),
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
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
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

/// Which bound is reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overload {
    /// All workers of an instance are busy, and its queue is full.
    #[error(
        "{function} is busy: {workers} workers (cwasi.concurrency) and {queue} waiting requests (cwasi.queue) at most"
    )]
    Queue {
        /// The callee.
        function: String,
        /// Its workers.
        workers: u32,
        /// Requests that may wait for them.
        queue: u32,
    },
    /// What waits in an instance's queue holds as much as it may.
    #[error(
        "{function} is busy: its waiting requests hold {bytes} bytes or {descriptors} descriptors, which is the most; raise cwasi.memory or RLIMIT_NOFILE, or call less at a time"
    )]
    Load {
        /// The callee.
        function: String,
        /// Bytes at most.
        bytes: u64,
        /// Descriptors at most.
        descriptors: usize,
    },
    /// An instance takes no further connection.
    #[error("{callee} has no room for another caller")]
    Callers {
        /// The callee.
        callee: String,
    },
    /// A node serves as many calls of others as it may.
    #[error("node {node} has too many calls under way")]
    Node {
        /// Its name.
        node: String,
    },
    /// One-way messages of a function that are not handled yet.
    #[error("{limit} messages for {target} wait already")]
    Messages {
        /// The function.
        target: String,
        /// How many may wait.
        limit: u64,
    },
    /// Said by another process, or by a part that names the bound itself.
    #[error("{0}")]
    Said(String),
}

/// What is larger than it may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// A payload or a response.
    #[error(
        "{what} of {length} bytes is larger than the limit of {limit} bytes; raise cwasi.max-payload or send less"
    )]
    Payload {
        /// Which of them, and whose.
        what: String,
        /// Bytes.
        length: u64,
        /// Bytes at most.
        limit: u64,
    },
    /// A one-way message.
    #[error("one-way message to {target} of {length} bytes is larger than {limit} bytes")]
    Message {
        /// Who was to get it.
        target: String,
        /// Bytes.
        length: u64,
        /// Bytes at most.
        limit: u64,
    },
    /// Responses that their caller does not read.
    #[error(
        "the response of {length} bytes was dropped: {limit} bytes of responses may wait for a caller that does not read them; wait for calls before you start more"
    )]
    Unread {
        /// Bytes of this one.
        length: u64,
        /// Bytes of all that wait.
        limit: u64,
    },
    /// Said by another process.
    #[error("{0}")]
    Said(String),
}

impl CallError {
    /// `what` (payload or response, and whose) of `length` bytes is above `limit` bytes.
    #[must_use]
    pub fn too_large(what: &str, length: u64, limit: u64) -> Self {
        Self::TooLarge(TooLarge::Payload { what: what.to_owned(), length, limit })
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
            Some(Errno::Overloaded) => Self::Overloaded(Overload::Said(message)),
            Some(Errno::Trapped) => Self::Trapped { message },
            Some(Errno::PayloadTooLarge) => Self::TooLarge(TooLarge::Said(message)),
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
            CallError::Overloaded(Overload::Said(message())),
            CallError::Trapped { message: message() },
            CallError::Failed { message: message() },
            CallError::TooLarge(TooLarge::Said(message())),
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

    #[test]
    fn what_is_known_of_a_bound_is_said_once() {
        let overload = Overload::Queue { function: "f".to_owned(), workers: 2, queue: 3 };
        let (all, large) = (CallError::from(overload), CallError::too_large("payload for f", 9, 8));
        assert_eq!(
            all.to_string(),
            "f is busy: 2 workers (cwasi.concurrency) and 3 waiting requests (cwasi.queue) at most"
        );
        assert_eq!(
            large.to_string(),
            "payload for f of 9 bytes is larger than the limit of 8 bytes; raise cwasi.max-payload or send less"
        );
        for error in [all, large] {
            let arrived = CallError::from_wire(error.outcome(), error.wire_message(), "g");
            assert_eq!((arrived.errno(), arrived.to_string()), (error.errno(), error.to_string()));
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
