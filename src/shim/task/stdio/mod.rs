//! A task's standard streams: containerd's fifos, log files, a logging program, or nothing.
//!
//! Init's output is the fifo itself, so no byte passes through the daemon, which only keeps its read end open: a reader
//! that goes away must not kill the guest with SIGPIPE. That of an exec'd process is copied ([`copying`]), and
//! so is that into a log file whose size is bounded ([`rotated_log`]). The input is a pipe that the daemon fills
//! from the fifo, because a guest that reads a fifo before `ctr` has opened it would see its end, and `ctr` does not
//! always call `CloseIO` when it is done: it may just close. A [`Terminal`] is one stream for all three, and copied.

pub mod copying;
mod input;
pub mod logger;
mod rotated_log;
mod terminal;
pub mod terminal_size;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use copying::{OutputPipe, is_pipe};
use cwasi_config::logs::Rotation;
use input::copy_input;
use logger::{LoggedContainer, Logger, LoggerError};
use rotated_log::LogPipe;
use terminal::Terminal;
use terminal_size::Size;

/// Where the streams lead, as containerd says.
#[derive(Clone, Debug, Default)]
pub struct Stdio {
    /// Path of a fifo, or empty.
    pub stdin: String,
    /// Path, `file://` or `binary://` URI, or empty.
    pub stdout: String,
    pub stderr: String,
}

/// A stream that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The file system refuses.
    #[error("{stream} {path} cannot be opened: {source}")]
    Open {
        stream: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    /// A log URI, or its program.
    #[error(transparent)]
    Logger(#[from] LoggerError),
    /// stderr of another program than stdout.
    #[error(
        "stderr {uri} is not stdout's: one logging program reads both, so name the same URI twice"
    )]
    LoggerOfStderr {
        /// What was asked for.
        uri: String,
    },
    /// Bounds of a log file that cannot be used.
    #[error(
        "{stream} {uri}: {problem}; a log URI looks like file:///var/log/x?max-size=10MiB&max-files=3"
    )]
    Rotation {
        stream: &'static str,
        /// What was asked for.
        uri: String,
        problem: String,
    },
    /// Something else.
    #[error("{stream} {uri} has an unknown scheme: use a fifo, file:///path or binary:///path")]
    Scheme {
        stream: &'static str,
        /// What was asked for.
        uri: String,
    },
}

/// The container's ends; dropped once its init has them.
#[derive(Debug)]
pub struct ContainerEnds {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    stderr_is_file: bool,
}

/// The container's end of one output.
struct Output {
    end: OwnedFd,
    /// It leads into a file, without anybody who adds times.
    is_file: bool,
}

impl Output {
    const fn into_file(end: OwnedFd) -> Self {
        Self { end, is_file: true }
    }

    const fn into_stream(end: OwnedFd) -> Self {
        Self { end, is_file: false }
    }
}

impl ContainerEnds {
    /// In the order in which a builder wants them.
    #[must_use]
    pub fn in_order(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }

    /// Where the container's errors go.
    #[must_use]
    pub fn stderr(&self) -> BorrowedFd<'_> {
        self.stderr.as_fd()
    }

    /// The container's errors go into a file: lines there need their times.
    #[must_use]
    pub const fn stderr_is_file(&self) -> bool {
        self.stderr_is_file
    }
}

#[derive(Debug, Default)]
pub struct KeptEnds {
    input: Option<Input>,
    outputs: Vec<OwnedFd>,
    terminal: Option<Console>,
    /// Outputs to copy, and those that are copied.
    pipes: Vec<OutputPipe>,
    copying: JoinSet<()>,
    /// Log files to fill, and those that are filled.
    log_pipes: Vec<LogPipe>,
    logs: JoinSet<()>,
    logger: Option<Logger>,
    /// Asked for before there was a terminal.
    size: Option<Size>,
}

#[derive(Debug)]
enum Input {
    /// The fifo to read from, and the write end of the container's input; `None` = its terminal.
    Opened(OwnedFd, Option<OwnedFd>),
    /// Being copied; dropping this ends it after what the fifo holds now.
    Copied { _until_closed: oneshot::Sender<()> },
}

#[derive(Debug)]
enum Console {
    /// Where its output will go.
    Opened(OwnedFd),
    Served(Terminal),
}

impl KeptEnds {
    /// Starts copying; called within the runtime once the process has its ends. `master` is that of its terminal.
    pub fn serve(&mut self, master: Option<OwnedFd>) {
        let served = self.serve_terminal(master).and_then(|()| self.serve_outputs());
        if let Err(error) = served.and_then(|()| self.serve_input()) {
            tracing::error!(%error, "streams are not copied");
        }
    }

    fn serve_terminal(&mut self, master: Option<OwnedFd>) -> io::Result<()> {
        if let (Some(Console::Opened(output)), Some(master)) = (self.terminal.take(), master) {
            let terminal = Terminal::serve(master, output, &mut self.copying)?;
            if let Some(size) = self.size {
                terminal.resize(size)?;
            }
            self.terminal = Some(Console::Served(terminal));
        }
        Ok(())
    }

    fn serve_outputs(&mut self) -> io::Result<()> {
        self.log_pipes.drain(..).try_for_each(|pipe| pipe.serve(&mut self.logs))?;
        self.pipes.drain(..).try_for_each(|pipe| pipe.serve(&mut self.copying))
    }

    fn serve_input(&mut self) -> io::Result<()> {
        let Some(Input::Opened(fifo, pipe)) = self.input.take() else { return Ok(()) };
        let fifo = Receiver::from_owned_fd(fifo)?;
        let (until_closed, closed) = oneshot::channel();
        match (pipe, &self.terminal) {
            (Some(pipe), _) => {
                tokio::spawn(copy_input(fifo, Sender::from_owned_fd(pipe)?, closed));
            }
            (None, Some(Console::Served(terminal))) => {
                tokio::spawn(copy_input(fifo, terminal.master(), closed));
            }
            (None, _) => return Ok(()),
        }
        self.input = Some(Input::Copied { _until_closed: until_closed });
        Ok(())
    }

    /// Sets the terminal's size, now or when there is one. Without a terminal it means nothing, as with runc.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resize(&mut self, size: Size) -> io::Result<()> {
        self.size = Some(size);
        match &self.terminal {
            Some(Console::Served(terminal)) => terminal.resize(size),
            Some(Console::Opened(_)) | None => Ok(()),
        }
    }

    /// The size that was asked for last.
    #[must_use]
    pub const fn size(&self) -> Option<Size> {
        self.size
    }

    /// Ends the input after what has been written to it.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// The copying of its output, to wait for.
    pub fn take_copying(&mut self) -> JoinSet<()> {
        std::mem::take(&mut self.copying)
    }

    /// The filling of its log files, to wait for once all its processes have ended.
    pub fn take_logs(&mut self) -> JoinSet<()> {
        std::mem::take(&mut self.logs)
    }

    /// Lets go of everything. Returns the logging program, to wait for.
    pub fn close(&mut self) -> Option<Logger> {
        self.close_input();
        self.terminal = None;
        self.pipes.clear();
        self.copying = JoinSet::new();
        self.log_pipes.clear();
        self.logs = JoinSet::new();
        self.outputs.clear();
        self.logger.take()
    }
}

/// Opens all three; blocks as long as the file system does, and until a logging program is ready.
///
/// # Errors
/// When one cannot be opened.
pub fn open(
    stdio: &Stdio,
    container: LoggedContainer<'_>,
) -> Result<(ContainerEnds, KeptEnds), IoError> {
    let mut kept = KeptEnds::default();
    let stdin = open_input(&stdio.stdin, &mut kept)?;
    let (stdout, twin) = if is_logged(&stdio.stdout) {
        let [stdout, stderr] = open_logger(&stdio.stdout, container, &mut kept)?;
        (stdout, Some(Output::into_stream(stderr)))
    } else {
        let Output { end, is_file } = open_output("stdout", &stdio.stdout, &mut kept)?;
        // One file has one writer, so that it keeps the order.
        let twin = if is_file {
            Some(end.try_clone().map_err(failed("stderr", &stdio.stderr))?)
        } else {
            None
        };
        (end, twin.map(Output::into_file))
    };
    let stderr = match twin {
        Some(twin) if stdio.stderr == stdio.stdout => twin,
        Some(_) | None => open_output("stderr", &stdio.stderr, &mut kept)?,
    };
    let Output { end: stderr, is_file: stderr_is_file } = stderr;
    Ok((ContainerEnds { stdin, stdout, stderr, stderr_is_file }, kept))
}

/// Opens those of an exec'd process: its outputs to fifos are copied.
///
/// # Errors
/// When one cannot be opened.
pub fn open_exec(
    stdio: &Stdio,
    container: LoggedContainer<'_>,
) -> Result<(ContainerEnds, KeptEnds), IoError> {
    let (mut ends, mut kept) = open(stdio, container)?;
    if !is_logged(&stdio.stdout) {
        ends.stdout = through_pipe("stdout", &stdio.stdout, ends.stdout, &mut kept)?;
        ends.stderr = through_pipe("stderr", &stdio.stderr, ends.stderr, &mut kept)?;
    }
    Ok((ends, kept))
}

/// A pipe to `output` where that is a fifo.
fn through_pipe(
    stream: &'static str,
    target: &str,
    output: OwnedFd,
    kept: &mut KeptEnds,
) -> Result<OwnedFd, IoError> {
    let failed = |error| failed(stream, target)(error);
    if !is_pipe(&output).map_err(failed)? {
        return Ok(output);
    }
    let (pipe, end) = OutputPipe::new(output).map_err(failed)?;
    kept.pipes.push(pipe);
    Ok(end)
}

/// Opens those of a process with a terminal, whose own ends lead nowhere.
///
/// # Errors
/// When one cannot be opened.
pub fn open_terminal(
    stdio: &Stdio,
    container: LoggedContainer<'_>,
) -> Result<(ContainerEnds, KeptEnds), IoError> {
    let (ends, mut kept) = open(&Stdio::default(), container)?;
    if let Some(fifo) = open_fifo(&stdio.stdin)? {
        kept.input = Some(Input::Opened(fifo, None));
    }
    let output = if is_logged(&stdio.stdout) {
        let [stdout, _] = open_logger(&stdio.stdout, container, &mut kept)?;
        stdout
    } else {
        open_output("stdout", &stdio.stdout, &mut kept)?.end
    };
    kept.terminal = Some(Console::Opened(output));
    Ok((ends, kept))
}

fn is_logged(target: &str) -> bool {
    target.starts_with("binary:")
}

/// Starts the logging program of `uri`; returns stdout and stderr for the container.
fn open_logger(
    uri: &str,
    container: LoggedContainer<'_>,
    kept: &mut KeptEnds,
) -> Result<[OwnedFd; 2], IoError> {
    let logged = logger::start(uri, container)?;
    kept.logger = Some(logged.logger);
    kept.outputs.extend(logged.readers);
    Ok(logged.writers)
}

fn failed<'a>(stream: &'static str, path: &'a str) -> impl FnOnce(io::Error) -> IoError + 'a {
    move |source| IoError::Open { stream, path: path.to_owned(), source }
}

fn nonblocking() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlag::O_NONBLOCK.bits());
    options
}

fn open_input(path: &str, kept: &mut KeptEnds) -> Result<OwnedFd, IoError> {
    let failed = |error| failed("stdin", path)(error);
    if path.is_empty() {
        return File::open("/dev/null").map(Into::into).map_err(failed);
    }
    let Some(fifo) = open_fifo(path)? else {
        return File::open(path).map(Into::into).map_err(failed);
    };
    let (reader, writer) = io::pipe().map_err(failed)?;
    kept.input = Some(Input::Opened(fifo, Some(writer.into())));
    Ok(reader.into())
}

/// The read end of an input fifo; `None` when `path` is none.
fn open_fifo(path: &str) -> Result<Option<OwnedFd>, IoError> {
    if path.is_empty() || !is_fifo(Path::new(path)).map_err(failed("stdin", path))? {
        return Ok(None);
    }
    // Does not wait for a writer; until there has been one, the fifo is silent, not at its end.
    let fifo = nonblocking().read(true).open(path).map_err(failed("stdin", path))?;
    Ok(Some(fifo.into()))
}

fn open_output(stream: &'static str, target: &str, kept: &mut KeptEnds) -> Result<Output, IoError> {
    let failed = |error| failed(stream, target)(error);
    let path = match target.split_once("://") {
        None if target.is_empty() => {
            let null = OpenOptions::new().write(true).open("/dev/null").map_err(failed)?;
            return Ok(Output::into_stream(null.into()));
        }
        None | Some(("fifo", _)) => target.trim_start_matches("fifo://"),
        Some(("file", _)) => return open_log(stream, target, kept),
        Some(("binary", _)) => return Err(IoError::LoggerOfStderr { uri: target.to_owned() }),
        Some(_) => return Err(IoError::Scheme { stream, uri: target.to_owned() }),
    };
    if !path.starts_with('/') {
        return Err(LoggerError::Uri { stream, uri: target.to_owned() }.into());
    }
    if !is_fifo(Path::new(path)).map_err(failed)? {
        return append(Path::new(path)).map_err(failed);
    }
    // With our own reader in place, opening for writing does not wait for containerd's.
    let reader = nonblocking().read(true).open(path).map_err(failed)?;
    let writer = OpenOptions::new().write(true).open(path).map_err(failed)?;
    kept.outputs.push(reader.into());
    Ok(Output::into_stream(writer.into()))
}

/// A log file, of which the daemon takes care if its size is bounded.
fn open_log(stream: &'static str, uri: &str, kept: &mut KeptEnds) -> Result<Output, IoError> {
    let failed = |error| failed(stream, uri)(error);
    let (path, query) = logger::parse(stream, uri)?;
    let rotation = Rotation::of_query(&query).map_err(|problem| IoError::Rotation {
        stream,
        uri: uri.to_owned(),
        problem,
    })?;
    let Some(rotation) = rotation else { return append(&path).map_err(failed) };
    let (pipe, end) = LogPipe::open(&path, rotation).map_err(failed)?;
    kept.log_pipes.push(pipe);
    Ok(Output::into_file(end))
}

fn is_fifo(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(meta) => Ok(meta.file_type().is_fifo()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn append(path: &Path) -> io::Result<Output> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let is_file = file.metadata()?.is_file();
    Ok(Output { end: file.into(), is_file })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::reaper::Reaper;

    fn fifo(dir: &Path, name: &str) -> String {
        let path = dir.join(name);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Without a logging program nobody hears of its end.
    fn opened(stdio: &Stdio) -> Result<(ContainerEnds, KeptEnds), IoError> {
        open(stdio, LoggedContainer { reaper: &Reaper::default(), namespace: "n", id: "c" })
    }

    /// A container that reads all its input; joins to what it read.
    fn guest(stdin: OwnedFd) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            File::from(stdin).read_to_end(&mut all).unwrap();
            all
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn input_waits_for_its_writer_and_ends_when_that_closes() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path(), "in");
        let (ends, mut kept) = opened(&Stdio { stdin: path.clone(), ..Stdio::default() }).unwrap();
        kept.serve(None);
        let guest = guest(ends.stdin);
        tokio::task::yield_now().await;
        assert!(!guest.is_finished());
        let mut client = OpenOptions::new().write(true).open(&path).unwrap();
        client.write_all(b"x").unwrap();
        drop(client);
        let read = tokio::task::spawn_blocking(|| guest.join().unwrap()).await.unwrap();
        assert_eq!(read, b"x");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn close_io_ends_the_input_after_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path(), "in");
        let (ends, mut kept) = opened(&Stdio { stdin: path.clone(), ..Stdio::default() }).unwrap();
        kept.serve(None);
        let guest = guest(ends.stdin);
        let mut client = OpenOptions::new().write(true).open(&path).unwrap();
        client.write_all(b"all of it").unwrap();
        kept.close_input();
        let read = tokio::task::spawn_blocking(|| guest.join().unwrap()).await.unwrap();
        assert_eq!(read, b"all of it");
    }

    #[test]
    fn a_vanished_reader_does_not_break_the_writer_and_the_end_reaches_readers() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path(), "out");
        let stdio = Stdio { stdout: path.clone(), ..Stdio::default() };
        let (ends, _kept) = opened(&stdio).unwrap();
        let mut guest = File::from(ends.stdout);
        drop(nonblocking().read(true).open(&path).unwrap());
        guest.write_all(b"hello").unwrap();
        let mut reader = nonblocking().read(true).open(&path).unwrap();
        drop(guest);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_terminals_output_reaches_a_logging_program() {
        let dir = tempfile::tempdir().unwrap();
        let (program, said) = (dir.path().join("logger"), fifo(dir.path(), "said"));
        fs::write(&program, "#!/bin/sh\nexec 5>&-\nexec cat <&3 > \"$1\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let stdio =
            Stdio { stdout: format!("binary://{}?{said}", program.display()), ..Stdio::default() };
        let container = LoggedContainer { reaper: &Reaper::default(), namespace: "n", id: "c" };
        let (_ends, mut kept) = open_terminal(&stdio, container).unwrap();
        let Some(Console::Opened(output)) = kept.terminal.take() else { panic!("{kept:?}") };
        File::from(output).write_all(b"on a terminal").unwrap();
        assert_eq!(fs::read_to_string(&said).unwrap(), "on a terminal");
    }

    #[test]
    fn files_are_appended_to_and_unknown_targets_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/log");
        let stdio = Stdio { stdout: format!("file://{}", path.display()), ..Stdio::default() };
        for _ in 0..2 {
            let (ends, _kept) = opened(&stdio).unwrap();
            File::from(ends.stdout).write_all(b"line\n").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\nline\n");
        let apart = Stdio { stderr: "binary:///bin/log".into(), ..Stdio::default() };
        assert!(matches!(opened(&apart), Err(IoError::LoggerOfStderr { .. })));
        let absent = Stdio { stdout: "binary:///no/such/program".into(), ..Stdio::default() };
        assert!(matches!(opened(&absent), Err(IoError::Logger(LoggerError::Start { .. }))));
        let unknown = Stdio { stderr: "ftp://x".into(), ..Stdio::default() };
        assert!(matches!(opened(&unknown), Err(IoError::Scheme { .. })));
        let small = Stdio { stdout: "file:///l?max-size=1".into(), ..Stdio::default() };
        assert!(matches!(opened(&small), Err(IoError::Rotation { stream: "stdout", .. })));
        let relative = Stdio { stdout: "file:x".into(), ..Stdio::default() };
        assert!(matches!(opened(&relative), Err(IoError::Logger(LoggerError::Uri { .. }))));
    }
}
