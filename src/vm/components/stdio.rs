//! stdin, stdout and stderr of a component: this process's, without a thread. Runs in a worker.
//!
//! Reading and writing block, as they do for a core module: nothing else runs in the worker.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, empty};
use wasmtime_wasi::cli::{IsTerminal, StdinStream, StdoutStream};
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

/// Bytes of stderr that are kept for a caller.
const TAIL_MAX: usize = 1024;
/// Most bytes that are read, or may be written, at a time.
const STEP_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stdin;

/// stdout or stderr.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub(super) fd: BorrowedFd<'static>,
    pub(super) tail: Option<Tail>,
}

/// The end of what was written.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<TailBytes>>);

#[derive(Debug, Default)]
struct TailBytes {
    is_kept: bool,
    bytes: Vec<u8>,
}

impl Tail {
    /// Begins to keep it.
    pub(super) fn keep(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_kept = true;
    }

    /// Ends [`Self::keep`]; returns what was kept.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).bytes
    }

    fn add(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !tail.is_kept {
            return;
        }
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_MAX)..];
        let excess = (tail.bytes.len() + bytes.len()).saturating_sub(TAIL_MAX);
        tail.bytes.drain(..excess);
        tail.bytes.extend_from_slice(bytes);
    }
}

impl IsTerminal for Stdin {
    fn is_terminal(&self) -> bool {
        rustix::termios::isatty(rustix::stdio::stdin())
    }
}

impl StdinStream for Stdin {
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        Box::new(empty())
    }

    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(*self)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Stdin {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl InputStream for Stdin {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size == 0 {
            return Ok(Bytes::new());
        }
        let mut bytes = vec![0; size.min(STEP_MAX)];
        let read = uninterrupted(|| rustix::io::read(rustix::stdio::stdin(), &mut *bytes));
        match read.map_err(failed)? {
            0 => Err(StreamError::Closed),
            read => {
                bytes.truncate(read);
                Ok(bytes.into())
            }
        }
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        rustix::termios::isatty(self.fd)
    }
}

impl StdoutStream for Output {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(empty())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut left = &*bytes;
        while !left.is_empty() {
            let written = uninterrupted(|| rustix::io::write(self.fd, left)).map_err(failed)?;
            if let Some(tail) = &self.tail {
                tail.add(&left[..written]);
            }
            left = &left[written..];
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(STEP_MAX)
    }
}

fn failed(errno: rustix::io::Errno) -> StreamError {
    match errno {
        rustix::io::Errno::PIPE => StreamError::Closed,
        errno => StreamError::LastOperationFailed(io::Error::from(errno).into()),
    }
}

fn uninterrupted<T>(mut run: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match run() {
            Err(rustix::io::Errno::INTR) => {}
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_stderr_is_kept_once_it_is_asked_for() {
        let tail = Tail::default();
        tail.add(b"early");
        tail.keep();
        tail.add(&[b'x'; 2 * TAIL_MAX]);
        tail.add(b"end");
        let kept = tail.take();
        assert!(kept.len() == TAIL_MAX && kept.ends_with(b"xend"));
        tail.add(b"late");
        assert_eq!(tail.take(), b"");
    }
}
