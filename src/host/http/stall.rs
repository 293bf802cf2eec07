//! A stream that fails when its peer takes no bytes for too long. hyper bounds the wait for a request, not for a client
//! that does not read its response.
//!
//! It also lingers: what a client still sends after a response that refused its body is read and dropped for a while.
//! The kernel would answer unread bytes with a reset, and the client might lose the response.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Longest time to read what comes after the last response.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Most bytes of it.
const DROPPED_MAX: usize = 8 << 20;
/// Bytes of it that are read at a time.
const CHUNK: usize = 4096;

/// A stream with a bound on each wait for its peer to read.
#[derive(Debug)]
pub(super) struct StallGuard<S> {
    stream: S,
    longest: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Since our side of the connection has ended.
    lingering: Option<Lingering>,
}

#[derive(Debug)]
struct Lingering {
    until: Pin<Box<Sleep>>,
    dropped: usize,
}

impl<S> StallGuard<S> {
    pub(super) const fn new(stream: S, longest: Duration) -> Self {
        Self { stream, longest, stalled: None, lingering: None }
    }

    /// Passes on what a write gave; an error when it has been pending for too long.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let longest = self.longest;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(longest)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            let ended = Pin::new(&mut this.stream).poll_shutdown(context);
            ready!(this.bounded(context, ended))?;
        }
        let lingering = this
            .lingering
            .get_or_insert_with(|| Lingering { until: Box::pin(sleep(LINGER_MAX)), dropped: 0 });
        lingering.poll(&mut this.stream, context).map(Ok)
    }
}

impl Lingering {
    /// Reads until the peer has ended its side, too, or a bound is reached.
    fn poll<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut chunk = [0; CHUNK];
        while self.dropped < DROPPED_MAX {
            let mut buffer = ReadBuf::new(&mut chunk);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.dropped += buffer.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.until.as_mut().poll(context),
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_stalled_peer_times_out() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut guarded = StallGuard::new(ours, Duration::from_millis(20));
        guarded.write_all(b"four").await.unwrap();
        theirs.read_exact(&mut [0; 4]).await.unwrap();
        let error = guarded.write_all(b"and more").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn bytes_after_the_end_are_dropped() {
        let (ours, mut theirs) = tokio::io::duplex(CHUNK);
        let mut guarded = StallGuard::new(ours, Duration::from_secs(9));
        let end = async move { guarded.shutdown().await };
        let (ended, sent) = tokio::join!(end, async {
            theirs.write_all(&[7; 100_000]).await?;
            theirs.shutdown().await
        });
        ended.and(sent).unwrap();
        let (ours, _silent) = tokio::io::duplex(4);
        let mut guarded = StallGuard::new(ours, Duration::from_secs(9));
        let began = tokio::time::Instant::now();
        guarded.shutdown().await.unwrap();
        assert!(began.elapsed() >= LINGER_MAX);
    }
}
