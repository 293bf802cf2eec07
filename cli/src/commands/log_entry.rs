//! A line of a function's log as JSON: the parts that `cwasi logs` prints as one text.
//!
//! A line of a guest's `log` is `LEVEL function: message  invocation=ID run=ID`, and begins with a time in a file. Only
//! lines with a time are divided: a function may print anything itself.

use std::time::SystemTime;

use cwasi_wire::log_line::split_time;
use serde::Serialize;

/// Levels of a guest's `log`.
const LEVELS: [&str; 5] = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"];
/// Before the id of the invocation.
const INVOCATION: &str = "  invocation=";
/// Before the id of the workflow's run.
const RUN: &str = " run=";

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry<'a> {
    /// The container that wrote it.
    pub container: &'a str,
    pub function: &'a str,
    /// When, in UTC; `None` for what the function printed itself.
    pub time: Option<String>,
    /// Level of a guest's `log`.
    pub level: Option<String>,
    /// The message, without what is in other fields.
    pub text: String,
    /// Id of the invocation.
    pub invocation: Option<String>,
    /// Id of the workflow's run.
    pub run: Option<String>,
}

impl<'a> LogEntry<'a> {
    /// Divides a line of a container's log.
    pub fn of(container: &'a str, function: &'a str, line: &[u8]) -> Self {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let (time, line) = match split_time(line) {
            Some((time, rest)) => (Some(written(time)), rest),
            None => (None, line),
        };
        let text = String::from_utf8_lossy(line).into_owned();
        let plain =
            Self { container, function, time, level: None, text, invocation: None, run: None };
        match plain.time.as_ref().and_then(|_| logged(&plain.text)) {
            Some((level, message, invocation, run)) => Self {
                level: Some(level.to_owned()),
                invocation: invocation.map(str::to_owned),
                run: run.map(str::to_owned),
                text: message.to_owned(),
                ..plain
            },
            None => plain,
        }
    }
}

fn written(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

/// Level, message and ids of a line of a guest's `log`.
fn logged(line: &str) -> Option<(&str, &str, Option<&str>, Option<&str>)> {
    let (level, rest) = line.split_once(' ')?;
    let (_function, message) = rest.split_once(": ")?;
    if !LEVELS.contains(&level) {
        return None;
    }
    let Some((text, ids)) = message.rsplit_once(INVOCATION) else {
        return Some((level, message, None, None));
    };
    let (invocation, run) = match ids.split_once(RUN) {
        Some((invocation, run)) => (invocation, Some(run)),
        None => (ids, None),
    };
    let are_ids = [Some(invocation), run].into_iter().flatten().all(is_id);
    if are_ids {
        Some((level, text, Some(invocation), run))
    } else {
        Some((level, message, None, None))
    }
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line; its level, text, invocation and run.
    type Case<'a> = (String, Option<&'a str>, &'a str, Option<&'a str>, Option<&'a str>);

    #[test]
    fn lines_are_divided_where_they_have_parts() {
        let time = "2026-11-23T04:31:45.123456Z";
        let run = "2b".repeat(16);
        let table: [Case<'_>; 7] = [
            ("text\n".to_owned(), None, "text", None, None),
            (format!("{time} cwasi: text\n"), None, "cwasi: text", None, None),
            (format!("{time} INFO f: a: b\n"), Some("INFO"), "a: b", None, None),
            (format!("{time} WARN f: a  invocation=1a\n"), Some("WARN"), "a", Some("1a"), None),
            (
                format!("{time} INFO f: a  invocation=1a run={run}"),
                Some("INFO"),
                "a",
                Some("1a"),
                Some(&run),
            ),
            (
                format!("{time} INFO f: a  invocation=of no one\n"),
                Some("INFO"),
                "a  invocation=of no one",
                None,
                None,
            ),
            // Printed by the function.
            ("INFO f: a  invocation=1a\n".to_owned(), None, "INFO f: a  invocation=1a", None, None),
        ];
        for (line, level, text, invocation, run) in table {
            let entry = LogEntry::of("w.f", "f", line.as_bytes());
            let owned = |text: Option<&str>| text.map(str::to_owned);
            let expected = LogEntry {
                container: "w.f",
                function: "f",
                time: line.starts_with(time).then(|| time.to_owned()),
                level: owned(level),
                text: text.to_owned(),
                invocation: owned(invocation),
                run: owned(run),
            };
            assert_eq!(entry, expected, "{line}");
        }
        assert_eq!(LogEntry::of("w.f", "f", b"\xff\n").text, "\u{fffd}");
    }
}
