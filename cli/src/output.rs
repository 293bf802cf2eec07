//! What the command prints: results go to stdout, all else to stderr.
//!
//! A closed stdout (`cwasi ps | head -1`) ends the command without a message, as `SIGPIPE` ends other programs. Any
//! other failure is an error. What stderr does not take is lost: there is no other place to say so.
//!
//! Invariant: texts have no control characters but line feeds and tabs, whatever names they quote
//! ([`visible`]). [`bytes`] alone writes them.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use serde::Serialize;

use crate::failure::{Exit, Failure};
use cwasi_workflow::visible;

/// Writes a result to stdout, as it is.
///
/// # Errors
/// When stdout is closed or full.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(failure)
}

/// Writes a text.
///
/// # Errors
/// Those of [`bytes`].
pub fn text(text: impl Display) -> Result<(), Failure> {
    bytes(visible::text(&text.to_string()).as_bytes())
}

/// Writes a text and ends the line.
///
/// # Errors
/// Those of [`bytes`].
pub fn line(line: impl Display) -> Result<(), Failure> {
    text(format_args!("{line}\n"))
}

/// Writes a result of `--json`.
///
/// # Errors
/// Those of [`bytes`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    document(&serde_json::to_string_pretty(value)?)
}

/// Writes a result of `--json` in one line, for those that have several results.
///
/// # Errors
/// Those of [`bytes`].
pub fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    document(&serde_json::to_string(value)?)
}

fn document(document: &str) -> Result<(), Failure> {
    bytes(format!("{}\n", visible::json(document)).as_bytes())
}

/// Says something on stderr.
pub fn note(text: impl Display) {
    let _lost = writeln!(io::stderr().lock(), "{}", visible::text(&text.to_string()));
}

/// The end of a command that cannot write to stdout.
pub fn failure(error: io::Error) -> Failure {
    let exit = match error.kind() {
        ErrorKind::BrokenPipe => Exit::PipeClosed,
        _ => Exit::Output,
    };
    Failure::new(exit, anyhow::Error::new(error).context("stdout cannot be written"))
}
