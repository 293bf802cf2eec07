//! A request and its response over one connection, in HTTP/1.1. Runs in a worker.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep, timeout};
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::{Error, WasiBody};

use super::connect::Connection;
use super::{Ended, Limits, Sent, failures};

/// Sends the request and waits for the head of its response. The bodies of both go on while the future that is returned
/// with the response is polled; `slot` is free again when it is dropped.
///
/// # Errors
/// When the connection breaks, or no head comes in time.
pub(super) async fn exchange(
    connection: Connection,
    mut request: Request<WasiBody>,
    limits: Limits,
    slot: OwnedSemaphorePermit,
) -> Sent {
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection))
        .await
        .map_err(|error| failures::exchange(&error))?;
    *request.uri_mut() = origin_form(request.uri())?;
    let mut open = Some(connection);
    let head = async {
        let mut head = pin!(sender.send_request(request));
        std::future::poll_fn(|context| {
            // When it ends, the response or the reason why there is none is there already.
            if open.as_mut().is_some_and(|open| Pin::new(open).poll(context).is_ready()) {
                open = None;
            }
            head.as_mut().poll(context)
        })
        .await
    };
    let response = timeout(limits.first_byte, head).await;
    let response = response.map_err(|_elapsed| Error::ConnectionReadTimeout)?;
    let response = response.map_err(|error| failures::exchange(&error))?;
    let response = response.map(|body| TimedBody::new(body, limits.between_bytes).boxed_unsync());
    let ended: Ended = Box::new(async move {
        let _slot = slot;
        match open {
            Some(open) => open.await.map_err(|error| failures::exchange(&error)),
            None => Ok(()),
        }
    });
    Ok((response, ended))
}

/// Path and query only: scheme and host are for proxies.
fn origin_form(uri: &Uri) -> Result<Uri, Error> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let built = Uri::builder().path_and_query(path).build();
    built.map_err(|_invalid| Error::HttpRequestUriInvalid)
}

/// The body of a response, whose frames may not be longer apart than `longest`.
struct TimedBody {
    body: Incoming,
    longest: Duration,
    /// While a frame is waited for.
    wait: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    const fn new(body: Incoming, longest: Duration) -> Self {
        Self { body, longest, wait: None }
    }

    /// Polls the wait for the next frame; it begins with the first poll.
    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let longest = self.longest;
        self.wait.get_or_insert_with(|| Box::pin(sleep(longest))).as_mut().poll(context)
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let waited = self.poll_wait(context);
            return waited.map(|()| Some(Err(Error::ConnectionReadTimeout)));
        };
        let next = Instant::now() + self.longest;
        if let Some(wait) = &mut self.wait {
            wait.as_mut().reset(next);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|error| failures::exchange(&error))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
