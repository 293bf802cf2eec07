//! Connections to the scaler's port, within bounds. The port has no login, so a client keeps no other one out: an
//! address has a part of the places, and a connection that says nothing is closed. KEDA's answers to the server's pings
//! keep its own open.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::transport::server::Connected;

/// Most connections, and most of one address; further ones are closed.
const CONNECTIONS_MAX: usize = 256;
const ADDRESS_MAX: usize = 64;
/// Longest time in which a client sends nothing, not even the answer to a ping.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// Pause after an error of the listener, such as no descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Open connections by their clients' addresses; clones share them.
#[derive(Clone, Debug, Default)]
struct Places(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection's place; free when dropped.
#[derive(Debug)]
struct Place {
    of: Places,
    from: IpAddr,
}

impl Places {
    fn take(&self, from: IpAddr) -> Option<Place> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        let own = open.get(&from).copied().unwrap_or(0);
        if all >= CONNECTIONS_MAX || own >= ADDRESS_MAX {
            return None;
        }
        open.insert(from, own + 1);
        Some(Place { of: self.clone(), from })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.from);
            }
        }
    }
}

/// A connection that ends when its client has sent nothing for a time.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    silence: Pin<Box<Sleep>>,
    silent_max: Duration,
    _place: Option<Place>,
}

impl<S> Bounded<S> {
    fn new(stream: S, silent_max: Duration, place: Option<Place>) -> Self {
        Self { stream, silence: Box::pin(sleep(silent_max)), silent_max, _place: place }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            let until = Instant::now() + self.silent_max;
            self.silence.as_mut().reset(until);
            return Poll::Ready(read);
        }
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S> Connected for Bounded<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// The connections of a listener that have places.
pub(super) fn connections(
    listener: TcpListener,
) -> impl Stream<Item = io::Result<Bounded<TcpStream>>> {
    futures_util::stream::unfold((listener, Places::default()), |(listener, places)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let Some(place) = places.take(from.ip().to_canonical()) else {
                        tracing::debug!(%from, "the scaler has no place for a connection");
                        continue;
                    };
                    // An answer is small, and its client waits for it.
                    let _slower = stream.set_nodelay(true);
                    let bounded = Bounded::new(stream, SILENT_MAX, Some(place));
                    return Some((Ok(bounded), (listener, places)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the scaler cannot be accepted");
                    sleep_until(Instant::now() + PAUSE).await;
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[test]
    fn an_address_has_a_part_of_the_places() {
        let places = Places::default();
        let take = |last: u8| places.take([10, 0, 0, last].into());
        let mut held: Vec<_> = (0..ADDRESS_MAX).map(|_| take(1).unwrap()).collect();
        assert!(take(1).is_none());
        for last in 2..=4 {
            held.extend((0..ADDRESS_MAX).map(|_| take(last).unwrap()));
        }
        assert!(take(5).is_none(), "all are taken");
        held.pop();
        assert!(take(5).is_some());
        drop(held);
        assert!(places.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_silent_client_is_closed() {
        let (mut client, server) = duplex(64);
        let mut server = Bounded::new(server, Duration::from_millis(20), None);
        client.write_all(b"x").await.unwrap();
        let mut buffer = [0; 2];
        assert_eq!(server.read(&mut buffer).await.unwrap(), 1);
        assert_eq!(server.read(&mut buffer).await.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
