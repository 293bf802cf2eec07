//! Accepts connections and serves HTTP/1.1 on them, within bounds.
//!
//! hyper parses; here are the bounds of time and number. At the end, connections finish the request that they serve.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use cwasi_abi::{METADATA_ENTRIES_MAX, METADATA_MAX};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::HttpLimits;
use super::connections::{ConnectionSlot, ConnectionState, Connections};
use super::head_timer::HeadTimer;
use super::metadata::joined;
use super::response_body::ResponseBody;
use super::stall::StallGuard;
use super::status::sentence;
use super::strict;

/// Bytes that a connection buffers at most, a request's head among them: a longer head gets 431. hyper parses a head
/// again when more of it has arrived. The longest head that a function takes fits.
const BUFFER_MAX: usize = METADATA_MAX + (16 << 10);
/// Most headers of a request.
const HEADERS_COUNT_MAX: usize = METADATA_ENTRIES_MAX;
/// How long a connection may be idle (RFC 2068, 19.7.1.1).
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Pause after an error of the listener, such as no descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What the client of a connection that is being closed would read.
pub(super) const TOO_MANY_CLIENTS: &str = "the server has too many clients: try again";
/// Longest wait at the end for requests that are being served.
const DRAIN_MAX: Duration = Duration::from_secs(30);

pub trait Service: Clone + Send + Sync + 'static {
    /// Answers one request. Dropped when the client is gone.
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;
}

/// Where clients connect to.
pub trait Accept: Send + Sync {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for a client; its connection and address, if it has one.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, peer) = Self::accept(self).await?;
        // Responses are whole: there is nothing to wait for.
        let _slower = stream.set_nodelay(true);
        Ok((stream, Some(peer.ip().to_canonical())))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<IpAddr>)> {
        Ok((Self::accept(self).await?.0, None))
    }
}

/// A listener with its bounds.
pub struct HttpServer<L> {
    /// Where clients connect to.
    pub listener: L,
    pub tls: Option<TlsAcceptor>,
    pub limits: HttpLimits,
}

impl<L: Accept> HttpServer<L> {
    /// Serves until `stop` ends; then waits for requests that are being served.
    pub async fn serve(self, service: impl Service, stop: impl Future<Output = ()>) {
        let connections = Connections::new(self.limits.connections);
        self.serve_within(connections, service, stop).await;
    }

    /// The same for one of several servers that share `connections`.
    pub async fn serve_within(
        self,
        connections: Connections,
        service: impl Service,
        stop: impl Future<Output = ()>,
    ) {
        let Self { listener, tls, limits } = self;
        let (stopping, stopped) = watch::channel(false);
        let accepting = async {
            loop {
                let (stream, peer) = accept(&listener).await;
                let connection = Connection {
                    tls: tls.clone(),
                    limits: limits.clone(),
                    stopped: stopped.clone(),
                    slot: connections.slot(peer).await,
                };
                tokio::spawn(connection.run(stream, service.clone()));
            }
        };
        tokio::select! {
            () = accepting => {}
            () = stop => {}
        }
        // Clients that connect from now on are refused instead of being left to wait.
        drop(listener);
        stopping.send_replace(true);
        if timeout(DRAIN_MAX, connections.ended()).await.is_err() {
            tracing::warn!("requests were still being served at the end");
        }
    }
}

async fn accept<L: Accept>(listener: &L) -> (L::Stream, Option<IpAddr>) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one request. Its service says when the body has arrived ([`ConnectionState::start_serving`]). Until then, and
/// after the response, the connection waits for its client.
async fn answer(
    state: &ConnectionState,
    service: &impl Service,
    mut request: Request<Incoming>,
) -> Response<ResponseBody> {
    if !request.body().is_end_stream() {
        state.wait_for_client();
        request.extensions_mut().insert(state.clone());
    } else if !state.start_serving() {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_CLIENTS);
    }
    let response = service.answer(request).await;
    state.wait_for_client();
    response
}

/// True if the client keeps the connection after this request (RFC 9112, 9.3).
fn keeps_connection(version: Version, headers: &HeaderMap) -> bool {
    let options = joined(headers, &CONNECTION).to_ascii_lowercase();
    let has = |word| options.split(',').any(|option| option.trim() == word);
    if version == Version::HTTP_11 { !has("close") } else { has("keep-alive") }
}

/// The response to a head that is not served. What follows it on the connection is not read.
fn refusal(status: StatusCode, text: &str) -> Response<ResponseBody> {
    let mut response = sentence(status, text);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

struct Connection {
    tls: Option<TlsAcceptor>,
    limits: HttpLimits,
    stopped: watch::Receiver<bool>,
    slot: ConnectionSlot,
}

impl Connection {
    /// Tells the client how long the connection may be idle: a request that crosses its end is lost. hyper adds `close`
    /// where it ends the connection all the same (RFC 9112, 6.1).
    fn announce(timeout: &HeaderValue, headers: &mut HeaderMap) {
        if !headers.contains_key(CONNECTION) {
            headers.insert(KEEP_ALIVE, timeout.clone());
            headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
        }
    }

    async fn run<S>(self, stream: S, service: impl Service)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let stream = StallGuard::new(stream, self.limits.stall_timeout);
        let serving = async {
            let Some(tls) = &self.tls else { return self.serve(stream, service).await };
            match timeout(self.limits.head_timeout, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.serve(stream, service).await,
                Ok(Err(error)) => Err(error),
                Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
            }
        };
        let served = tokio::select! {
            served = serving => served,
            () = self.slot.closed() => Err(io::Error::other("it made room for another client")),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a client's connection ended");
        }
    }

    async fn serve<S>(&self, stream: S, service: impl Service) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let (state, service) = (&self.slot.state(), &service);
        let timeout = format!("timeout={}", self.limits.idle_timeout.as_secs());
        let timeout = &HeaderValue::from_str(&timeout).ok();
        let answer = |request: Request<Incoming>| async move {
            let has_body = !request.body().is_end_stream();
            let keeps = keeps_connection(request.version(), request.headers());
            let mut response = match strict::check(&request) {
                Ok(()) => answer(state, service, request).await,
                Err((status, text)) => refusal(status, text),
            };
            // The connection ends behind a body that was refused.
            let is_read = !has_body || response.status().as_u16() < 400;
            if keeps
                && is_read
                && !*self.stopped.borrow()
                && let Some(timeout) = timeout
            {
                Self::announce(timeout, response.headers_mut());
            }
            Ok::<_, Infallible>(response)
        };
        let timer = HeadTimer::new(self.limits.head_timeout);
        let stream = timer.watch(stream);
        let connection = http1::Builder::new()
            .timer(timer)
            .header_read_timeout(self.limits.idle_timeout)
            .max_buf_size(BUFFER_MAX)
            .max_headers(HEADERS_COUNT_MAX)
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        let mut connection = std::pin::pin!(connection);
        let mut stopped = self.stopped.clone();
        tokio::select! {
            served = connection.as_mut() => return served.map_err(io::Error::other),
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await.map_err(io::Error::other)
    }
}
