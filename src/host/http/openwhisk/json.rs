//! JSON that passes through: members of an object as the bytes that they are, so that a number keeps its digits and a
//! large value is not taken apart. Pure.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Deserializer;

/// Most members of a request.
const MEMBERS_MAX: usize = 256;

/// Why text is not the JSON that is wanted.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error("it is no JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("it is no UTF-8")]
    Encoding(#[from] std::str::Utf8Error),
    #[error("it is no JSON object")]
    NoObject,
    #[error("it has more than {MEMBERS_MAX} members")]
    Members,
}

/// Checks that bytes are one JSON object.
///
/// # Errors
/// When they are not.
pub fn check_object(json: &[u8]) -> Result<(), JsonError> {
    std::str::from_utf8(json)?;
    let _any: IgnoredAny = serde_json::from_slice(json)?;
    if json.trim_ascii_start().starts_with(b"{") { Ok(()) } else { Err(JsonError::NoObject) }
}

/// The members of an object: names and values, which are JSON.
///
/// # Errors
/// When it is no object.
pub fn members(json: &[u8]) -> Result<Vec<(String, &[u8])>, JsonError> {
    check_object(json)?;
    let mut rest = skip(json.trim_ascii_start(), b'{');
    let mut members = Vec::new();
    while !rest.starts_with(b"}") {
        if members.len() == MEMBERS_MAX {
            return Err(JsonError::Members);
        }
        let (name, length) = first::<String>(rest)?;
        rest = skip(&rest[length..], b':');
        let (IgnoredAny, length) = first(rest)?;
        let (value, behind) = rest.split_at(length);
        members.push((name, value));
        rest = skip(behind, b',');
    }
    Ok(members)
}

/// What follows a sign that may come next, without the white space around it.
fn skip(json: &[u8], sign: u8) -> &[u8] {
    let json = json.trim_ascii_start();
    json.strip_prefix(&[sign]).unwrap_or(json).trim_ascii_start()
}

/// The first value of the text, and its length.
fn first<T: DeserializeOwned>(json: &[u8]) -> Result<(T, usize), JsonError> {
    let mut values = Deserializer::from_slice(json).into_iter();
    match values.next() {
        Some(value) => Ok((value?, values.byte_offset())),
        None => Err(JsonError::NoObject),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_what_they_were() {
        let json = br#" { "a" : 1.50 ,"b":{"c":[1, 2]},"\u0064": "x,}", "n":18446744073709551617,"t":true } "#;
        let members = members(json).unwrap();
        let found: Vec<_> = members
            .iter()
            .map(|(name, value)| (name.as_str(), std::str::from_utf8(value).unwrap()))
            .collect();
        let expected = [
            ("a", "1.50"),
            ("b", r#"{"c":[1, 2]}"#),
            ("d", r#""x,}""#),
            ("n", "18446744073709551617"),
            ("t", "true"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn all_else_is_refused() {
        for wrong in
            [&b""[..], b"[]", b"1", b"{", b"{} x", b"{\"a\":}", b"{\"a\":\"\xff\"}", b"null"]
        {
            assert!(members(wrong).is_err(), "{wrong:?}");
        }
        assert!(members(b"{}").unwrap().is_empty());
        let many: Vec<_> = (0..=MEMBERS_MAX).map(|number| format!("\"{number}\":0")).collect();
        let many = format!("{{{}}}", many.join(","));
        assert!(matches!(members(many.as_bytes()), Err(JsonError::Members)));
    }

    #[test]
    fn depth_takes_no_stack() {
        let depth = 1 << 20;
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(members(deep.as_bytes()).unwrap().len(), 1);
    }
}
