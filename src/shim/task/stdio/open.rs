//! Opens a process's streams.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use super::copying::{OutputPipe, is_pipe};
use super::logger::{self, LoggedContainer, LoggerError};
use super::relay::{Console, Input, StdioRelay};
use super::rotated_log::LogPipe;
use super::{IoError, Stdio};
use cwasi_config::logs::Rotation;

/// The container's descriptors; dropped once its init has them.
#[derive(Debug)]
pub struct ContainerStdio {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    stderr_is_file: bool,
}

/// The container's end of one output.
struct Output {
    end: OwnedFd,
    /// It leads into a file, and no logging program adds times.
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

impl ContainerStdio {
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

/// Opens all three; blocks as long as the file system does, and until a logging program is ready.
///
/// # Errors
/// When one cannot be opened.
pub fn open(
    stdio: &Stdio,
    container: LoggedContainer<'_>,
) -> Result<(ContainerStdio, StdioRelay), IoError> {
    let mut relay = StdioRelay::default();
    let stdin = open_input(&stdio.stdin, &mut relay)?;
    let (stdout, twin) = if is_logged(&stdio.stdout) {
        let [stdout, stderr] = open_logger(&stdio.stdout, container, &mut relay)?;
        (stdout, Some(Output::into_stream(stderr)))
    } else {
        let Output { end, is_file } = open_output("stdout", &stdio.stdout, &mut relay)?;
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
        Some(_) | None => open_output("stderr", &stdio.stderr, &mut relay)?,
    };
    let Output { end: stderr, is_file: stderr_is_file } = stderr;
    Ok((ContainerStdio { stdin, stdout, stderr, stderr_is_file }, relay))
}

/// Opens those of an exec'd process: its outputs to fifos are copied.
///
/// # Errors
/// When one cannot be opened.
pub fn open_exec(
    stdio: &Stdio,
    container: LoggedContainer<'_>,
) -> Result<(ContainerStdio, StdioRelay), IoError> {
    let (mut streams, mut relay) = open(stdio, container)?;
    if !is_logged(&stdio.stdout) {
        streams.stdout = through_pipe("stdout", &stdio.stdout, streams.stdout, &mut relay)?;
        streams.stderr = through_pipe("stderr", &stdio.stderr, streams.stderr, &mut relay)?;
    }
    Ok((streams, relay))
}

/// A pipe to `output` where that is a fifo.
fn through_pipe(
    stream: &'static str,
    target: &str,
    output: OwnedFd,
    relay: &mut StdioRelay,
) -> Result<OwnedFd, IoError> {
    let failed = |error| failed(stream, target)(error);
    if !is_pipe(&output).map_err(failed)? {
        return Ok(output);
    }
    let (pipe, end) = OutputPipe::new(output).map_err(failed)?;
    relay.pipes.push(pipe);
    Ok(end)
}

/// Opens those of a process with a terminal, whose own descriptors lead nowhere.
///
/// # Errors
/// When one cannot be opened.
pub fn open_terminal(
    stdio: &Stdio,
    container: LoggedContainer<'_>,
) -> Result<(ContainerStdio, StdioRelay), IoError> {
    let (streams, mut relay) = open(&Stdio::default(), container)?;
    if let Some(fifo) = open_fifo(&stdio.stdin)? {
        relay.input = Some(Input::Opened(fifo, None));
    }
    let output = if is_logged(&stdio.stdout) {
        let [stdout, _] = open_logger(&stdio.stdout, container, &mut relay)?;
        stdout
    } else {
        open_output("stdout", &stdio.stdout, &mut relay)?.end
    };
    relay.terminal = Some(Console::Opened(output));
    Ok((streams, relay))
}

fn is_logged(target: &str) -> bool {
    target.starts_with("binary:")
}

/// Starts the logging program of `uri`; returns stdout and stderr for the container.
fn open_logger(
    uri: &str,
    container: LoggedContainer<'_>,
    relay: &mut StdioRelay,
) -> Result<[OwnedFd; 2], IoError> {
    let logged = logger::start(uri, container)?;
    relay.logger = Some(logged.logger);
    relay.outputs.extend(logged.readers);
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

fn open_input(path: &str, relay: &mut StdioRelay) -> Result<OwnedFd, IoError> {
    let failed = |error| failed("stdin", path)(error);
    if path.is_empty() {
        return File::open("/dev/null").map(Into::into).map_err(failed);
    }
    let Some(fifo) = open_fifo(path)? else {
        return File::open(path).map(Into::into).map_err(failed);
    };
    let (reader, writer) = io::pipe().map_err(failed)?;
    relay.input = Some(Input::Opened(fifo, Some(writer.into())));
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

fn open_output(
    stream: &'static str,
    target: &str,
    relay: &mut StdioRelay,
) -> Result<Output, IoError> {
    let failed = |error| failed(stream, target)(error);
    let path = match target.split_once("://") {
        None if target.is_empty() => {
            let null = OpenOptions::new().write(true).open("/dev/null").map_err(failed)?;
            return Ok(Output::into_stream(null.into()));
        }
        None | Some(("fifo", _)) => target.trim_start_matches("fifo://"),
        Some(("file", _)) => return open_log(stream, target, relay),
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
    relay.outputs.push(reader.into());
    Ok(Output::into_stream(writer.into()))
}

/// A log file, of which the daemon takes care if its size is bounded.
fn open_log(stream: &'static str, uri: &str, relay: &mut StdioRelay) -> Result<Output, IoError> {
    let failed = |error| failed(stream, uri)(error);
    let (path, query) = logger::parse(stream, uri)?;
    let rotation = Rotation::of_query(&query).map_err(|problem| IoError::Rotation {
        stream,
        uri: uri.to_owned(),
        problem,
    })?;
    let Some(rotation) = rotation else { return append(&path).map_err(failed) };
    let (pipe, end) = LogPipe::open(&path, rotation).map_err(failed)?;
    relay.log_pipes.push(pipe);
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

    /// Without a logging program, no one waits for its end.
    fn opened(stdio: &Stdio) -> Result<(ContainerStdio, StdioRelay), IoError> {
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

    /// A container whose input comes from a FIFO: its path, the container, and what copies.
    fn served(dir: &Path) -> (String, std::thread::JoinHandle<Vec<u8>>, StdioRelay) {
        let path = fifo(dir, "in");
        let stdio = Stdio { stdin: path.clone(), ..Stdio::default() };
        let (streams, mut relay) = opened(&stdio).unwrap();
        relay.serve(None);
        (path, guest(streams.stdin), relay)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn input_ends_with_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let (path, guest, _relay) = served(dir.path());
        tokio::task::yield_now().await;
        assert!(!guest.is_finished());
        let mut client = OpenOptions::new().write(true).open(&path).unwrap();
        client.write_all(b"x").unwrap();
        drop(client);
        let read = tokio::task::spawn_blocking(|| guest.join().unwrap()).await.unwrap();
        assert_eq!(read, b"x");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn close_io_ends_the_input() {
        let dir = tempfile::tempdir().unwrap();
        let (path, guest, mut relay) = served(dir.path());
        let mut client = OpenOptions::new().write(true).open(&path).unwrap();
        client.write_all(b"all of it").unwrap();
        relay.close_input();
        let read = tokio::task::spawn_blocking(|| guest.join().unwrap()).await.unwrap();
        assert_eq!(read, b"all of it");
    }

    #[test]
    fn a_vanished_reader_does_not_break_the_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path(), "out");
        let stdio = Stdio { stdout: path.clone(), ..Stdio::default() };
        let (streams, _relay) = opened(&stdio).unwrap();
        let mut guest = File::from(streams.stdout);
        drop(nonblocking().read(true).open(&path).unwrap());
        guest.write_all(b"hello").unwrap();
        let mut reader = nonblocking().read(true).open(&path).unwrap();
        drop(guest);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_logging_program_reads_a_terminal() {
        let dir = tempfile::tempdir().unwrap();
        let (program, said) = (dir.path().join("logger"), fifo(dir.path(), "said"));
        fs::write(&program, "#!/bin/sh\nexec 5>&-\nexec cat <&3 > \"$1\"\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let stdio =
            Stdio { stdout: format!("binary://{}?{said}", program.display()), ..Stdio::default() };
        let container = LoggedContainer { reaper: &Reaper::default(), namespace: "n", id: "c" };
        let (_streams, mut relay) = open_terminal(&stdio, container).unwrap();
        let Some(Console::Opened(output)) = relay.terminal.take() else { panic!("{relay:?}") };
        File::from(output).write_all(b"on a terminal").unwrap();
        assert_eq!(fs::read_to_string(&said).unwrap(), "on a terminal");
    }

    #[test]
    fn files_are_appended_to_and_unknown_targets_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/log");
        let stdio = Stdio { stdout: format!("file://{}", path.display()), ..Stdio::default() };
        for _ in 0..2 {
            let (streams, _relay) = opened(&stdio).unwrap();
            File::from(streams.stdout).write_all(b"line\n").unwrap();
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
