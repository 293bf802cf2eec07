//! The context of an invocation.

use std::time::Duration;

use cwasi_abi::context_key as key;

use crate::ErrorKind;
use crate::imports;

/// Buffer for most context values in bytes; longer ones take a second call.
const VALUE_ROOM: usize = 64;

/// The context of one invocation, at the time of [`context`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Name of this function.
    pub function: String,
    /// Name of the workflow; empty without one.
    pub workflow: String,
    /// Unique id of this invocation: 32 hexadecimal digits.
    pub invocation_id: String,
    /// Time until the caller's deadline; `None` = no deadline.
    pub time_left: Option<Duration>,
    /// Number of this attempt of the call, from 1.
    pub attempt: u32,
    /// Name of the calling function; empty in a primary.
    pub caller: String,
    /// W3C trace context; empty when the invocation is not traced.
    pub traceparent: String,
    /// What tracing systems of the request's client keep beside it; empty without.
    pub tracestate: String,
    /// Id of the workflow's run, 32 hexadecimal digits: the same in all functions that serve one invocation of the
    /// primary.
    pub run_id: String,
}

/// The context of the running invocation. Outside a guest everything is empty.
#[must_use]
pub fn context() -> Context {
    Context {
        function: value(key::FUNCTION),
        workflow: value(key::WORKFLOW),
        invocation_id: value(key::INVOCATION_ID),
        time_left: value(key::DEADLINE_MS).parse().ok().map(Duration::from_millis),
        attempt: value(key::ATTEMPT).parse().unwrap_or_default(),
        caller: value(key::CALLER),
        traceparent: value(key::TRACEPARENT),
        tracestate: value(key::TRACESTATE),
        run_id: value(key::RUN_ID),
    }
}

/// A context value as text; empty for a key that this host does not know.
pub(crate) fn value(key: &str) -> String {
    String::from_utf8_lossy(&value_bytes(key).unwrap_or_default()).into_owned()
}

/// A context value; `None` for a key that this host does not know.
pub(crate) fn value_bytes(key: &str) -> Option<Vec<u8>> {
    let mut buffer = vec![0; VALUE_ROOM];
    let (mut errno, mut len) = imports::context_get(key, &mut buffer);
    if errno == ErrorKind::BufferTooSmall {
        buffer.resize(len, 0);
        (errno, len) = imports::context_get(key, &mut buffer);
    }
    if errno != ErrorKind::Ok {
        return None;
    }
    buffer.truncate(len);
    Some(buffer)
}
