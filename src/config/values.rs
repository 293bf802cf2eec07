//! Parsers of single values, with the texts of their errors. Runs in launcher and shim daemon.

use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;

/// A duration such as `500ms`, `30s`, `5m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("is not a duration such as 500ms, 30s or 5m ({error})")),
    }
}

/// A size in bytes such as `65536`, `64KiB`, `256Mi`, `1GB`, within `1..=max`.
pub fn size(text: &str, max: u64) -> Result<u64, String> {
    let size = ByteSize::from_str(text)
        .map_err(|_| "is not a size such as 65536, 64KiB or 256Mi".to_owned())?
        .as_u64();
    match size {
        0 => Err("must be larger than zero".to_owned()),
        size if size > max => Err(format!("is larger than the maximum of {max} bytes")),
        size => Ok(size),
    }
}

/// A whole number within `min..=max`.
pub fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("is not a whole number from {min} to {max}"))
}

/// A name: 1 to 63 of `a-z A-Z 0-9 - _ .`, first and last a letter or digit.
pub fn name(text: &str) -> Result<String, String> {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() > cwasi_abi::FUNCTION_NAME_MAX {
        return Err(format!("is longer than {} bytes", cwasi_abi::FUNCTION_NAME_MAX));
    }
    if edge(text.chars().next()) && edge(text.chars().last()) && text.chars().all(inner) {
        return Ok(text.to_owned());
    }
    Err("is not a name: use letters, digits, `-`, `_`, `.`, first and last a letter or digit"
        .to_owned())
}

/// A comma-separated list, each entry trimmed and not empty.
pub fn list(text: &str) -> Result<Vec<String>, String> {
    let entries: Vec<_> = text.split(',').map(|entry| entry.trim().to_owned()).collect();
    if entries.iter().any(String::is_empty) {
        return Err("must be a comma-separated list without empty entries".to_owned());
    }
    Ok(entries)
}
