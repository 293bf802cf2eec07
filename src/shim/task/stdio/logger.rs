//! A logging program, which containerd names by a log URI `binary:///path?argument=value` (`ctr run --log-uri`). It
//! reads the output of one process of a container. Runs in the shim daemon.
//!
//! The protocol is that of containerd's package `logging`: the program reads stdout on descriptor 3 and stderr on 4,
//! writes or closes 5 when it is ready, and finds the container in `CONTAINER_ID` and `CONTAINER_NAMESPACE`.
//!
//! Invariant: a program ends with the process that it logs. It sees the end of both streams; one that goes on is
//! terminated, then killed.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;
use url::Url;

use crate::reaper::{Exit, Reaper};
use crate::spawn::{SpawnError, spawn};
use cwasi_sys::pidfd::PidFd;

/// Descriptors of a logging program.
const STDOUT_FD: i32 = 3;
const STDERR_FD: i32 = 4;
const READY_FD: i32 = 5;
/// Longest time from its start until it is ready.
const READY_MAX: Duration = Duration::from_secs(10);
/// Longest time from the end of both streams to its own, and from SIGTERM to SIGKILL.
const END_MAX: Duration = Duration::from_secs(5);

/// A log URI that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoggerError {
    #[error(
        "{stream} {uri} names no file: a log URI has an absolute path, as in file:///var/log/x or binary:///bin/x"
    )]
    Uri { stream: &'static str, uri: String },
    /// Its program cannot be started.
    #[error(
        "the logging program of {uri}: {source}; the path in a log URI is that of a program on this node"
    )]
    Start {
        uri: String,
        #[source]
        source: SpawnError,
    },
    #[error(
        "the logging program of {uri} was not ready within {waited:?}: it has to close descriptor 5, or write to it"
    )]
    NotReady { uri: String, waited: Duration },
    /// A failed system call.
    #[error("the pipes to the logging program of {uri}: {source}")]
    Pipe {
        uri: String,
        #[source]
        source: io::Error,
    },
}

/// What starting a logging program takes.
#[derive(Clone, Copy, Debug)]
pub struct LoggedContainer<'a> {
    /// Hears of the program's end.
    pub reaper: &'a Reaper,
    pub namespace: &'a str,
    pub id: &'a str,
}

/// A running logging program. Dropping it terminates the program.
#[derive(Debug)]
pub struct Logger {
    /// `None` if it ended before it could be opened.
    pidfd: Option<PidFd>,
    exit: oneshot::Receiver<Exit>,
}

/// A logging program and the streams that it reads.
#[derive(Debug)]
pub struct Logged {
    pub logger: Logger,
    /// The container's ends: stdout, stderr.
    pub writers: [OwnedFd; 2],
    /// Kept open, so that the end of the program does not kill the container's processes by SIGPIPE.
    pub readers: [OwnedFd; 2],
}

/// Path and query of a log URI.
///
/// # Errors
/// When it is none with an absolute path.
pub fn parse(
    stream: &'static str,
    uri: &str,
) -> Result<(PathBuf, Vec<(String, String)>), LoggerError> {
    let malformed = || LoggerError::Uri { stream, uri: uri.to_owned() };
    let parsed = Url::parse(uri).map_err(|_| malformed())?;
    let path = parsed.to_file_path().map_err(|()| malformed())?;
    let query = parsed.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned()));
    Ok((path, query.collect()))
}

/// Starts the program of `uri`, and waits until it is ready. Blocks.
///
/// # Errors
/// When it cannot be started or is not ready in time.
pub fn start(uri: &str, container: LoggedContainer<'_>) -> Result<Logged, LoggerError> {
    let (program, query) = parse("stdout", uri)?;
    let failed = |source| LoggerError::Pipe { uri: uri.to_owned(), source };
    // As containerd's own shims do: each key and each value that is not empty is an argument.
    let words = query.into_iter().flat_map(|(key, value)| [key, value]);
    let arguments: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    let (stdout, stdout_writer) = io::pipe().map_err(failed)?;
    let (stderr, stderr_writer) = io::pipe().map_err(failed)?;
    let (ready, ready_writer) = io::pipe().map_err(failed)?;
    let descriptors = [
        (stdout.as_fd(), STDOUT_FD),
        (stderr.as_fd(), STDERR_FD),
        (ready_writer.as_fd(), READY_FD),
    ];
    let variables = [("CONTAINER_ID", container.id), ("CONTAINER_NAMESPACE", container.namespace)];
    let ticket = container.reaper.ticket();
    let pid = spawn(&program, &arguments, &descriptors, &variables)
        .map_err(|source| LoggerError::Start { uri: uri.to_owned(), source })?;
    let logger = Logger { pidfd: PidFd::open(pid).ok(), exit: ticket.claim(pid) };
    wait_ready(uri, &ready, ready_writer)?;
    tracing::info!(container = container.id, pid, uri, "a logging program runs");
    Ok(Logged {
        logger,
        writers: [stdout_writer.into(), stderr_writer.into()],
        readers: [stdout.into(), stderr.into()],
    })
}

/// Waits until the program has written to its end of the pipe, or closed it.
fn wait_ready(uri: &str, ready: &PipeReader, writer: PipeWriter) -> Result<(), LoggerError> {
    drop(writer);
    let timeout = PollTimeout::try_from(READY_MAX).expect("the bound is in poll's range");
    let mut pipes = [PollFd::new(ready.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut pipes, timeout) {
            Ok(0) => {
                return Err(LoggerError::NotReady { uri: uri.to_owned(), waited: READY_MAX });
            }
            // Containers of this daemon send it signals as they end.
            Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => {
                return Err(LoggerError::Pipe { uri: uri.to_owned(), source: errno.into() });
            }
        }
    }
}

impl Logger {
    /// Waits for its end after all other ends of its streams are closed; ends a program that goes on.
    pub async fn end(mut self) {
        for signal in [None, Some(libc::SIGTERM), Some(libc::SIGKILL)] {
            if let (Some(signal), Some(pidfd)) = (signal, &self.pidfd) {
                // It may end in this moment.
                let _ended = pidfd.signal(signal);
            }
            if let Ok(exit) = tokio::time::timeout(END_MAX, &mut self.exit).await {
                let status = exit.map_or(0, |exit| exit.status);
                if status != 0 {
                    tracing::warn!(status, "a logging program failed");
                }
                self.pidfd = None;
                return;
            }
        }
        tracing::error!("a logging program that was killed does not end");
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        if let Some(pidfd) = &self.pidfd {
            // An ended process takes no signal.
            let _ended = pidfd.signal(libc::SIGTERM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_uri_has_a_path_and_arguments() {
        let (path, query) = parse("stdout", "binary:///opt/my%20log?id=web&level=&quiet").unwrap();
        assert_eq!(path, PathBuf::from("/opt/my log"));
        let words: Vec<(&str, &str)> =
            query.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(words, [("id", "web"), ("level", ""), ("quiet", "")]);
        for wrong in ["binary://host/path", "binary:", "no uri", ""] {
            let error = parse("stderr", wrong).unwrap_err();
            assert!(matches!(error, LoggerError::Uri { stream: "stderr", .. }), "{wrong}: {error}");
        }
    }
}
