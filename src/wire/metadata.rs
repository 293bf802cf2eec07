//! What travels beside a payload: pairs of a key of `context_get` or `context_set` and bytes, in their order. A header
//! with several values has several pairs. Pure.

use std::borrow::Cow;
use std::collections::HashSet;

use cwasi_abi::{METADATA_OVERHEAD, context_key};

use super::envelope::Metadata;

/// Longest metadata in bytes that a peer of the version before reads, whose envelopes have 8 KiB. Such a peer does not
/// say how much it reads.
pub const EARLIER_MAX: usize = 7168;

/// Keys of a request's cookies and of a response's.
const COOKIE: &str = "http.header.cookie";
const SET_COOKIE: &str = "http.header.set-cookie";

impl Metadata {
    #[must_use]
    pub fn of(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), value: value.into(), ..Self::default() }
    }

    /// The value as text; bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.value)
    }

    /// Bytes that count against a limit.
    #[must_use]
    pub fn length(&self) -> usize {
        pair_length(&self.key, &self.value)
    }
}

/// Bytes of a pair that count against a limit.
#[must_use]
pub const fn pair_length(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + METADATA_OVERHEAD
}

/// Bytes of all pairs that count against a limit.
#[must_use]
pub fn length(metadata: &[Metadata]) -> usize {
    metadata.iter().map(Metadata::length).sum()
}

/// True if the metadata is that of an HTTP request.
#[must_use]
pub fn is_of_http(metadata: &[Metadata]) -> bool {
    metadata.iter().any(|pair| pair.key == context_key::HTTP_METHOD)
}

/// All values of a key as one (RFC 9110, 5.3): cookies are joined by `; ` (RFC 6265, 4.2.1), `Set-Cookie`, whose values
/// have commas, by line feeds, all others by `, `.
#[must_use]
pub fn joined<'a>(key: &str, values: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let separator: &[u8] = match key {
        COOKIE => b"; ",
        SET_COOKIE => b"\n",
        _ => b", ",
    };
    let mut joined = Vec::new();
    for (number, value) in values.into_iter().enumerate() {
        if number > 0 {
            joined.extend_from_slice(separator);
        }
        joined.extend_from_slice(value);
    }
    joined
}

/// A request's metadata as a peer of the version before reads it: one text for each key.
#[must_use]
pub fn for_earlier(metadata: &[Metadata]) -> Vec<Metadata> {
    let mut seen = HashSet::new();
    let first = metadata.iter().filter(|pair| seen.insert(pair.key.as_str()));
    first.map(|pair| text_of(&pair.key, metadata)).collect()
}

fn text_of(key: &str, metadata: &[Metadata]) -> Metadata {
    let values = metadata.iter().filter(|pair| pair.key == key);
    let value = joined(key, values.map(|pair| pair.value.as_slice()));
    Metadata::of(key, String::from_utf8_lossy(&value).into_owned())
}

/// The same pairs, for a peer of the version before that reads text only.
#[must_use]
pub fn as_text(metadata: &[Metadata]) -> Vec<Metadata> {
    metadata.iter().map(|pair| Metadata::of(pair.key.as_str(), pair.text().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_the_version_before_reads_one_text_for_each_key() {
        let metadata = [
            Metadata::of("http.method", "GET"),
            Metadata::of("http.header.accept", "a"),
            Metadata::of("http.header.cookie", "c=1"),
            Metadata::of("http.header.accept", b"\xe9".to_vec()),
            Metadata::of("http.header.cookie", "d=2"),
        ];
        let expected = [
            Metadata::of("http.method", "GET"),
            Metadata::of("http.header.accept", "a, \u{fffd}"),
            Metadata::of("http.header.cookie", "c=1; d=2"),
        ];
        assert_eq!(for_earlier(&metadata), expected);
        assert_eq!(as_text(&metadata)[3], Metadata::of("http.header.accept", "\u{fffd}"));
        assert!(is_of_http(&metadata) && !is_of_http(&metadata[1..]));
    }

    #[test]
    fn cookies_of_a_response_are_not_joined_by_commas() {
        let values = [b"a=1; expires=Thu, 01 Jan".as_slice(), b"b=2"];
        assert_eq!(joined(SET_COOKIE, values), b"a=1; expires=Thu, 01 Jan\nb=2");
    }
}
