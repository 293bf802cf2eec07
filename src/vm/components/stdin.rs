//! stdin of a component: this process's, without a thread. Runs in a worker.
//!
//! Reading blocks, as it does for a core module: nothing else runs in the worker. But a component of WASI 0.3 may have
//! other tasks, which go on while it waits for stdin.
#![expect(unsafe_code, reason = "waits for a descriptor that it does not own")]

use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{isatty, read};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use wasmtime_wasi::cli::{IsTerminal, StdinStream};
use wasmtime_wasi::p2::{InputStream, Pollable, StreamError, StreamResult};

/// Most bytes that are read at a time.
const STEP_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Stdin;

impl IsTerminal for Stdin {
    fn is_terminal(&self) -> bool {
        isatty(io::stdin()).unwrap_or(false)
    }
}

impl StdinStream for Stdin {
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        Box::new(AsyncStdin::new())
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

/// stdin for WASI 0.3. `None`: nothing says when it is ready, as for a file, so reading blocks.
struct AsyncStdin(Option<AsyncFd<io::Stdin>>);

impl AsyncStdin {
    fn new() -> Self {
        // SAFETY:
        // - the descriptor stays open: a worker replaces its stdin between invocations and never closes it.
        let made = unsafe { AsyncFd::register_with_interest(io::stdin(), Interest::READABLE) };
        Self(made.ok())
    }
}

impl AsyncRead for AsyncStdin {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(stdin) = &self.0 {
            loop {
                let mut guard = ready!(stdin.poll_read_ready(context))?;
                // The descriptor is its container's and may block, so reading does not show that there is no more.
                let mut asked = [PollFd::new(stdin.get_ref().as_fd(), PollFlags::POLLIN)];
                if uninterrupted(|| poll(&mut asked, PollTimeout::ZERO))? > 0 {
                    break;
                }
                guard.clear_ready();
            }
        }
        let length = uninterrupted(|| read(io::stdin(), buffer.initialize_unfilled()))?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

/// An error of a stream of WASI 0.2.
pub(super) fn failed(errno: Errno) -> StreamError {
    match errno {
        Errno::EPIPE => StreamError::Closed,
        errno => StreamError::LastOperationFailed(io::Error::from(errno).into()),
    }
}

/// Repeats a system call that a signal has interrupted.
pub(super) fn uninterrupted<T>(mut run: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match run() {
            Err(Errno::EINTR) => {}
            ended => return ended,
        }
    }
}
