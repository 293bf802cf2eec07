//! A server that callbacks go to. It records requests, and answers as the test says.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use cwasi_testbed::port::free_port;
use cwasi_testbed::scene::wait_for;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Callback {
    pub head: String,
    pub body: Vec<u8>,
}

impl Callback {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header's value, empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .next_back()
            .unwrap_or("")
    }
}

/// A server on a port of its own, until the test ends.
pub struct Receiver {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Callback>>>,
}

impl Receiver {
    /// Answers with these heads in turn, then with 200.
    pub fn start(heads: &[&str]) -> Self {
        Self::with(heads, None)
    }

    /// The same behind TLS.
    pub fn encrypted(config: Arc<ServerConfig>) -> Self {
        Self::with(&[], Some(config))
    }

    fn with(heads: &[&str], tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let mut heads: VecDeque<String> = heads.iter().map(|head| (*head).to_owned()).collect();
        let to = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let head = heads.pop_front().unwrap_or_else(|| "200 OK".to_owned());
                // A client that goes away is one that the test wants.
                let _gone = match &tls {
                    None => serve(stream, &head, &to),
                    Some(config) => {
                        let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                        serve(StreamOwned::new(connection, stream), &head, &to)
                    }
                };
            }
        });
        Self { address, received }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What came so far.
    pub fn received(&self) -> Vec<Callback> {
        self.received.lock().unwrap().clone()
    }

    /// Waits for this many.
    pub fn wait(&self, count: usize) -> Vec<Callback> {
        wait_for("callbacks", || Some(self.received()).filter(|received| received.len() >= count))
    }
}

fn serve(
    stream: impl std::io::Read + std::io::Write,
    head: &str,
    to: &Mutex<Vec<Callback>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") && reader.read_line(&mut text)? > 0 {}
    let mut callback = Callback { head: text, body: Vec::new() };
    let length: u64 = callback.header("content-length").parse().unwrap_or(0);
    reader.by_ref().take(length).read_to_end(&mut callback.body)?;
    to.lock().unwrap().push(callback);
    write!(reader.get_mut(), "HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n")?;
    reader.get_mut().flush()
}

/// An address where nothing listens.
pub fn closed() -> SocketAddr {
    let localhost = Ipv4Addr::LOCALHOST.into();
    SocketAddr::new(localhost, free_port(localhost))
}
