//! What a function may set of an HTTP response by `context_set` and `context_add`. The host function checks it in the
//! worker, and who writes the response checks it again: a compromised worker passes on whatever it wants.

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

const DELETE: u8 = 0x7f;

/// True if a function may set this key to this value (RFC 9110, 5.5: visible characters, spaces and, as UTF-8, others).
/// `context_set` takes an empty value for the wish to remove the key.
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
            && !is_reserved(name)
            && value.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != DELETE))
    })
}

/// True for a header, in lower case, that belongs to the connection, the framing or the runtime: what a function's HTTP
/// library says of them is left out.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED_HEADERS.contains(&name)
}
