//! `cwasi logs`: what functions wrote, from the files that `run` and `deploy` make for secondaries.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;
use cwasi_wire::log_line::split_time;

use super::log_entry::LogEntry;
use super::log_lines::{Line, LogLines};
use super::selected::selected;
use crate::arguments::Global;
use crate::deployment::Node;
use crate::deployment::log_file::LogFile;
use crate::deployment::platform::Platform as _;
use crate::duration;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;
use cwasi_workflow::visible;

/// Between two polls of the files.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes that are copied at once.
const CHUNK: usize = 64 * 1024;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Logs {
    /// Containers or functions
    #[arg(required_unless_present = "workflow", value_name = "NAME")]
    names: Vec<String>,
    /// All of this workflow
    #[arg(long, value_name = "NAME", conflicts_with = "names")]
    workflow: Option<String>,
    /// Go on until the functions end, or until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Print the times of lines that have one: the runtime's, and those of a function's `log`
    #[arg(short, long)]
    timestamps: bool,
    /// Only lines since then: a duration such as 10m, or a time such as 2026-11-23T04:31:45Z
    ///
    /// A line without a time counts as the line before it. Lines before the first time are printed.
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<SystemTime>,
    /// Only this many lines from the end of each log
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Print the bytes as they are: terminals obey the control characters among them
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

/// Which lines of a log are printed, and what of them.
#[derive(Clone, Copy)]
struct Shown {
    since: Option<SystemTime>,
    tail: Option<usize>,
    timestamps: bool,
    /// Each line begins with its container's id.
    named: bool,
    /// Each line is a JSON object.
    json: bool,
    /// Control characters stay.
    raw: bool,
}

/// The log of one container.
struct Log<F> {
    id: String,
    function: String,
    file: F,
    shown: Shown,
    lines: LogLines,
    /// Of the last line that has one.
    time: Option<SystemTime>,
    /// The last lines; `None` once they are printed.
    tail: Option<VecDeque<Vec<u8>>>,
}

fn since(text: &str) -> Result<SystemTime, String> {
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        return Ok(time);
    }
    let ago = duration::parse(text)
        .map_err(|error| format!("{error}; a time looks like 2026-11-23T04:31:45Z"))?;
    SystemTime::now().checked_sub(ago).ok_or_else(|| "so long ago there was no time".to_owned())
}

impl Logs {
    /// Prints them; lines of several containers with the container's id.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let containers = node.containerd.containers().await?;
        let containers = selected(containers, &self.names, self.workflow.as_deref(), global)?;
        let Self { since, tail, timestamps, raw, .. } = self;
        let json = global.json;
        let named = !json && containers.len() > 1;
        let shown = Shown { since, tail, timestamps, named, json, raw };
        let mut logs = Vec::new();
        for container in containers {
            let path = node.log(&container.id);
            let file = LogFile::open(&path).with_context(|| {
                format!(
                    "{} has no log at {}: cwasi run and cwasi deploy make one for each secondary",
                    container.id,
                    path.display()
                )
            });
            let file = file.map_err(|error| Failure::new(Exit::Missing, error))?;
            let function = container.function().to_owned();
            logs.push(Log::new(container.id, function, file, shown));
        }
        let mut interrupt = Interrupt::new()?;
        loop {
            // Before the last poll: what was written before the end is read.
            let tasks = node.containerd.tasks().await?;
            let alive = |log: &Log<LogFile>| tasks.get(&log.id).is_some_and(|task| task.is_alive());
            let goes_on = self.follow && logs.iter().any(alive);
            for log in &mut logs {
                log.copy(&mut io::stdout().lock(), !goes_on)?;
            }
            if !goes_on {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::select! {
                exit = interrupt.received() => return Ok(exit.into()),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

impl<F: io::Read> Log<F> {
    fn new(id: String, function: String, file: F, shown: Shown) -> Self {
        let tail = shown.tail.map(|_| VecDeque::new());
        Self { id, function, file, shown, lines: LogLines::default(), time: None, tail }
    }

    /// Prints the new lines; the unfinished one only at the end.
    fn copy(&mut self, out: &mut impl Write, end: bool) -> Result<(), Failure> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = self.file.read(&mut chunk);
            let len = read.with_context(|| format!("the log of {} cannot be read", self.id))?;
            let mut lines = std::mem::take(&mut self.lines);
            let mut each = |line: Line<'_>| self.line(line, out);
            let printed = match len {
                0 if end => lines.finish(each),
                0 => Ok(()),
                _ => lines.push(&chunk[..len], &mut each),
            };
            self.lines = lines;
            printed.map_err(output::failure)?;
            if len == 0 {
                for line in self.tail.take().into_iter().flatten() {
                    self.print(&line, out).map_err(output::failure)?;
                }
                return out.flush().map_err(output::failure);
            }
        }
    }

    /// Prints a line, or keeps it as one of the last.
    fn line(&mut self, line: Line<'_>, out: &mut impl Write) -> io::Result<()> {
        let Line { bytes, continues, is_cut } = line;
        let timed = if continues { None } else { split_time(bytes) };
        self.time = timed.map(|(time, _)| time).or(self.time);
        let is_early = |since| self.time.is_some_and(|time| time < since);
        if self.shown.since.is_some_and(is_early) {
            return Ok(());
        }
        let mut text = match timed {
            _ if self.shown.json => Cow::Owned(self.object(bytes)?),
            Some((_, text)) if !self.shown.timestamps => Cow::Borrowed(text),
            Some(_) | None => Cow::Borrowed(bytes),
        };
        if is_cut && !self.shown.raw && !self.shown.json {
            text.to_mut().push(b'\n');
        }
        let (Some(tail), Some(max)) = (&mut self.tail, self.shown.tail) else {
            return self.print(&text, out);
        };
        tail.push_back(text.into_owned());
        if tail.len() > max {
            tail.pop_front();
        }
        Ok(())
    }

    fn object(&self, line: &[u8]) -> io::Result<Vec<u8>> {
        let object = serde_json::to_string(&LogEntry::of(&self.id, &self.function, line))?;
        Ok(format!("{}\n", visible::json(&object)).into_bytes())
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

    fn log(text: &str, shown: Shown) -> Log<std::fs::File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        Log::new("w.f".to_owned(), "f".to_owned(), file, shown)
    }

    fn printed(shown: Shown) -> String {
        let mut out = Vec::new();
        log(TEXT, shown).copy(&mut out, true).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_selected_by_time_and_number() {
        let since = |text| Some(since(text).unwrap());
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
    fn control_characters_are_visible_unless_they_are_asked_for() {
        let text = "\u{1b}[2Jgone\u{9b}1m\r\n";
        let printed = |shown| {
            let mut out = Vec::new();
            log(text, shown).copy(&mut out, true).unwrap();
            String::from_utf8(out).unwrap()
        };
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
        let printed = |shown| {
            let mut out = Vec::new();
            log(&text, shown).copy(&mut out, true).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(printed(Shown { raw: true, ..ALL }) == text);
        let named = printed(Shown { named: true, ..ALL });
        assert_eq!(named.lines().filter(|line| line.starts_with("w.f | a")).count(), 3);
        assert_eq!(printed(Shown { json: true, ..ALL }).lines().count(), 3);
    }

    #[test]
    fn lines_that_follow_the_tail_are_all_printed() {
        let mut log = log(TEXT, Shown { tail: Some(1), ..ALL });
        let mut out = Vec::new();
        log.copy(&mut out, false).unwrap();
        assert_eq!(out, b"two\n");
        let mut writer = log.file.try_clone().unwrap();
        writer.write_all(b" no more\nthree\nfour").unwrap();
        std::io::Seek::seek(&mut writer, io::SeekFrom::Start(TEXT.len() as u64)).unwrap();
        out.clear();
        log.copy(&mut out, true).unwrap();
        assert_eq!(out, b"unfinished no more\nthree\nfour");
    }

    #[test]
    fn a_time_is_a_duration_or_a_moment() {
        let now = SystemTime::now();
        let ago = now.duration_since(since("10m").unwrap()).unwrap_or_default();
        assert!(ago <= Duration::from_secs(600) && ago > Duration::from_secs(500), "{ago:?}");
        for (text, part) in [("soon", "looks like"), ("9999999999999y", "")] {
            assert!(since(text).unwrap_err().contains(part), "{text}");
        }
    }
}
