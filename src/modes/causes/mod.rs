//! Why a call ends that gets no response, as data: each cause says what it knows, and has one text.
//!
//! Between processes and nodes only the text travels, beside the errno. What arrives that way is a cause `Remote`.

use cwasi_abi::{FUNCTION_NAME_MAX, JOIN_KEY_MAX, PARTS_MAX, TARGET_MAX};

use cwasi_wire::ids::Identity;

mod limits;

pub use limits::{Overload, PartsFull, TooLarge};

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error(
        "`{target}` is not a function name: 1 to {FUNCTION_NAME_MAX} bytes, with or without a namespace and `/` before it"
    )]
    Name { target: String },
    /// The name of its callee, in a guest's memory.
    #[error(transparent)]
    GuestName(#[from] InvalidName),
    /// The length of a one-way message's target.
    #[error("a function's name has 1 to {TARGET_MAX} bytes")]
    TargetLength,
    /// It is a part of a group, for a function that handles each call alone.
    #[error("{function} takes no parts: set cwasi.fan-in there, or call it without a join key")]
    NoFanIn { function: String },
    /// It is no part of a group.
    #[error("{function} has cwasi.fan-in: call it with a join key, as one part of a group")]
    NoJoinKey { function: String },
    /// It contradicts the function's annotation, the other parts, or itself.
    #[error(transparent)]
    Part(#[from] InvalidPart),
    /// It cannot be decoded.
    #[error("{error}")]
    Malformed {
        /// What the decoder says.
        error: String,
    },
    /// Another process says so.
    #[error("{text}")]
    Remote { text: String },
}

/// Why the bytes that a guest passed are no function's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    #[error("the name of the function to call is empty")]
    Empty,
    #[error(
        "the name of the function to call has {length} bytes, at most {TARGET_MAX} are allowed: {start:?}…"
    )]
    Long {
        /// Bytes.
        length: usize,
        start: String,
    },
    #[error("the name of the function to call is not UTF-8: {text:?}")]
    NotUtf8 {
        /// Invalid bytes replaced.
        text: String,
    },
}

/// What is wrong with a part of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPart {
    #[error("a join key has 1 to {JOIN_KEY_MAX} bytes, not {length}")]
    KeyLength {
        /// Bytes.
        length: usize,
    },
    #[error("{function} has cwasi.fan-in=caller: each call says how many parts there are")]
    NoNumber { function: String },
    /// Call and annotation say different numbers.
    #[error("the call says {said} parts, {function} has cwasi.fan-in={annotated}")]
    Annotation { function: String, said: u32, annotated: u32 },
    /// More parts than a group may have.
    #[error("{expected} parts; a group has {PARTS_MAX} at most")]
    TooMany {
        /// How many there are to be.
        expected: u32,
    },
    /// Its number is none of the group's.
    #[error("part {number} of {expected}: parts are numbered from 0")]
    Number {
        number: u32,
        /// How many there are to be.
        expected: u32,
    },
    #[error("the call says {expected} parts, an earlier one of `{key}` said {known}")]
    OtherNumber {
        key: String,
        /// What the call says.
        expected: u32,
        /// What an earlier call said.
        known: u32,
    },
    /// Another call is this part.
    #[error("part {number} of `{key}` is here already")]
    Here { key: String, number: u32 },
}

/// Which rule forbids a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{caller} may not call {callee}: it takes calls from its own namespace only")]
    Namespace { caller: Identity, callee: Identity },
    /// The callee's list does not have the caller.
    #[error("{caller} may not call {callee}: its cwasi.allow is {}", .allow.join(","))]
    NotAllowed { caller: Identity, callee: Identity, allow: Vec<String> },
    /// Another process says so.
    #[error("{text}")]
    Remote { text: String },
}

/// Why a callee has certainly not accepted a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreached {
    /// The caller's own shim does not answer.
    #[error("this sandbox's shim does not answer ({error})")]
    Shim {
        /// What the socket says.
        error: String,
    },
    /// The connection had ended before.
    #[error("its connection closed before the request was sent")]
    Closed,
    /// The request cannot be sent.
    #[error("{error}")]
    Unsent {
        /// What the socket, or the network, says.
        error: String,
    },
    #[error("this instance is ending")]
    Ending,
    /// An instance on the callee's node cannot be connected to, or given the request.
    #[error("instance {instance}: {error}")]
    Instance {
        instance: String,
        /// What the socket says.
        error: String,
    },
    #[error("node {node}: {error}")]
    Node { node: String, error: String },
    /// The callee's node cannot have the payload.
    #[error("its payload cannot be fetched: {error}")]
    Payload { error: String },
    /// The route to another host is given up.
    #[error("an instance has started on this host")]
    Moved,
    /// There is no instance on any host.
    #[error("no instance is announced in Redis")]
    NotAnnounced,
    /// It is started on demand.
    #[error("it has no instance, and none started before the call's deadline")]
    NotStarted,
    #[error("no shim listens for {instance} any more")]
    NoListener {
        /// The instance and its node.
        instance: String,
    },
    /// The instance's shim is slow.
    #[error("{instance} did not accept the call in time")]
    NotInTime {
        /// The instance and its node.
        instance: String,
    },
    /// Another process says so.
    #[error("{text}")]
    Remote { text: String },
}

/// Why it is unknown whether a call has run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// The caller's own shim does not answer.
    #[error("this sandbox's shim does not answer ({error})")]
    Shim {
        /// What the socket says.
        error: String,
    },
    #[error("its connection closed before the answer")]
    Closed,
    #[error("its worker {how}")]
    Worker { how: String },
    #[error("it was stopped and had no more time")]
    Stopped,
    /// The connection to an instance on the callee's node failed.
    #[error("instance {instance}: {error}")]
    Instance {
        instance: String,
        /// What the socket says.
        error: String,
    },
    /// Redis failed while the call was recorded.
    #[error("{error}")]
    Network {
        /// What Redis, or its connection, says.
        error: String,
    },
    /// The connection to Redis ended.
    #[error("the connection to Redis was lost while {instance} had the call: {error}")]
    RedisLost {
        /// The instance and its node.
        instance: String,
        error: String,
    },
    #[error("node {node} is gone, {instance} had the call")]
    NodeGone {
        node: String,
        /// The instance and its node.
        instance: String,
    },
    /// The response is not where the callee put it.
    #[error("its response cannot be fetched: {error}")]
    Response { error: String },
    /// It is unknown whether Redis has a one-way message.
    #[error("not known whether Redis has it: {error}")]
    Unconfirmed {
        /// What Redis, or its connection, says.
        error: String,
    },
    /// Redis did not answer.
    #[error("Redis did not confirm it in time")]
    Silent,
    /// Another process says so.
    #[error("{text}")]
    Remote { text: String },
}

/// What this node does not offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// One-way messages, because there is no stream for them.
    #[error("there is no shim that stores one-way messages")]
    NoShim,
    #[error("functions can be called while a request is handled, not from _initialize")]
    NoInvocation,
    /// One-way messages, because there is no Redis.
    #[error("one-way messages are kept in Redis, and this node has no redis_url")]
    NoRedis,
    /// Another process says so.
    #[error("{text}")]
    Remote { text: String },
}
