//! A task's standard streams: containerd's fifos, log files, a logging program, or nothing.
//!
//! Init's output is the fifo itself, so no byte passes through the daemon, which only keeps its read end open: a reader
//! that goes away must not kill the guest with SIGPIPE. That of an exec'd process is copied ([`copying`]), and
//! so is that into a log file whose size is bounded (`rotated_log`). The input is a pipe that the daemon fills
//! from the fifo, because a guest that reads a fifo before `ctr` has opened it would see its end, and `ctr` does not
//! always call `CloseIO` when it is done: it may just close. A `terminal` is one stream for all three, and copied.
//!
//! [`open`] makes the container's descriptors ([`ContainerStdio`]) and the daemon's part ([`StdioRelay`]).

pub mod copying;
mod input;
pub mod logger;
pub mod open;
pub mod relay;
mod rotated_log;
mod terminal;

use std::io;

use logger::LoggerError;
pub use open::ContainerStdio;
pub use relay::StdioRelay;

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
