//! Lengths of time on the command line: `5s` and `1m 30s`, or plain seconds, as curl and kubectl take them.

use std::time::Duration;

/// Reads a length of time. A plain number is of seconds.
///
/// # Errors
/// When the text is no length of time; the text says why.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && let Ok(seconds) = text.parse()
    {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_number_is_of_seconds() {
        for (text, ms) in [("5", 5_000), ("0", 0), ("0.5", 500), ("5s", 5_000), ("1m 2s", 62_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", ".", "-5", "1e3", "inf", "5 potatoes", &"9".repeat(30)] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
