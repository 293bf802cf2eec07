//! A process's terminal: the daemon holds the master and copies between it and containerd's fifos.
//!
//! Copying is a task for each direction with a buffer of fixed size: a reader that does not read its fifo holds up its
//! own process and no other. The output ends when every process has closed the terminal, or when the set of copying
//! tasks is dropped.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;

use super::copying::sink;
use cwasi_host::readiness;
use cwasi_sys::terminal_size::{Size, set_size};

/// The master, on tokio's reactor; clones share it.
#[derive(Clone, Debug)]
pub struct Master(Arc<AsyncFd<OwnedFd>>);

impl Master {
    fn new(master: OwnedFd) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&master, FcntlArg::F_GETFL)?);
        fcntl(&master, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self(Arc::new(readiness::watch(master)?)))
    }
}

impl AsyncRead for Master {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let free = buffer.initialize_unfilled();
            match guard.try_io(|master| Ok(nix::unistd::read(master, free)?)) {
                Ok(Ok(len)) => {
                    buffer.advance(len);
                    return Poll::Ready(Ok(()));
                }
                // The last process has closed the terminal.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Master {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            if let Ok(done) = guard.try_io(|master| Ok(nix::unistd::write(master, bytes)?)) {
                return Poll::Ready(done);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A terminal that is copied.
#[derive(Debug)]
pub struct Terminal {
    master: Master,
}

impl Terminal {
    /// Starts copying what `master` says to `output`, a fifo or a file. Called within the runtime.
    ///
    /// # Errors
    /// When the reactor takes no more descriptors.
    pub fn serve(master: OwnedFd, output: OwnedFd, copying: &mut JoinSet<()>) -> io::Result<Self> {
        let mut master = Master::new(master)?;
        let shared = master.clone();
        let mut sink = sink(output)?;
        copying.spawn(async move {
            if let Err(error) = tokio::io::copy(&mut master, &mut sink).await {
                tracing::debug!(%error, "a terminal's output ends");
            }
        });
        Ok(Self { master: shared })
    }

    #[must_use]
    pub fn master(&self) -> Master {
        self.master.clone()
    }

    /// Sets the size.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resize(&self, size: Size) -> io::Result<()> {
        set_size(self.master.0.get_ref(), size)
    }
}
