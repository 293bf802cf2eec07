//! HTTP clients: hyper's, and sockets that do what no library would.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;

/// Longest wait of a bare socket.
const WAIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Sends one request on a connection of its own.
pub async fn send(to: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let stream = tokio::net::TcpStream::connect(to).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    drop(sender);
    // A refused body may end the connection before all of it was sent.
    let _ended = connection.await.unwrap();
    Answer { status: head.status, headers: head.headers, body }
}

/// One request and its response, in a runtime of its own.
pub fn ask(to: SocketAddr, method: &str, path: &str, body: &[u8]) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "gateway");
    run(send(to, request.body(Full::from(body.to_vec())).unwrap()))
}

/// Runs a client to its end.
pub fn run<T>(client: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(client)
}

/// Sends these bytes and reads until the server ends the connection.
pub fn raw(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A connection with unread bytes ends by a reset, after the response.
    let _reset = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}
