//! `log(level, ptr, len) -> errno`. Runs in a worker.

use cwasi_abi::{Errno, LOG_MESSAGE_MAX, log_level};

use crate::text::lossy_text;
use crate::{Context, GuestMemory, GuestPtr, Host};

/// Level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something looks wrong.
    Warn,
    /// Worth telling.
    Info,
    /// For the author of the function.
    Debug,
    /// Every step.
    Trace,
}

impl Level {
    fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            log_level::ERROR => Self::Error,
            log_level::WARN => Self::Warn,
            log_level::INFO => Self::Info,
            log_level::DEBUG => Self::Debug,
            log_level::TRACE => Self::Trace,
            _ => return None,
        })
    }

    /// Upper-case name, as log lines print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Warn => "WARN",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
            Self::Trace => "TRACE",
        }
    }
}

/// Receiver of guests' log lines.
pub trait LogSink {
    /// Takes one message of the invocation `context`.
    fn log(&mut self, level: Level, context: &Context, message: &str);
}

/// Logs a message. Cuts it at [`LOG_MESSAGE_MAX`] and replaces bytes that are not UTF-8.
///
/// # Errors
/// [`Errno::BadPointer`], [`Errno::InvalidArgument`] for an unknown level.
pub fn log(
    host: &mut Host,
    memory: &impl GuestMemory,
    level: u32,
    ptr: GuestPtr,
    len: u32,
) -> Result<(), Errno> {
    let bytes = memory.slice(ptr, len)?;
    let level = Level::from_number(level).ok_or(Errno::InvalidArgument)?;
    let text = lossy_text(bytes, LOG_MESSAGE_MAX);
    host.log.log(level, &host.context, &text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeMemory, host_with_log};

    #[test]
    fn messages_levels_and_pointers() {
        let (mut host, lines) = host_with_log();
        let mut memory = FakeMemory::of(64);
        memory.write(GuestPtr(8), b"hi \xff").unwrap();
        assert_eq!(log(&mut host, &memory, 3, GuestPtr(8), 4), Ok(()));
        assert_eq!(log(&mut host, &memory, 0, GuestPtr(8), 4), Err(Errno::InvalidArgument));
        assert_eq!(log(&mut host, &memory, 6, GuestPtr(8), 4), Err(Errno::InvalidArgument));
        assert_eq!(log(&mut host, &memory, 3, GuestPtr(63), 2), Err(Errno::BadPointer));
        assert_eq!(*lines.borrow(), ["INFO hi \u{fffd}"]);
    }
}
