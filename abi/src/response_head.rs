//! What a function may set of an HTTP response by `context_set`. The host function checks it in the worker, and who
//! writes the response checks it again: a compromised worker passes on whatever it wants.

use crate::context_key;

/// Statuses that a function may set: final ones.
const STATUSES: core::ops::RangeInclusive<u16> = 200..=599;
/// Headers that belong to the connection, the framing or the runtime, not to the function's response.
const RESERVED_HEADERS: [&str; 11] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "cwasi-errno",
    "x-call-id",
    "cwasi-trace",
];

/// True if a function may set this key to this value. An empty value removes the key.
#[must_use]
pub fn is_settable(key: &str, value: &str) -> bool {
    if key == context_key::HTTP_STATUS {
        let digits = value.len() == 3 && value.bytes().all(|byte| byte.is_ascii_digit());
        let status = value.parse().ok().filter(|status| STATUSES.contains(status));
        return value.is_empty() || (digits && status.is_some());
    }
    key.strip_prefix(context_key::HTTP_HEADER).is_some_and(|name| {
        let is_token = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte)
        };
        !name.is_empty()
            && name.bytes().all(is_token)
            && !RESERVED_HEADERS.contains(&name)
            && value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
    })
}
