//! Waits for heads: how long a connection may be idle, and how long the rest of a head may take. hyper knows one
//! bound for both, and makes a timer for each head. Those of [`HeadTimer`] wait for the rest once some of the head is
//! there, as the stream shows ([`HeadTimer::watch`]). The first head has that bound from the start: a new client has
//! something to send.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::io::AsyncRead;
use tokio::time;
use tokio_util::io::InspectReader;

/// When the head that a connection waits for began.
#[derive(Debug)]
struct HeadStart {
    /// `None` while the connection is idle.
    at: Option<time::Instant>,
    is_first: bool,
}

/// hyper's timer for one connection. It asks for the bound of an idle connection.
#[derive(Clone, Debug)]
pub(super) struct HeadTimer {
    /// Longest wait for the rest of a head.
    head: Duration,
    start: Arc<Mutex<HeadStart>>,
}

impl HeadTimer {
    /// For a connection that begins now.
    pub(super) fn new(head: Duration) -> Self {
        let start = HeadStart { at: Some(time::Instant::now()), is_first: true };
        Self { head, start: Arc::new(Mutex::new(start)) }
    }

    /// The client's stream, which tells this timer when bytes arrive.
    pub(super) fn watch<S: AsyncRead>(
        &self,
        stream: S,
    ) -> InspectReader<S, impl FnMut(&[u8]) + use<S>> {
        let timer = self.clone();
        InspectReader::new(stream, move |bytes| {
            if !bytes.is_empty() {
                timer.start().at.get_or_insert_with(time::Instant::now);
            }
        })
    }

    fn start(&self) -> MutexGuard<'_, HeadStart> {
        // Single assignments: a panic elsewhere leaves it consistent.
        self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, deadline: time::Instant) -> Pin<Box<dyn Sleep>> {
        let mut start = self.start();
        if !std::mem::take(&mut start.is_first) {
            start.at = None;
        }
        let sleep = Box::pin(time::sleep_until(deadline));
        Box::pin(HeadSleep { sleep, timer: self.clone(), has_begun: false })
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.wait_until(time::Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.wait_until(deadline.into())
    }

    fn now(&self) -> Instant {
        time::Instant::now().into()
    }
}

/// The wait for one head.
struct HeadSleep {
    sleep: Pin<Box<time::Sleep>>,
    timer: HeadTimer,
    /// Some of the head is there.
    has_begun: bool,
}

impl Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.has_begun {
            let began = self.timer.start().at;
            if let Some(began) = began {
                self.has_begun = true;
                let until = began + self.timer.head;
                self.sleep.as_mut().reset(until);
            }
        }
        self.sleep.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const HEAD: Duration = Duration::from_millis(20);
    /// Longer than any test.
    const IDLE: Duration = Duration::from_secs(3600);

    fn wait(timer: &HeadTimer) -> Pin<Box<dyn Sleep>> {
        timer.sleep_until(Instant::now() + IDLE)
    }

    #[tokio::test]
    async fn an_idle_connection_waits_longer_than_a_head() {
        let timer = HeadTimer::new(HEAD);
        // The first head ends it at once, and the next one when some of it is there.
        wait(&timer).await;
        let mut next = wait(&timer);
        assert!(time::timeout(3 * HEAD, &mut next).await.is_err());
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut stream = timer.watch(ours);
        theirs.write_all(b"G").await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        next.await;
        // The one after that is idle again.
        assert!(time::timeout(3 * HEAD, wait(&timer)).await.is_err());
    }

    #[tokio::test]
    async fn a_head_that_began_has_its_time_beyond_that_of_an_idle_connection() {
        let timer = HeadTimer::new(IDLE);
        wait_briefly(&timer).await;
        let mut late = timer.sleep_until(Instant::now() + HEAD);
        timer.start().at = Some(time::Instant::now());
        assert!(time::timeout(3 * HEAD, &mut late).await.is_err());
    }

    /// The wait for the first head.
    async fn wait_briefly(timer: &HeadTimer) {
        let first = timer.sleep_until(Instant::now() + HEAD);
        assert!(time::timeout(3 * HEAD, first).await.is_err());
    }
}
