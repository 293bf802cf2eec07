//! Errors of Redis commands, in shims. They tell whether the command was carried out, and whether a retry may succeed.

/// A Redis command that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// No connection now.
    #[error("Redis is away: {reason}")]
    Away {
        /// What happened to the last one.
        reason: String,
    },
    /// Something is not there that may be announced again soon.
    #[error("Redis was away or has lost its data, and nodes announce themselves again")]
    Returning,
    /// A node without Redis asked another one.
    #[error("a node of link_peers does not say what it has: {reason}")]
    Peer { reason: String },
    /// `maxmemory` is reached, and nothing may be evicted.
    #[error(
        "Redis is out of memory and refuses {command}: raise its maxmemory, or free some of its memory"
    )]
    OutOfMemory { command: &'static str },
    /// Another server is the master now.
    #[error("Redis is a read-only replica and refuses {command}: redis_url has to name the master")]
    Replica { command: &'static str },
    /// A command failed that may succeed later: Redis is loading its data, or cannot save it.
    #[error("Redis refuses {command} for now: {reason}")]
    NotNow {
        command: &'static str,
        /// The text of Redis.
        reason: String,
    },
    #[error("Redis refuses {command}: {reason}")]
    Command {
        command: &'static str,
        /// The text of Redis.
        reason: String,
    },
}

/// Codes of errors that end by themselves, or when an operator does something about Redis.
const NOT_NOW: [&str; 6] = ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "TRYAGAIN"];

impl NetworkError {
    /// For `map_err`: a failed command, or a connection that broke under it.
    pub(super) fn of(command: &'static str) -> impl FnOnce(redis::RedisError) -> Self {
        move |error| {
            let reason = error.to_string();
            // Only an error that the server sent says that the command was not carried out.
            match error.code() {
                Some(code) => Self::refused(command, code, reason),
                None => Self::Away { reason: format!("{command}: {reason}") },
            }
        }
    }

    /// For `map_err`: a failed transaction. Its first error is the cause; that of `EXEC` only says that there is one.
    pub(super) fn of_transaction(error: redis::RedisError) -> Self {
        const NAME: &str = "MULTI";
        match error.clone().into_server_errors().as_deref() {
            Some([(_, first), ..]) => {
                let reason = format!("{}: {}", first.code(), first.details().unwrap_or_default());
                Self::refused(NAME, first.code(), reason)
            }
            _ => Self::of(NAME)(error),
        }
    }

    /// An error that the server sent, which begins with `code`.
    pub(super) fn refused(command: &'static str, code: &str, reason: String) -> Self {
        match code {
            "OOM" => Self::OutOfMemory { command },
            "READONLY" => Self::Replica { command },
            code if NOT_NOW.contains(&code) => Self::NotNow { command, reason },
            _ => Self::Command { command, reason },
        }
    }

    /// The command that the server refused, and that was certainly not carried out.
    #[must_use]
    pub const fn refused_command(&self) -> Option<&'static str> {
        match self {
            Self::Away { .. } | Self::Returning | Self::Peer { .. } => None,
            Self::OutOfMemory { command }
            | Self::Replica { command }
            | Self::NotNow { command, .. }
            | Self::Command { command, .. } => Some(*command),
        }
    }

    /// True when the server refused the command.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        self.refused_command().is_some()
    }

    /// True when a retry may succeed.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        !matches!(self, Self::Command { .. })
    }
}
