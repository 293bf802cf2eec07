//! A task's standard streams: containerd's fifos, log files, or nothing.
//!
//! The container gets the fifo itself, so no byte passes through the daemon. The daemon keeps the other
//! direction open: the read end of an output, so that a reader that goes away does not kill the guest with
//! SIGPIPE; the write end of the input, so that a guest that reads before `ctr` has connected does not see
//! the end, until `CloseIO` says so.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Where the streams lead, as containerd says.
#[derive(Clone, Debug, Default)]
pub struct Stdio {
    /// Path of a fifo, or empty.
    pub stdin: String,
    /// Path, `file://` URI, or empty.
    pub stdout: String,
    /// Path, `file://` URI, or empty.
    pub stderr: String,
}

/// A stream that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The file system refuses.
    #[error("{stream} {path} cannot be opened: {source}")]
    Open {
        /// Which stream.
        stream: &'static str,
        /// What containerd named.
        path: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A logging program.
    #[error("log URI {uri} is not yet available: use file:///path or no --log-uri")]
    BinaryLogger {
        /// What was asked for.
        uri: String,
    },
    /// Something else.
    #[error("{stream} {uri} has an unknown scheme: use a fifo or file:///path")]
    Scheme {
        /// Which stream.
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
}

impl ContainerEnds {
    /// In the order in which a builder wants them.
    #[must_use]
    pub fn in_order(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }
}

/// The daemon's ends.
#[derive(Debug, Default)]
pub struct KeptEnds {
    /// Dropped by `CloseIO`.
    pub stdin: Option<OwnedFd>,
    outputs: Vec<OwnedFd>,
}

impl KeptEnds {
    /// Lets go of everything.
    pub fn close(&mut self) {
        self.stdin = None;
        self.outputs.clear();
    }
}

/// Opens all three; blocks as long as the file system does.
///
/// # Errors
/// When one cannot be opened.
pub fn open(stdio: &Stdio) -> Result<(ContainerEnds, KeptEnds), IoError> {
    let mut kept = KeptEnds::default();
    let stdin = open_input(&stdio.stdin, &mut kept)?;
    let stdout = open_output("stdout", &stdio.stdout, &mut kept)?;
    let stderr = open_output("stderr", &stdio.stderr, &mut kept)?;
    Ok((ContainerEnds { stdin, stdout, stderr }, kept))
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
    if !is_fifo(Path::new(path)).map_err(failed)? {
        return File::open(path).map(Into::into).map_err(failed);
    }
    let reader = nonblocking().read(true).open(path).map_err(failed)?;
    let writer = nonblocking().write(true).open(path).map_err(failed)?;
    blocking(&reader).map_err(failed)?;
    kept.stdin = Some(writer.into());
    Ok(reader.into())
}

fn open_output(
    stream: &'static str,
    target: &str,
    kept: &mut KeptEnds,
) -> Result<OwnedFd, IoError> {
    let failed = |error| failed(stream, target)(error);
    let path = match target.split_once("://") {
        None if target.is_empty() => {
            let null = OpenOptions::new().write(true).open("/dev/null");
            return null.map(Into::into).map_err(failed);
        }
        None | Some(("fifo", _)) => target.trim_start_matches("fifo://"),
        Some(("file", path)) => return append(Path::new(path)).map_err(failed),
        Some(("binary", _)) => return Err(IoError::BinaryLogger { uri: target.to_owned() }),
        Some(_) => return Err(IoError::Scheme { stream, uri: target.to_owned() }),
    };
    if !is_fifo(Path::new(path)).map_err(failed)? {
        return append(Path::new(path)).map_err(failed);
    }
    // With our own reader in place, opening for writing does not wait for containerd's.
    let reader = nonblocking().read(true).open(path).map_err(failed)?;
    let writer = OpenOptions::new().write(true).open(path).map_err(failed)?;
    kept.outputs.push(reader.into());
    Ok(writer.into())
}

fn is_fifo(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(meta) => Ok(meta.file_type().is_fifo()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn append(path: &Path) -> io::Result<OwnedFd> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).append(true).open(path).map(Into::into)
}

fn blocking(file: &File) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GETFL)?);
    fcntl(file, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn fifo(dir: &Path, name: &str) -> String {
        let path = dir.join(name);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn input_ends_at_close_io_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path(), "in");
        let (ends, mut kept) = open(&Stdio { stdin: path.clone(), ..Stdio::default() }).unwrap();
        let client = OpenOptions::new().write(true).open(&path).unwrap();
        let mut guest = File::from(ends.stdin);
        (&client).write_all(b"x").unwrap();
        drop(client);
        let mut byte = [0];
        guest.read_exact(&mut byte).unwrap();
        let reading = std::thread::spawn(move || {
            let mut rest = Vec::new();
            guest.read_to_end(&mut rest).map(|_| rest)
        });
        assert!(!reading.is_finished());
        kept.stdin = None;
        assert_eq!(reading.join().unwrap().unwrap(), b"");
    }

    #[test]
    fn a_vanished_reader_does_not_break_the_writer_and_the_end_reaches_readers() {
        let dir = tempfile::tempdir().unwrap();
        let path = fifo(dir.path(), "out");
        let stdio = Stdio { stdout: path.clone(), ..Stdio::default() };
        let (ends, _kept) = open(&stdio).unwrap();
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
    fn files_are_appended_to_and_unknown_targets_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/log");
        let stdio = Stdio { stdout: format!("file://{}", path.display()), ..Stdio::default() };
        for _ in 0..2 {
            let (ends, _kept) = open(&stdio).unwrap();
            File::from(ends.stdout).write_all(b"line\n").unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\nline\n");
        let binary = Stdio { stderr: "binary:///bin/log".into(), ..Stdio::default() };
        assert!(matches!(open(&binary), Err(IoError::BinaryLogger { .. })));
        let unknown = Stdio { stderr: "ftp://x".into(), ..Stdio::default() };
        assert!(matches!(open(&unknown), Err(IoError::Scheme { .. })));
    }
}
