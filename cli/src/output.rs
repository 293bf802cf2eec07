//! What the command prints: results go to stdout, all else to stderr.
//!
//! Who closes stdout (`cwasi ps | head -1`) ends the command without a word, as `SIGPIPE` ends other programs. Any other
//! failure is an error. What stderr does not take is lost: there is no other place to say so.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use serde::Serialize;

use crate::failure::{Exit, Failure};

/// Writes a result to stdout.
///
/// # Errors
/// When stdout is closed or full.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(failure)
}

/// Writes a text as it is.
///
/// # Errors
/// Those of [`bytes`].
pub fn text(text: impl Display) -> Result<(), Failure> {
    bytes(text.to_string().as_bytes())
}

/// Writes a text and ends the line.
///
/// # Errors
/// Those of [`bytes`].
pub fn line(text: impl Display) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// Writes a result of `--json`.
///
/// # Errors
/// Those of [`bytes`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string_pretty(value)?)
}

/// Says something on stderr.
pub fn note(text: impl Display) {
    let _lost = writeln!(io::stderr().lock(), "{text}");
}

/// The end of a command that cannot write to stdout.
pub fn failure(error: io::Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::BrokenPipe => Exit::PipeClosed,
        _ => Exit::Output,
    };
    Failure::new(exit, anyhow::Error::new(error).context("stdout cannot be written"))
}
