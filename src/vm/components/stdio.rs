//! stdin, stdout and stderr of a component: this process's, without a thread. Runs in a worker.
//!
//! Reading and writing block, as they do for a core module: nothing else runs in the worker.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use nix::errno::Errno;
use nix::unistd::{isatty, read, write};
use tokio::io::{AsyncRead, AsyncWrite, empty};
use wasmtime_wasi::cli::{IsTerminal, StdinStream, StdoutStream};
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

/// Bytes of stderr that are kept for a caller.
const TAIL_MAX: usize = 1024;
/// Most bytes that are read, or may be written, at a time.
const STEP_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stdin;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stdout;

/// stderr, whose end may be kept for a caller.
#[derive(Clone, Debug)]
pub(super) struct Stderr(pub(super) Tail);

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
        isatty(io::stdin()).unwrap_or(false)
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
        match uninterrupted(|| read(io::stdin(), &mut bytes)).map_err(failed)? {
            0 => Err(StreamError::Closed),
            read => {
                bytes.truncate(read);
                Ok(bytes.into())
            }
        }
    }
}

impl IsTerminal for Stdout {
    fn is_terminal(&self) -> bool {
        isatty(io::stdout()).unwrap_or(false)
    }
}

impl StdoutStream for Stdout {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(empty())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(*self)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Stdout {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Stdout {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        write_all(&io::stdout(), &bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(STEP_MAX)
    }
}

impl IsTerminal for Stderr {
    fn is_terminal(&self) -> bool {
        isatty(io::stderr()).unwrap_or(false)
    }
}

impl StdoutStream for Stderr {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(empty())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Stderr {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Stderr {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.0.add(&bytes);
        write_all(&io::stderr(), &bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(STEP_MAX)
    }
}

fn write_all(to: &impl AsFd, mut left: &[u8]) -> StreamResult<()> {
    while !left.is_empty() {
        let written = uninterrupted(|| write(to, left)).map_err(failed)?;
        left = &left[written..];
    }
    Ok(())
}

fn failed(errno: Errno) -> StreamError {
    match errno {
        Errno::EPIPE => StreamError::Closed,
        errno => StreamError::LastOperationFailed(io::Error::from(errno).into()),
    }
}

fn uninterrupted<T>(mut run: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match run() {
            Err(Errno::EINTR) => {}
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
