//! What a function may set of an HTTP response by `context_set` and `context_add`, and the grammar of headers. The
//! host function checks it in the worker, and who writes the response checks it again: a compromised worker passes on
//! whatever it wants.

use crate::context_key;

/// Statuses that a function may set: final ones.
const STATUSES: core::ops::RangeInclusive<u16> = 200..=599;
/// Headers that belong to the connection, the framing or the runtime, not to the function's response.
const RESERVED_HEADERS: [&str; 11] = [
    "connection",
    CONTENT_LENGTH,
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

const CONTENT_LENGTH: &str = "content-length";
/// Most digits of a length that every server reads: 19 have up to 2^63.
const LENGTH_DIGITS_MAX: usize = 19;
const DELETE: u8 = 0x7f;

/// True if a function may set this key to this value. `context_set` takes an empty value for the wish to remove the
/// key.
#[must_use]
pub fn is_settable(key: &str, value: &[u8]) -> bool {
    if key == context_key::HTTP_STATUS {
        let digits = value.len() == 3 && value.iter().all(u8::is_ascii_digit);
        let status = core::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let is_final = status.is_some_and(|status| STATUSES.contains(&status));
        return value.is_empty() || (digits && is_final);
    }
    key.strip_prefix(context_key::HTTP_HEADER)
        .is_some_and(|name| is_field_name(name) && !is_reserved(name) && is_field_value(value))
}

/// True for the `Content-Length` of a response to `HEAD`, which says how long the response to `GET` is: only for that
/// method a function may set it, to its digits.
#[must_use]
pub fn is_length_for_head(key: &str, value: &[u8]) -> bool {
    key.strip_prefix(context_key::HTTP_HEADER) == Some(CONTENT_LENGTH)
        && (1..=LENGTH_DIGITS_MAX).contains(&value.len())
        && value.iter().all(u8::is_ascii_digit)
}

/// True for a header's name in lower case (RFC 9110, 5.1: a token).
#[must_use]
pub fn is_field_name(name: &str) -> bool {
    let is_token = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte)
    };
    !name.is_empty() && name.bytes().all(is_token)
}

/// True for a header's value (RFC 9110, 5.5): visible characters, spaces, tabs, and all bytes beyond ASCII, such as
/// those of UTF-8 or ISO 8859-1.
#[must_use]
pub fn is_field_value(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != DELETE))
}

/// True for a header, in lower case, that belongs to the connection, the framing or the runtime: what a function's HTTP
/// library says of them is left out.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED_HEADERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_bytes_of_the_grammar() {
        let header = |value: &[u8]| is_settable("http.header.location", value);
        assert!(header(b"/\xe9") && header("/é".as_bytes()) && header(b"") && header(b"a\tb"));
        for value in [&b"a\r\nb: c"[..], b"a\0", b"\x7f", b"a\n"] {
            assert!(!header(value), "{value:?}");
        }
        assert!(is_settable("http.status", b"599") && !is_settable("http.status", b"\xff99"));
    }

    #[test]
    fn a_length_is_digits() {
        let length = |value: &[u8]| is_length_for_head("http.header.content-length", value);
        assert!(length(b"0") && length(b"1234567890123456789"));
        for value in [&b""[..], b"+1", b"1, 1", b"12345678901234567890"] {
            assert!(!length(value), "{value:?}");
        }
        assert!(!is_length_for_head("http.header.x", b"1"));
    }
}
