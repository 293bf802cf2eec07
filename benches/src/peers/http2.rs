//! HTTP/2 over TLS 1.3 between two native processes, by hyper and tokio-rustls, over loopback or from one network
//! namespace to another. As usual for a client of hyper, all callers share one connection, on which each has a stream.
//! Both processes have one thread. The server's end is its stdin, so that it ends with its client.

use std::io::{stdin, stdout};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use cwasi_bench_protocol::payload::Seen;
use cwasi_bench_protocol::{Answer, Job, Verb, serve as serve_jobs};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::http::{KEEP, TOUCH, answer, runtime};
use super::tls::{client_config, server_config, server_name};
use super::transport::{MILLISECOND, Payload};
use super::uds::Server;
use super::{Peer, monotonic_ns, tcp};

/// The protocol in TLS.
const PROTOCOL: &[u8] = b"h2";
/// What requests are sent to, without a path.
const ORIGIN: &str = "https://localhost";

struct Client {
    /// Ends before its connection, which is no error then.
    _server: Server,
    sender: SendRequest<Full<Bytes>>,
    runtime: Runtime,
}

/// Serves jobs until the job to end. The peer's address is a folder for the server's certificate.
pub fn run(peer: &Peer) -> Result<()> {
    let client = Client::start(peer)?;
    serve_jobs(stdin().lock(), stdout(), |job| client.perform(job))?;
    Ok(())
}

impl Client {
    fn start(peer: &Peer) -> Result<Self> {
        let config = client_config(&peer.address)?;
        let (stream, server) = tcp::connected(peer)?;
        let runtime = runtime()?;
        let sender = runtime.block_on(connect(config, stream))?;
        Ok(Self { _server: server, sender, runtime })
    }

    fn perform(&self, job: &Job) -> Result<Answer> {
        let mut answer = Answer::default();
        let payload = Arc::new(Payload::make(job, 0, &mut answer));
        let duration = match job.verb {
            Verb::Flood => job.count as u64 * MILLISECOND,
            _ => bail!("this baseline only takes callers at a time"),
        };
        self.runtime.block_on(async {
            let until = monotonic_ns() + duration;
            let mut callers = JoinSet::new();
            for _ in 0..job.branches {
                callers.spawn(call_until(until, self.sender.clone(), Arc::clone(&payload)));
            }
            while let Some(ended) = callers.join_next().await {
                let made = ended.context("a caller")??;
                answer.calls += made.calls;
                answer.delivery.extend(made.delivery);
                answer.call.extend(made.call);
            }
            anyhow::Ok(())
        })?;
        answer.thin_out();
        Ok(answer)
    }
}

async fn connect(
    mut config: ClientConfig,
    stream: std::net::TcpStream,
) -> Result<SendRequest<Full<Bytes>>> {
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(server_name()?, nonblocking(stream)?).await?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// One caller: one call after the other.
async fn call_until(
    until: u64,
    mut sender: SendRequest<Full<Bytes>>,
    payload: Arc<Payload>,
) -> Result<Answer> {
    let mut answer = Answer::default();
    while monotonic_ns() < until {
        let started = monotonic_ns();
        let entered = post(&mut sender, &payload).await?;
        answer.add(started, entered, monotonic_ns());
    }
    Ok(answer)
}

async fn post(sender: &mut SendRequest<Full<Bytes>>, payload: &Payload) -> Result<u64> {
    let path = if payload.touch { TOUCH } else { KEEP };
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{ORIGIN}{path}"))
        .body(Full::new(payload.bytes.clone()))?;
    let response = sender.send_request(request).await.context("a response")?;
    ensure!(response.status().is_success(), "the server answers {}", response.status());
    let body = response.into_body().collect().await?.to_bytes();
    Ok(Seen::check(&body, payload.expected).map_err(anyhow::Error::msg)?.at)
}

/// Serves until the client is gone. The folder has the certificate.
pub fn serve(folder: &str) -> Result<()> {
    let stdin = stdin().as_fd().try_clone_to_owned().context("our connection")?;
    runtime()?.block_on(serve_connection(folder, stdin.into()))
}

async fn serve_connection(folder: &str, stream: std::net::TcpStream) -> Result<()> {
    let mut config = server_config(folder)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let stream = acceptor.accept(nonblocking(stream)?).await?;
    let builder = Builder::new(TokioExecutor::new());
    builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await?;
    Ok(())
}

fn nonblocking(stream: std::net::TcpStream) -> Result<TcpStream> {
    stream.set_nonblocking(true)?;
    Ok(TcpStream::from_std(stream)?)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn callers_are_answered_on_one_connection() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        let config = client_config(folder).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let runtime = runtime().unwrap();
        runtime.block_on(async {
            let client = async {
                let sender = connect(config, ours).await.unwrap();
                let payload =
                    |expected| Payload { bytes: vec![3; 64].into(), touch: false, expected };
                let [mut one, mut other] = [sender.clone(), sender];
                let payloads = [payload(64), payload(65)];
                let calls = (post(&mut one, &payloads[0]), post(&mut other, &payloads[1]));
                let (right, wrong) = tokio::join!(calls.0, calls.1);
                assert!(right.unwrap() > 0);
                assert!(wrong.is_err());
            };
            tokio::select! {
                () = client => {}
                served = serve_connection(folder, theirs) => served.unwrap(),
            }
        });
    }
}
