//! Collects libcontainer's log for the reply to the shim. Runs in the builder.
//!
//! libcontainer's processes pass each other only the outermost text of an error ("failed to prepare rootfs"); the
//! cause is in their log. Builder, intermediate process and init share a memfd for the log, and never write it to the
//! container's stderr.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use tracing::field::Field;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer as FieldWriter, debug_fn};

use super::plain::fact_in;

/// Bytes of log that are looked at.
const LOG_MAX: usize = 16 * 1024;
/// Most lines that a reply quotes.
const LINES_MAX: usize = 2;

/// Per process: set where the log's number may soon mean another file.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// The log of one builder.
#[derive(Debug)]
pub struct Diagnostics {
    log: Option<Arc<Log>>,
}

#[derive(Debug)]
struct Log(File);

impl Diagnostics {
    /// Makes the log and sends this process's error events to it. Without a memfd there is no log.
    #[must_use]
    pub fn install() -> Self {
        let log = memfd_create(c"cwasi-builder-log", MFdFlags::MFD_CLOEXEC)
            .ok()
            .map(|fd| Arc::new(Log(File::from(fd))));
        if let Some(log) = &log {
            let subscriber = tracing_subscriber::fmt()
                .with_writer(Writer(Arc::clone(log)))
                .with_max_level(tracing::Level::ERROR)
                .with_ansi(false)
                .with_level(false)
                .with_target(false)
                .without_time()
                .fmt_fields(debug_fn(write_field))
                .finish();
            // Fails only when there is a subscriber already, which then gets the events.
            drop(tracing::subscriber::set_global_default(subscriber));
        }
        Self { log }
    }

    /// Discards everything from now on: for a process that is about to close the log's descriptor.
    pub fn stop() {
        STOPPED.store(true, Ordering::Relaxed);
    }

    /// The first lines: causes are logged before what they caused.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.all_lines();
        lines.truncate(LINES_MAX);
        lines
    }

    /// Everything that was logged.
    #[must_use]
    pub fn all_lines(&self) -> Vec<String> {
        let Some(log) = &self.log else { return Vec::new() };
        let mut bytes = vec![0; LOG_MAX];
        let read = log.0.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..read]);
        text.lines().map(|line| line.trim().to_owned()).collect()
    }
}

/// Writes an event's message, and of its values what helps.
fn write_field(writer: &mut FieldWriter<'_>, field: &Field, value: &dyn Debug) -> std::fmt::Result {
    let text = format!("{value:?}");
    match (field.name(), fact_in(&text)) {
        ("message", _) => writer.write_str(&text),
        (_, Some(fact)) => write!(writer, " {fact}"),
        (_, None) => Ok(()),
    }
}

/// Appends at the offset that all processes share.
#[derive(Clone, Debug)]
struct Writer(Arc<Log>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if STOPPED.load(Ordering::Relaxed) {
            return Ok(bytes.len());
        }
        (&self.0.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        self.clone()
    }
}
