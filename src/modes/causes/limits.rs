//! Causes that are a reached limit: too many calls, too many parts, too many bytes.

use cwasi_abi::PAYLOAD_MAX;

/// Which bound is reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overload {
    /// All workers of an instance are busy, and its queue is full.
    #[error(
        "{function} is busy: {workers} workers (cwasi.concurrency) and {queue} waiting requests (cwasi.queue) at most"
    )]
    Queue {
        function: String,
        workers: u32,
        /// Requests that may wait for them.
        queue: u32,
    },
    /// What waits in an instance's queue holds as much as it may.
    #[error(
        "{function} is busy: its waiting requests hold {bytes} bytes or {descriptors} descriptors, which is the most; raise cwasi.memory or RLIMIT_NOFILE, or call less at a time"
    )]
    Load {
        function: String,
        /// Bytes at most.
        bytes: u64,
        /// Descriptors at most.
        descriptors: usize,
    },
    /// An instance takes no further connection.
    #[error("{callee} has no room for another caller")]
    Callers { callee: String },
    /// A node serves as many calls of others as it may.
    #[error("node {node} has too many calls under way")]
    Node { node: String },
    #[error("{limit} messages for {target} wait already")]
    Messages {
        target: String,
        /// How many may wait.
        limit: u64,
    },
    #[error(
        "messages from {whose} that are not handled yet have {limit} bytes already: start the functions that they wait for, or raise messages.waiting_max in the sender's node configuration"
    )]
    Waiting {
        /// The namespace or function that sent them.
        whose: String,
        /// Bytes that may wait.
        limit: u64,
    },
    /// Functions without an instance that messages wait for.
    #[error(
        "messages from namespace {namespace} wait for {limit} functions already: start these functions, or raise messages.functions_max in the sender's node configuration"
    )]
    Functions {
        /// The namespace that sent them.
        namespace: String,
        limit: usize,
    },
    /// Parts of groups that wait for others.
    #[error(transparent)]
    Parts(#[from] PartsFull),
    /// Descriptors on their way between processes of this host's user.
    #[error(
        "too many descriptors are on their way between functions of this host: raise RLIMIT_NOFILE, or call fewer at a time"
    )]
    Descriptors,
    /// Another process says so.
    #[error("{text}")]
    Remote { text: String },
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
    /// A payload or a response that no configuration allows.
    #[error("{what} of {length} bytes is larger than the largest possible, {PAYLOAD_MAX} bytes")]
    Possible {
        /// Which of them.
        what: &'static str,
        /// Bytes.
        length: u64,
    },
    /// The head of an HTTP request.
    #[error(
        "the head of the request for {target} has {length} bytes, its instance takes {limit}: raise \
         cwasi.http.max-head, unless its shim is of an earlier version"
    )]
    Head {
        target: String,
        /// Bytes.
        length: usize,
        /// Bytes at most.
        limit: usize,
    },
    #[error("one-way message to {target} of {length} bytes is larger than {limit} bytes")]
    Message {
        /// Who was to get it.
        target: String,
        /// Bytes.
        length: u64,
        /// Bytes at most.
        limit: u64,
    },
    #[error(
        "the response of {length} bytes was dropped: {limit} bytes of responses may wait for a caller that does not read them; wait for calls before you start more"
    )]
    Unread {
        /// Bytes of this one.
        length: u64,
        /// Bytes of all that wait.
        limit: u64,
    },
    #[error(
        "the response of {length} bytes was dropped: {limit} bytes of responses from other hosts may be received at a time; call fewer functions at a time"
    )]
    Received {
        /// Bytes of this one.
        length: u64,
        /// Bytes of all that are received.
        limit: u64,
    },
    /// Another process says so.
    #[error("{text}")]
    Remote { text: String },
    /// The same of the head of an HTTP request.
    #[error("{text}")]
    RemoteHead { text: String },
}

impl TooLarge {
    /// True if it is the head of an HTTP request, and not a payload.
    #[must_use]
    pub const fn is_head(&self) -> bool {
        matches!(self, Self::Head { .. } | Self::RemoteHead { .. })
    }
}

/// Which bound of a fan-in's waiting parts is reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsFull {
    #[error("{limit} groups wait for parts at {function} already")]
    Groups {
        function: String,
        /// Groups at most.
        limit: usize,
    },
    /// Parts of all groups.
    #[error("{limit} parts wait for others at {function} already")]
    Parts {
        function: String,
        /// Parts at most.
        limit: usize,
    },
    #[error("the parts that wait at {function} have {limit} bytes at most")]
    Bytes {
        function: String,
        /// Bytes at most.
        limit: u64,
    },
    #[error(
        "large parts that wait at {function} hold {limit} descriptors at most: raise the container's RLIMIT_NOFILE"
    )]
    Descriptors {
        function: String,
        /// Descriptors at most.
        limit: usize,
    },
}
