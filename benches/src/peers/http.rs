//! HTTP/1.1 over loopback between two native processes, connections kept alive: the fastest form of this baseline,
//! without a router, TLS or a guest.

use std::future::Future;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use cwasi_bench_protocol::payload::{Seen, Sum};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::tcp::within;
use super::transport::{Payload, Transport};
use super::{Peer, monotonic_ns};

/// Path at which a payload is read.
pub const TOUCH: &str = "/touch";
/// Path at which it is not.
pub const KEEP: &str = "/keep";

pub struct Connections {
    runtime: Runtime,
    /// In the order of the branches.
    connections: Vec<SendRequest<Full<Bytes>>>,
    /// Where every payload goes, if not to a server of ours.
    path: Option<String>,
    _servers: Vec<Server>,
}

#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts one.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub fn start(peer: &Peer) -> Result<Self> {
        let mut child = peer.server_command()?.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("stdout is a pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("the server's address")?;
        let address = line.trim().parse().context("the server's address")?;
        Ok(Self { child, address })
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Connections {
    /// Connects to the server at the peer's address, or to servers of its own.
    pub fn start(peer: &Peer) -> Result<Self> {
        let runtime = runtime()?;
        let servers: Vec<Server> = match peer.address.as_str() {
            "" => (0..peer.servers).map(|_| Server::start(peer)).collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        let (address, path) = match peer.address.split_once('/') {
            Some((address, path)) => (address, Some(format!("/{path}"))),
            None => (peer.address.as_str(), None),
        };
        let mut addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
        if addresses.is_empty() {
            addresses.push(address.parse().context("the server's address")?);
        }
        let connections = addresses
            .iter()
            .cycle()
            .take(peer.connections.max(addresses.len()))
            .map(|address| {
                let open = || std::net::TcpStream::connect(address).context("connect");
                let stream = within(peer.client_network.as_deref(), open)?;
                runtime.block_on(handshake(stream))
            })
            .collect::<Result<_>>()?;
        Ok(Self { runtime, connections, path, _servers: servers })
    }
}

impl Transport for Connections {
    fn call(&mut self, payload: &Payload) -> Result<u64> {
        let connection = self.connections.first_mut().context("no connection")?;
        self.runtime.block_on(post(connection, payload, self.path.as_deref())?)
    }

    fn call_all(&mut self, payloads: &[&Payload]) -> Result<u64> {
        if self.connections.len() < payloads.len() {
            bail!("{} connections for {} payloads", self.connections.len(), payloads.len());
        }
        self.runtime.block_on(async {
            let mut under_way = JoinSet::new();
            for (connection, payload) in self.connections.iter_mut().zip(payloads) {
                under_way.spawn(post(connection, payload, self.path.as_deref())?);
            }
            let mut last = 0;
            while let Some(entered) = under_way.join_next().await {
                last = last.max(entered.context("a request")??);
            }
            Ok(last)
        })
    }
}

pub fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_io().build().context("an event loop")
}

async fn handshake(stream: std::net::TcpStream) -> Result<SendRequest<Full<Bytes>>> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let stream = TcpStream::from_std(stream)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Sends a payload to this path, or to the one of our server; the future ends with the answer to it.
fn post(
    connection: &mut SendRequest<Full<Bytes>>,
    payload: &Payload,
    path: Option<&str>,
) -> Result<impl Future<Output = Result<u64>> + 'static> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path.unwrap_or(if payload.touch { TOUCH } else { KEEP }))
        .header(hyper::header::HOST, "localhost")
        .body(Full::new(payload.bytes.clone()))?;
    let (response, expected) = (connection.send_request(request), payload.expected);
    Ok(async move {
        let body = response.await.context("a response")?.into_body().collect().await?.to_bytes();
        Ok(Seen::check(&body, expected).map_err(anyhow::Error::msg)?.at)
    })
}

/// Serves at a port, a free one for 0, until it is killed; says where on stdout.
pub fn serve<A>(port: u16, answer: fn(Request<Incoming>) -> A) -> Result<()>
where
    A: Future<Output = Result<Response<Full<Bytes>>>> + Send + 'static,
{
    runtime()?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.context("listen")?;
        writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await.context("accept")?;
            stream.set_nodelay(true)?;
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(serving);
        }
    })
}

/// Takes the whole payload, in the pieces in which it comes: putting them together would be one more copy.
pub async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let touch = request.uri().path() == TOUCH;
    let mut body = request.into_body();
    let (mut parts, mut len) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            len += data.len();
            parts.push(data);
        }
    }
    let at = monotonic_ns();
    let mut sum = Sum::default();
    if touch {
        parts.iter().for_each(|part| sum.add(part));
    }
    let sum = if touch { sum.value() } else { len as u64 };
    Ok(Response::new(Full::from(Seen { at, sum }.to_bytes().to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_answered_over_http() {
        let runtime = runtime().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await
                    .unwrap();
            });
            let stream = std::net::TcpStream::connect(address).unwrap();
            let mut connection = handshake(stream).await.unwrap();
            let bytes = Bytes::from(vec![3; 300_001]);
            for (touch, expected) in [(true, Sum::of(&bytes)), (false, 300_001)] {
                let payload = Payload { bytes: bytes.clone(), touch, expected };
                assert!(post(&mut connection, &payload, None).unwrap().await.unwrap() > 0);
                let wrong = Payload { expected: 1, ..payload };
                assert!(post(&mut connection, &wrong, None).unwrap().await.is_err());
            }
        });
    }
}
