//! The time before a line of the runtime in a log file: `2026-11-23T04:31:45.123456Z cwasi: …`. `cwasi logs` reads it.
//!
//! Only the runtime's own lines and those of a guest's `log` have one. What a guest prints is kept byte for byte. A
//! fifo gets no times: its reader, such as containerd's logs of pods, adds its own.

use std::time::SystemTime;

/// Bytes of a time, without the space behind it.
const TIME_LEN: usize = "2026-11-23T04:31:45.123456Z".len();

#[must_use]
pub fn with_time(time: SystemTime, line: &[u8]) -> Vec<u8> {
    let mut timed = humantime::format_rfc3339_micros(time).to_string().into_bytes();
    timed.push(b' ');
    timed.extend_from_slice(line);
    timed
}

/// Divides a line into its time and the rest; `None` for a line without one.
#[must_use]
pub fn split_time(line: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (time, rest) = line.split_at_checked(TIME_LEN)?;
    let time = humantime::parse_rfc3339(str::from_utf8(time).ok()?).ok()?;
    Some((time, rest.strip_prefix(b" ")?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_keeps_its_time() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_795_408_305_123_456);
        let line = with_time(time, b"INFO f: text\n");
        assert_eq!(line, b"2026-11-23T04:31:45.123456Z INFO f: text\n");
        assert_eq!(split_time(&line), Some((time, b"INFO f: text\n".as_slice())));
    }

    #[test]
    fn a_line_without_a_time_is_left_whole() {
        for line in [
            "",
            "text\n",
            "2026-11-23T04:31:45.123456Z",
            "2026-11-23T04:31:45.123456Ztext",
            "2026-13-23T04:31:45.123456Z text",
            "2026-11-23 04:31:45.123456Z text",
            "äääääääääääääääääääääääääääää",
        ] {
            assert_eq!(split_time(line.as_bytes()), None, "{line:?}");
        }
    }
}
