//! Prints a function's log line by line, as the user wants it: from a time or from the end, with times, as JSON.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::SystemTime;

use cwasi_wire::log_line::split_time;

use super::log_entry::LogEntry;
use super::log_lines::{Line, LogLines};
use cwasi_workflow::visible;

/// Which lines of a log are printed, and what of them.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    pub since: Option<SystemTime>,
    pub tail: Option<usize>,
    pub timestamps: bool,
    /// Each line begins with its container's id.
    pub named: bool,
    /// Each line is a JSON object.
    pub json: bool,
    /// Control characters stay.
    pub raw: bool,
}

/// The log of one container.
#[derive(Debug)]
pub struct LogPrinter {
    id: String,
    function: String,
    shown: Shown,
    lines: LogLines,
    /// Of the last line that has one.
    time: Option<SystemTime>,
    /// The last lines; `None` once they are printed.
    tail: Option<VecDeque<Vec<u8>>>,
    /// With JSON: a message whose next line may follow.
    entry: Option<LogEntry>,
}

impl LogPrinter {
    pub fn new(id: String, function: String, shown: Shown) -> Self {
        let tail = shown.tail.map(|_| VecDeque::new());
        Self { id, function, shown, lines: LogLines::default(), time: None, tail, entry: None }
    }

    /// The container's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Prints the lines that `bytes` end.
    pub fn push(&mut self, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
        let mut lines = std::mem::take(&mut self.lines);
        let printed = lines.push(bytes, |line| self.line(line, out));
        self.lines = lines;
        printed
    }

    /// Prints the last lines, if these are wanted, when no more can be read now; at the end also the unfinished one.
    pub fn rest(&mut self, out: &mut impl Write, end: bool) -> io::Result<()> {
        if end {
            let mut lines = std::mem::take(&mut self.lines);
            lines.finish(|line| self.line(line, out))?;
        }
        if let Some(entry) = self.entry.take() {
            self.keep(object(&entry)?, out)?;
        }
        for line in self.tail.take().into_iter().flatten() {
            self.print(&line, out)?;
        }
        out.flush()
    }

    /// Takes a line, if it is wanted.
    fn line(&mut self, line: Line<'_>, out: &mut impl Write) -> io::Result<()> {
        let Line { bytes, continues, is_cut } = line;
        let timed = if continues { None } else { split_time(bytes) };
        self.time = timed.map(|(time, _)| time).or(self.time);
        let is_early = |since| self.time.is_some_and(|time| time < since);
        if self.shown.since.is_some_and(is_early) {
            return Ok(());
        }
        if self.shown.json {
            let next = LogEntry::of(&self.id, &self.function, bytes);
            let next = match &mut self.entry {
                Some(entry) => entry.join(next),
                None => Some(next),
            };
            let before = next.and_then(|next| self.entry.replace(next));
            return before.map_or(Ok(()), |before| self.keep(object(&before)?, out));
        }
        let mut text = match timed {
            Some((_, text)) if !self.shown.timestamps => Cow::Borrowed(text),
            Some(_) | None => Cow::Borrowed(bytes),
        };
        if is_cut && !self.shown.raw {
            text.to_mut().push(b'\n');
        }
        self.keep(text.into_owned(), out)
    }

    /// Prints a line, or keeps it as one of the last.
    fn keep(&mut self, text: Vec<u8>, out: &mut impl Write) -> io::Result<()> {
        let (Some(tail), Some(max)) = (&mut self.tail, self.shown.tail) else {
            return self.print(&text, out);
        };
        tail.push_back(text);
        if tail.len() > max {
            tail.pop_front();
        }
        Ok(())
    }

    fn print(&self, text: &[u8], out: &mut impl Write) -> io::Result<()> {
        if self.shown.named {
            write!(out, "{} | ", self.id)?;
        }
        if self.shown.raw || self.shown.json {
            return out.write_all(text);
        }
        out.write_all(&visible::log_line(text))
    }
}

fn object(entry: &LogEntry) -> io::Result<Vec<u8>> {
    let object = serde_json::to_string(entry)?;
    Ok(format!("{}\n", visible::json(&object)).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Shown =
        Shown { since: None, tail: None, timestamps: false, named: false, json: false, raw: false };
    const TEXT: &str = "early\n\
        2026-11-23T04:00:00.000000Z one\n\
        of one\n\
        2026-11-23T05:00:00.000000Z two\n\
        unfinished";

    fn log(shown: Shown) -> LogPrinter {
        LogPrinter::new("w.f".to_owned(), "f".to_owned(), shown)
    }

    /// What is printed of a whole log.
    fn of(text: &str, shown: Shown) -> String {
        let (mut log, mut out) = (log(shown), Vec::new());
        // As logs are read.
        for chunk in text.as_bytes().chunks(64 * 1024) {
            log.push(chunk, &mut out).unwrap();
        }
        log.rest(&mut out, true).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn printed(shown: Shown) -> String {
        of(TEXT, shown)
    }

    fn since(time: &str) -> Option<SystemTime> {
        Some(humantime::parse_rfc3339(time).unwrap())
    }

    #[test]
    fn lines_are_selected_by_time_and_number() {
        assert_eq!(printed(ALL), "early\none\nof one\ntwo\nunfinished");
        assert_eq!(printed(Shown { timestamps: true, ..ALL }), TEXT);
        let after = Shown { since: since("2026-11-23T04:30:00Z"), ..ALL };
        assert_eq!(printed(after), "early\ntwo\nunfinished");
        assert_eq!(printed(Shown { tail: Some(1), ..after }), "unfinished");
        assert_eq!(printed(Shown { tail: Some(3), ..ALL }), "of one\ntwo\nunfinished");
        assert_eq!(printed(Shown { tail: Some(0), ..ALL }), "");
        let named = Shown { named: true, tail: Some(2), ..ALL };
        assert_eq!(printed(named), "w.f | two\nw.f | unfinished");
        let objects = printed(Shown { tail: Some(2), json: true, ..ALL });
        let lines: Vec<serde_json::Value> =
            objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let time = "2026-11-23T05:00:00.000000Z";
        assert_eq!((lines.len(), &lines[0]["time"]), (2, &time.into()), "{objects}");
        assert_eq!((&lines[0]["text"], &lines[1]["text"]), (&"two".into(), &"unfinished".into()));
        assert_eq!((&lines[1]["container"], &lines[1]["function"]), (&"w.f".into(), &"f".into()));
    }

    #[test]
    fn a_message_of_several_lines_is_one_object() {
        let time = "2026-11-23T04:00:00.000000Z";
        let text = format!("{time} INFO f: one\n{time} INFO f| two\n{time} INFO f: three\n");
        let texts = |shown| {
            let objects = of(&text, Shown { json: true, ..shown });
            let objects = objects.lines().map(|line| serde_json::from_str(line).unwrap());
            objects.map(|it: serde_json::Value| it["text"].as_str().unwrap().to_owned()).collect()
        };
        let texts: [Vec<String>; 2] = [texts(ALL), texts(Shown { tail: Some(2), ..ALL })];
        assert_eq!(texts, [["one\ntwo", "three"], ["one\ntwo", "three"]]);
        assert_eq!(of(&text, ALL), "INFO f: one\nINFO f| two\nINFO f: three\n");
    }

    #[test]
    fn control_characters_are_visible_unless_they_are_asked_for() {
        let text = "\u{1b}[2Jgone\u{9b}1m\r\n";
        let printed = |shown| of(text, shown);
        assert_eq!(printed(ALL), "\\x1b[2Jgone\\x9b1m\r\n");
        assert_eq!(printed(Shown { raw: true, ..ALL }), text);
        let object = printed(Shown { json: true, ..ALL });
        assert!(!object.trim_end().chars().any(char::is_control), "{object}");
        let object: serde_json::Value = serde_json::from_str(&object).unwrap();
        assert_eq!(object["text"], text.strip_suffix('\n').unwrap());
    }

    #[test]
    fn a_line_that_is_too_long_is_printed_as_several() {
        let text = "a".repeat(3 << 20);
        let printed = |shown| of(&text, shown);
        assert!(printed(Shown { raw: true, ..ALL }) == text);
        let named = printed(Shown { named: true, ..ALL });
        assert_eq!(named.lines().filter(|line| line.starts_with("w.f | a")).count(), 3);
        assert_eq!(printed(Shown { json: true, ..ALL }).lines().count(), 3);
    }

    #[test]
    fn lines_that_follow_the_tail_are_all_printed() {
        let mut log = log(Shown { tail: Some(1), ..ALL });
        let mut out = Vec::new();
        log.push(TEXT.as_bytes(), &mut out).unwrap();
        log.rest(&mut out, false).unwrap();
        assert_eq!(out, b"two\n");
        out.clear();
        log.push(b" no more\nthree\nfour", &mut out).unwrap();
        log.rest(&mut out, true).unwrap();
        assert_eq!(out, b"unfinished no more\nthree\nfour");
    }
}
