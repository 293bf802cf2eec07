//! The errors of calls. Each has one errno of the guest ABI and one text, and an encoding for the wire.

use cwasi_abi::Errno;

use cwasi_wire::envelope::{CallStatus, Detail};

use super::causes::{Break, Invalid, Overload, Refusal, TooLarge, Unavailable, Unreached};

/// How the text of [`CallError::Timeout`] ends. It identifies senders that know no [`Detail`].
const LATE: &str = "did not end before its deadline";

/// How the text of [`CallError::Internal`] begins.
const HOST_FAULT: &str = "host fault: ";

/// Why a call did not end with a response. Each variant is one errno of the guest ABI ([`Self::errno`]);
/// the text is what the guest reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request itself is not valid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no function of that name.
    #[error("{message}")]
    NoSuchFunction {
        /// What was looked for and where.
        message: String,
    },
    #[error(transparent)]
    Refused(Box<Refusal>),
    #[error("call to {target} {LATE}")]
    Timeout { target: String },
    /// The deadline passed, and it is known why.
    #[error("{message}")]
    Late {
        /// Which parts are missing, or which output has no reader.
        message: String,
    },
    /// No instance has room for it.
    #[error(transparent)]
    Overloaded(#[from] Overload),
    #[error("{message}")]
    Trapped { message: String },
    /// The callee has answered an HTTP request with a head that cannot be delivered.
    #[error("{message}")]
    Undeliverable {
        /// Which header or status, and why.
        message: String,
    },
    /// The callee answered with an error.
    #[error("{message}")]
    Failed { message: String },
    /// The callee is a command that ended with an error.
    #[error("{message}")]
    CommandFailed {
        /// With the end of its output, which callers and operators read, and clients from outside do not.
        message: String,
    },
    /// Payload or response above the limit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Not accepted by the callee; a retry is safe.
    #[error("{target} cannot be reached: {cause}")]
    Unreachable { target: String, cause: Unreached },
    /// Accepted, then the callee died: whether it ran is unknown.
    #[error("{target} died while it served the call: {cause}")]
    Broken { target: String, cause: Break },
    /// This node does not offer it.
    #[error(transparent)]
    NotAvailable(#[from] Unavailable),
    #[error("{HOST_FAULT}{message}")]
    Internal {
        /// For the host's log.
        message: String,
    },
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl CallError {
    /// `what` (payload or response, and whose) of `length` bytes is above `limit` bytes.
    #[must_use]
    pub fn too_large(what: &str, length: u64, limit: u64) -> Self {
        Self::TooLarge(TooLarge::Payload { what: what.to_owned(), length, limit })
    }

    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Invalid { .. } => Errno::InvalidArgument,
            Self::NoSuchFunction { .. } => Errno::NoSuchFunction,
            Self::Refused { .. } => Errno::Refused,
            Self::Timeout { .. } | Self::Late { .. } => Errno::Timeout,
            Self::Overloaded { .. } => Errno::Overloaded,
            Self::Trapped { .. } | Self::Undeliverable { .. } => Errno::Trapped,
            Self::Failed { .. } | Self::CommandFailed { .. } => Errno::Failed,
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
            Self::Broken { cause, .. } => cause.to_string(),
            Self::Unreachable { cause, .. } => cause.to_string(),
            Self::Internal { message } => message.clone(),
            other => other.to_string(),
        }
    }

    /// What travels beside the text.
    #[must_use]
    pub fn outcome(&self) -> CallStatus {
        let detail = match self {
            Self::Timeout { .. } => Detail::DETAIL_DEADLINE,
            Self::Late { .. } => Detail::DETAIL_EXPLAINED,
            Self::CommandFailed { .. } => Detail::DETAIL_OUTPUT,
            Self::TooLarge(cause) if cause.is_head() => Detail::DETAIL_HEAD,
            Self::Undeliverable { .. } => Detail::DETAIL_RESPONSE,
            _ => Detail::DETAIL_NONE,
        };
        CallStatus::of(self.errno().code(), detail)
    }

    /// The error behind an outcome and a text that came over the wire.
    #[must_use]
    pub fn from_wire(outcome: CallStatus, text: String, target: &str) -> Self {
        let CallStatus { errno, detail, .. } = outcome;
        let target = target.to_owned();
        let is_plain = match detail {
            Detail::DETAIL_DEADLINE => true,
            Detail::DETAIL_NONE => text.ends_with(LATE),
            _ => false,
        };
        match Errno::from_code(errno) {
            Some(Errno::InvalidArgument) => Invalid::Remote { text }.into(),
            Some(Errno::NoSuchFunction) => Self::NoSuchFunction { message: text },
            Some(Errno::Refused) => Refusal::Remote { text }.into(),
            Some(Errno::Timeout) if is_plain => Self::Timeout { target },
            Some(Errno::Timeout) => Self::Late { message: text },
            Some(Errno::Overloaded) => Overload::Remote { text }.into(),
            Some(Errno::Trapped) if detail == Detail::DETAIL_RESPONSE => {
                Self::Undeliverable { message: text }
            }
            Some(Errno::Trapped) => Self::Trapped { message: text },
            Some(Errno::PayloadTooLarge) if detail == Detail::DETAIL_HEAD => {
                TooLarge::RemoteHead { text }.into()
            }
            Some(Errno::PayloadTooLarge) => TooLarge::Remote { text }.into(),
            Some(Errno::Failed) if detail == Detail::DETAIL_OUTPUT => {
                Self::CommandFailed { message: text }
            }
            Some(Errno::Failed) => Self::Failed { message: text },
            Some(Errno::Unreachable) => {
                Self::Unreachable { target, cause: Unreached::Remote { text } }
            }
            Some(Errno::Broken) => Self::Broken { target, cause: Break::Remote { text } },
            Some(Errno::NotAvailable) => Unavailable::Remote { text }.into(),
            Some(Errno::Internal) => {
                // Older senders write the prefix, too.
                let message = text.strip_prefix(HOST_FAULT).unwrap_or(&text).to_owned();
                Self::Internal { message }
            }
            _ => Self::Internal { message: format!("{target} answered errno {errno}: {text}") },
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
        let text = message;
        let target = || "callee".to_owned();
        vec![
            Invalid::Remote { text: text() }.into(),
            CallError::NoSuchFunction { message: message() },
            Refusal::Remote { text: text() }.into(),
            CallError::Timeout { target: target() },
            CallError::Late { message: format!("1 of 2 parts; so it {LATE}") },
            Overload::Remote { text: text() }.into(),
            CallError::Trapped { message: message() },
            CallError::Undeliverable { message: message() },
            CallError::Failed { message: message() },
            CallError::CommandFailed { message: message() },
            TooLarge::Remote { text: text() }.into(),
            TooLarge::RemoteHead { text: text() }.into(),
            CallError::Unreachable { target: target(), cause: Unreached::Remote { text: text() } },
            CallError::Broken { target: target(), cause: Break::Remote { text: text() } },
            Unavailable::Remote { text: text() }.into(),
            CallError::Internal { message: message() },
        ]
    }

    #[test]
    fn every_errno_has_an_error() {
        let errnos: Vec<Errno> = every_error().iter().map(CallError::errno).collect();
        for errno in Errno::ALL {
            let made = CallError::from_wire(
                CallStatus::of(errno.code(), Detail::DETAIL_NONE),
                String::new(),
                "callee",
            );
            assert!(errnos.contains(&made.errno()), "{made:?}");
        }
    }

    #[test]
    fn host_faults_of_older_senders_have_one_prefix() {
        let error = CallError::Internal { message: "why".to_owned() };
        assert_eq!(CallError::from_wire(error.outcome(), error.to_string(), "callee"), error);
    }

    #[test]
    fn errors_round_trip_with_any_text() {
        for error in every_error() {
            let arrived = CallError::from_wire(error.outcome(), error.wire_message(), "callee");
            assert_eq!(arrived, error);
        }
    }

    #[test]
    fn what_is_known_is_said_once() {
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
        let broken = |cause| CallError::Broken { target: "g".to_owned(), cause };
        let unreached = |cause| CallError::Unreachable { target: "g".to_owned(), cause };
        let no_fan_in = Invalid::NoFanIn { function: "g".to_owned() }.into();
        let others = [broken(Break::Closed), unreached(Unreached::Ending), no_fan_in];
        for error in [all, large].into_iter().chain(others) {
            let arrived = CallError::from_wire(error.outcome(), error.wire_message(), "g");
            assert_eq!((arrived.errno(), arrived.to_string()), (error.errno(), error.to_string()));
        }
    }

    /// Nodes are upgraded one after the other.
    #[test]
    fn older_senders_are_decoded_by_text() {
        let older = |text: &str| {
            let outcome = CallStatus::of(Errno::Timeout.code(), Detail::DETAIL_NONE);
            CallError::from_wire(outcome, text.to_owned(), "callee")
        };
        let plain = CallError::Timeout { target: "n/callee".to_owned() }.to_string();
        assert_eq!(older(&plain), CallError::Timeout { target: "callee".to_owned() });
        let explained = "1 of 2 parts of `k` arrived in 30s; missing: 1";
        assert_eq!(older(explained), CallError::Late { message: explained.to_owned() });
    }

    /// An older reader knows errno and text, and recognizes a plain timeout by the text's end.
    #[test]
    fn older_readers_decode_new_errors() {
        let timeout = CallError::Timeout { target: "callee".to_owned() };
        assert!(timeout.wire_message().ends_with("did not end before its deadline"));
        for error in every_error() {
            assert_eq!(error.outcome().errno, error.errno().code());
        }
    }
}
