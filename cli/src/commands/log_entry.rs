//! A line of a function's log as JSON: the parts that `cwasi logs` prints as one text.
//!
//! A line of a guest's `log` is `LEVEL function: message  invocation=ID run=ID`, and begins with a time in a file. Only
//! lines with a time are divided: a function may print anything itself. Further lines of a message have `|` in place of
//! the colon: all of a message is one object.

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
pub struct LogEntry {
    /// The container that wrote it.
    pub container: String,
    pub function: String,
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
    /// It is a further line of the message before it.
    #[serde(skip)]
    continues: bool,
}

impl LogEntry {
    /// Divides a line of a container's log.
    pub fn of(container: &str, function: &str, line: &[u8]) -> Self {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let (time, line) = match split_time(line) {
            Some((time, rest)) => (Some(written(time)), rest),
            None => (None, line),
        };
        let text = String::from_utf8_lossy(line).into_owned();
        let plain = Self {
            container: container.to_owned(),
            function: function.to_owned(),
            time,
            level: None,
            text,
            invocation: None,
            run: None,
            continues: false,
        };
        match plain.time.as_ref().and_then(|_| logged(&plain.text)) {
            Some(Logged { level, message, invocation, run, continues }) => Self {
                level: Some(level.to_owned()),
                invocation: invocation.map(str::to_owned),
                run: run.map(str::to_owned),
                text: message.to_owned(),
                continues,
                ..plain
            },
            None => plain,
        }
    }

    /// Adds `next`, if it is the next line of the same message; otherwise gives it back.
    pub fn join(&mut self, next: Self) -> Option<Self> {
        let is_same = |one: &Self, other: &Self| {
            one.level.is_some()
                && (&one.level, &one.invocation, &one.run)
                    == (&other.level, &other.invocation, &other.run)
        };
        if !next.continues || !is_same(self, &next) {
            return Some(next);
        }
        self.text.push('\n');
        self.text.push_str(&next.text);
        None
    }
}

fn written(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

/// A line of a guest's `log`.
struct Logged<'a> {
    level: &'a str,
    message: &'a str,
    invocation: Option<&'a str>,
    run: Option<&'a str>,
    continues: bool,
}

fn logged(line: &str) -> Option<Logged<'_>> {
    let (level, rest) = line.split_once(' ')?;
    let (function, message) = rest.split_once(' ')?;
    let continues = function.ends_with('|');
    if !LEVELS.contains(&level) || !(continues || function.ends_with(':')) {
        return None;
    }
    let plain = Logged { level, message, invocation: None, run: None, continues };
    let Some((text, ids)) = message.rsplit_once(INVOCATION) else { return Some(plain) };
    let (invocation, run) = match ids.split_once(RUN) {
        Some((invocation, run)) => (invocation, Some(run)),
        None => (ids, None),
    };
    let are_ids = [Some(invocation), run].into_iter().flatten().all(is_id);
    if are_ids {
        Some(Logged { message: text, invocation: Some(invocation), run, ..plain })
    } else {
        Some(plain)
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
                container: "w.f".to_owned(),
                function: "f".to_owned(),
                time: line.starts_with(time).then(|| time.to_owned()),
                level: owned(level),
                text: text.to_owned(),
                invocation: owned(invocation),
                run: owned(run),
                continues: false,
            };
            assert_eq!(entry, expected, "{line}");
        }
        assert_eq!(LogEntry::of("w.f", "f", b"\xff\n").text, "\u{fffd}");
    }

    #[test]
    fn lines_of_one_message_are_one_entry() {
        let time = "2026-11-23T04:31:45.123456Z";
        let of = |text: &str| LogEntry::of("w.f", "f", format!("{time} {text}\n").as_bytes());
        let mut entry = of("WARN f: one  invocation=1a");
        assert_eq!(entry.join(of("WARN f| INFO g: two  invocation=1a")), None);
        assert_eq!(entry.join(of("WARN f|   invocation=1a")), None);
        assert_eq!(entry.text, "one\nINFO g: two\n");
        // Another one's, in between.
        for other in ["WARN f| three  invocation=2b", "WARN f: four  invocation=1a", "cwasi: five"]
        {
            assert_eq!(entry.join(of(other)), Some(of(other)), "{other}");
        }
    }
}
