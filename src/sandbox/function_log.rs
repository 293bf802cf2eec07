//! A function's log: lines of its guests' `log` and of the runtime on the function's stderr, beside the guests' own
//! output. On its way into a file, each line has its time ([`log_line`]).
//!
//! Runs in init and in its workers. A line that does not fit into stderr's pipe is dropped and counted, so a function
//! never hangs because its log has no reader. When there is room again, a line reports the number of dropped lines. A
//! worker waits a moment for a slow reader, and then no more until a line has fitted. Init never waits. The log writes
//! through an open file of its own that does not block; the guest's stderr is another open file of the same pipe, and
//! blocks.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use cwasi_sys::counter::SharedCounters;
use cwasi_vm::{Context, Level, LogSink};
use cwasi_wire::log_line;

/// Longest line of the runtime in bytes, its end included: a pipe takes that much whole or not at all (`PIPE_BUF`).
pub const LINE_MAX: usize = 4096;
/// How long a worker waits for a reader that took the lines before, in milliseconds.
const READER_WAIT_MS: u16 = 50;
/// How long the last line of a process waits for room, in milliseconds.
pub const LAST_LINE_WAIT_MS: u16 = 1000;

/// A line of the runtime: `cwasi: text`, cut to [`LINE_MAX`].
pub fn host_line(text: &str) -> String {
    let mut line = record("cwasi", text, "");
    if line.len() > LINE_MAX {
        line.truncate(line.floor_char_boundary(LINE_MAX - 1));
        line.push('\n');
    }
    line
}

/// A record: `HEAD: text`, and at its end `ids`. Each further line of a text has head and ids, too, and `|` in place of
/// the colon, so that no text is taken for another record.
fn record(head: &str, text: &str, ids: &str) -> String {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut record = String::with_capacity(head.len() + text.len() + ids.len() + 3);
    for (number, line) in text.split('\n').enumerate() {
        let mark = if number == 0 { ": " } else { "| " };
        record.extend([head, mark, line, ids, "\n"]);
    }
    record
}

/// The log of one process of a function.
#[derive(Debug)]
pub struct FunctionLog {
    file: File,
    is_pipe: bool,
    has_times: bool,
    /// It has no reader, and will have none.
    is_broken: Cell<bool>,
    /// The last line fitted.
    is_read: Cell<bool>,
    /// How long a line waits for room when the one before has fitted, in milliseconds.
    wait_ms: u16,
    /// The end of a line that the pipe had no room for. Only lines of invocations are that long.
    rest: RefCell<Vec<u8>>,
    /// Dropped lines that were not reported yet, in all processes of the function.
    dropped: Rc<SharedCounters<1>>,
}

impl FunctionLog {
    /// The log over stderr as [`append_without_waiting`](cwasi_sys::reopen::append_without_waiting) opens it, whose
    /// lines may begin with their times.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(fd: OwnedFd, has_times: bool) -> io::Result<Self> {
        Ok(Self::over(fd, Rc::new(SharedCounters::new()?), has_times, 0))
    }

    /// The same log for a forked process, with a descriptor of its own.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn in_worker(&self) -> io::Result<Self> {
        let fd = self.file.as_fd().try_clone_to_owned()?;
        Ok(Self::over(fd, Rc::clone(&self.dropped), self.has_times, READER_WAIT_MS))
    }

    fn over(fd: OwnedFd, dropped: Rc<SharedCounters<1>>, has_times: bool, wait_ms: u16) -> Self {
        let file = File::from(fd);
        let is_pipe = fcntl(&file, FcntlArg::F_GETPIPE_SZ).is_ok();
        let (is_broken, is_read) = (Cell::new(false), Cell::new(true));
        let rest = RefCell::default();
        Self { file, is_pipe, has_times, is_broken, is_read, wait_ms, rest, dropped }
    }

    /// A line of the runtime.
    pub fn line(&self, text: &str) {
        self.write(host_line(text).as_bytes());
    }

    /// A line of the runtime about an invocation, with its ids. A longer text than a line has is cut.
    pub fn line_of(&self, context: &Context, text: &str) {
        let text = &text[..text.floor_char_boundary(LINE_MAX)];
        self.write(record("cwasi", text, &ids(context)).as_bytes());
    }

    /// The last line of a process: waits a moment for room.
    pub fn last_line(&self, text: &str) {
        // Without room the line is dropped.
        let _has_room = wait_for_room(self.file.as_fd(), LAST_LINE_WAIT_MS);
        self.line(text);
    }

    /// To be polled for room, while [`Self::wants_room`].
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// True while there are unreported dropped lines.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.is_pipe && !self.is_broken.get() && self.dropped[0].load(Relaxed) > 0
    }

    /// Reports the number of dropped lines if there is room, or else later.
    pub fn report_dropped(&self) {
        let count = self.dropped[0].swap(0, Relaxed);
        if count == 0 {
            return;
        }
        let lines = if count == 1 { "line" } else { "lines" };
        let text = format!("{count} log {lines} dropped: this function's stderr was full");
        if self.try_write(host_line(&text).as_bytes()).is_err() {
            self.dropped[0].fetch_add(count, Relaxed);
        }
    }

    /// Writes a record, or counts it. Each of its lines has the time.
    fn write(&self, line: &[u8]) {
        let with_times = || {
            let (now, lines) = (SystemTime::now(), line.split_inclusive(|byte| *byte == b'\n'));
            lines.flat_map(|line| log_line::with_time(now, line)).collect::<Vec<u8>>()
        };
        let timed = self.has_times.then(with_times);
        let line = timed.as_deref().unwrap_or(line);
        if self.put(line) {
            self.is_read.set(true);
            return;
        }
        let waits = self.is_read.replace(false) && self.wait_ms > 0;
        if waits && wait_for_room(self.file.as_fd(), self.wait_ms) && self.put(line) {
            self.is_read.set(true);
        } else {
            self.dropped[0].fetch_add(1, Relaxed);
        }
    }

    /// Writes a line behind everything that comes before it; false when there is no room.
    fn put(&self, line: &[u8]) -> bool {
        if self.write_rest() && self.dropped[0].load(Relaxed) > 0 {
            self.report_dropped();
        }
        // Otherwise there is no room, or a reader would take this line for one that came before those that it missed.
        let is_next = self.rest.borrow().is_empty() && self.dropped[0].load(Relaxed) == 0;
        let written = is_next.then(|| self.try_write(line).ok()).flatten();
        if let Some(len) = written {
            self.rest.borrow_mut().extend(&line[len..]);
        }
        written.is_some()
    }

    /// The end of the line before; false when there is no room for it yet.
    fn write_rest(&self) -> bool {
        let mut rest = self.rest.borrow_mut();
        if !rest.is_empty() {
            let len = self.try_write(&rest).unwrap_or(0);
            rest.drain(..len);
        }
        rest.is_empty()
    }

    /// Writes what there is room for: all of it, up to [`LINE_MAX`] bytes.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match (&self.file).write(bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_broken.set(error.kind() == ErrorKind::BrokenPipe);
                    return Err(error);
                }
                written => return written,
            }
        }
    }
}

/// Waits until a write would not wait, for a bounded time; false when it would still.
#[must_use]
pub fn wait_for_room(fd: BorrowedFd<'_>, wait_ms: u16) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::from(wait_ms)).is_ok_and(|ready| ready > 0)
}

/// Which of the function's own output streams has no room now, so that a guest's write to it waits for a reader.
#[must_use]
pub fn full_stream(with_stdout: bool) -> Option<&'static str> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let stdout = with_stdout.then(|| ("stdout", stdout.as_fd()));
    let mut streams = stdout.into_iter().chain([("stderr", stderr.as_fd())]);
    streams.find(|(_, fd)| is_full(*fd)).map(|(name, _)| name)
}

/// For an error: why an invocation may not have ended.
pub fn unread(stream: &str) -> String {
    format!("; its {stream} is full and has no reader, so it may have waited in a write")
}

fn is_full(fd: BorrowedFd<'_>) -> bool {
    !wait_for_room(fd, 0)
}

/// Records of guests: `LEVEL function: message  invocation=ID run=ID`, and `LEVEL function| …` for further lines of a
/// message. A line without an invocation has no ids, and an invocation outside of a run has no second one.
#[derive(Clone, Debug)]
pub struct GuestLog(pub Option<Rc<FunctionLog>>);

impl LogSink for GuestLog {
    fn log(&mut self, level: Level, context: &Context, message: &str) {
        if let Some(log) = &self.0 {
            let head = format!("{} {}", level.name(), context.function);
            log.write(record(&head, message, &ids(context)).as_bytes());
        }
    }
}

fn ids(context: &Context) -> String {
    if context.invocation_id.is_empty() {
        return String::new();
    }
    let run = context.run.map_or_else(String::new, |run| format!(" run={run}"));
    format!("  invocation={}{run}", context.invocation_id)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use cwasi_sys::reopen::append_without_waiting;
    use cwasi_wire::ids::RunId;

    /// A log over a pipe whose other writers block, and the pipe's end.
    fn log() -> (FunctionLog, io::PipeReader, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        let log = FunctionLog::new(append_without_waiting(&writer).unwrap(), false).unwrap();
        (log, reader, writer)
    }

    fn read_all(log: FunctionLog, mut reader: io::PipeReader, writer: io::PipeWriter) -> String {
        drop((log, writer));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn lines_in_a_file_have_their_times() {
        let file = tempfile::tempfile().unwrap();
        let log = FunctionLog::new(append_without_waiting(&file).unwrap(), true).unwrap();
        let began = SystemTime::now();
        log.line("text");
        GuestLog(Some(Rc::new(log))).log(Level::Warn, &Context::default(), "odd");
        let mut text = Vec::new();
        (&file).read_to_end(&mut text).unwrap();
        let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
        let [(first, host), (second, guest)] =
            [0, 1].map(|at| log_line::split_time(lines[at]).unwrap());
        assert_eq!((host, guest), (b"cwasi: text\n".as_slice(), b"WARN : odd\n".as_slice()));
        // Times are written in whole microseconds.
        let began = began - std::time::Duration::from_micros(1);
        assert!(began <= first && first <= second && second <= SystemTime::now());
    }

    #[test]
    fn lines_of_guests_end_with_ids() {
        let line = |context: &Context| {
            let (log, reader, writer) = log();
            GuestLog(Some(Rc::new(log))).log(Level::Info, context, "text");
            drop(writer);
            io::read_to_string(reader).unwrap()
        };
        let mut context = Context { function: "f".into(), ..Context::default() };
        assert_eq!(line(&context), "INFO f: text\n");
        context.invocation_id = "1a".into();
        assert_eq!(line(&context), "INFO f: text  invocation=1a\n");
        context.run = Some(RunId([0x2b; 16]));
        let run = "2b".repeat(16);
        assert_eq!(line(&context), format!("INFO f: text  invocation=1a run={run}\n"));
    }

    #[test]
    fn a_message_of_several_lines_is_one_record() {
        let file = tempfile::tempfile().unwrap();
        let log = FunctionLog::new(append_without_waiting(&file).unwrap(), true).unwrap();
        let log = Rc::new(log);
        let context =
            Context { function: "f".into(), invocation_id: "1a".into(), ..Context::default() };
        let message = "one\n2026-11-23T04:31:45.123456Z INFO g: forged  invocation=2b\n\n";
        GuestLog(Some(Rc::clone(&log))).log(Level::Warn, &context, message);
        log.line("trap: two\ncwasi: forged");
        let mut text = String::new();
        (&file).read_to_string(&mut text).unwrap();
        let lines: Vec<_> = text
            .split_inclusive('\n')
            .map(|line| str::from_utf8(log_line::split_time(line.as_bytes()).unwrap().1).unwrap())
            .collect();
        assert_eq!(
            lines,
            [
                "WARN f: one  invocation=1a\n",
                "WARN f| 2026-11-23T04:31:45.123456Z INFO g: forged  invocation=2b  invocation=1a\n",
                "WARN f|   invocation=1a\n",
                "cwasi: trap: two\n",
                "cwasi| cwasi: forged\n",
            ]
        );
    }

    #[test]
    fn lines_without_a_reader_are_dropped_and_counted_and_told_when_one_comes() {
        let (log, mut reader, writer) = log();
        for number in 0..5000 {
            log.line(&format!("line {number} of many, unread for a while"));
        }
        assert!(log.wants_room() && is_full(writer.as_fd()));
        let mut first = vec![0; 32 * 1024];
        reader.read_exact(&mut first).unwrap();
        log.line("after");
        assert!(!log.wants_room());
        let text = String::from_utf8(first).unwrap() + &read_all(log, reader, writer);
        let lines: Vec<_> = text.lines().collect();
        let [.., told, last] = &lines[..] else { panic!("{text}") };
        assert_eq!(*last, "cwasi: after");
        let kept = lines.len() - 2;
        let expected =
            format!("cwasi: {} log lines dropped: this function's stderr was full", 5000 - kept);
        assert_eq!(*told, expected);
        assert!(lines[..kept].iter().all(|line| line.ends_with("for a while")), "all are whole");
    }

    #[test]
    fn a_long_line_that_fits_only_in_part_is_completed_before_the_next() {
        let (log, mut reader, writer) = log();
        let long = format!("{}\n", "x".repeat(16_384));
        let mut written = 0;
        while log.dropped[0].load(Relaxed) == 0 {
            log.write(long.as_bytes());
            written += 1;
        }
        let mut start = vec![0; 48 * 1024];
        reader.read_exact(&mut start).unwrap();
        log.line("after");
        let text = String::from_utf8(start).unwrap() + &read_all(log, reader, writer);
        let whole = text.lines().filter(|line| line.len() == 16_384).count();
        assert_eq!(
            (whole, text.lines().count()),
            (written - 1, written + 1),
            "count and last line"
        );
    }

    #[test]
    fn a_slow_reader_misses_nothing() {
        let (log, mut reader, writer) = log();
        let fd = log.file.as_fd().try_clone_to_owned().unwrap();
        let patient = FunctionLog::over(fd, Rc::clone(&log.dropped), false, u16::MAX);
        let reading = std::thread::spawn(move || {
            let mut text = Vec::new();
            let mut chunk = vec![0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut chunk) {
                text.extend(&chunk[..len]);
                std::thread::yield_now();
            }
            text
        });
        for number in 0..5000 {
            patient.line(&format!("line {number} of many that somebody reads slowly"));
        }
        drop((log, patient, writer));
        let text = String::from_utf8(reading.join().unwrap()).unwrap();
        assert_eq!(text.lines().count(), 5000);
        assert!(text.lines().last().unwrap().starts_with("cwasi: line 4999"));
    }

    #[test]
    fn without_any_reader_nothing_is_waited_for() {
        let (log, reader, _writer) = log();
        drop(reader);
        log.line("lost");
        assert!(!log.wants_room(), "a poll would always return at once");
    }
}
