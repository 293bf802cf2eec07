//! stdout and stderr of a component: this process's, without a thread. Runs in a worker.
//!
//! Writing blocks, as it does for a core module: nothing else runs in the worker.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use nix::unistd::{isatty, write};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use super::stdin::{failed, uninterrupted};

/// Bytes of stderr that are kept for a caller.
const TAIL_MAX: usize = 1024;
/// Most bytes that may be written at a time.
const STEP_MAX: usize = 1 << 20;

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

impl IsTerminal for Stdout {
    fn is_terminal(&self) -> bool {
        isatty(io::stdout()).unwrap_or(false)
    }
}

impl StdoutStream for Stdout {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(*self)
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

impl AsyncWrite for Stdout {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(uninterrupted(|| write(io::stdout(), bytes))?))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl IsTerminal for Stderr {
    fn is_terminal(&self) -> bool {
        isatty(io::stderr()).unwrap_or(false)
    }
}

impl StdoutStream for Stderr {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
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

impl AsyncWrite for Stderr {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = uninterrupted(|| write(io::stderr(), bytes))?;
        self.0.add(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn write_all(to: &impl AsFd, mut left: &[u8]) -> StreamResult<()> {
    while !left.is_empty() {
        let written = uninterrupted(|| write(to, left)).map_err(failed)?;
        left = &left[written..];
    }
    Ok(())
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
