//! An HTTP/1.1 server whose paths misbehave, with and without TLS, and the authority that certifies it.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::authority::{Authority, Certified};

/// Longest wait for a client that says nothing more.
const CLIENT_MAX: Duration = Duration::from_secs(60);

/// TLS of a server with this name.
fn config(authority: &Authority, name: &str) -> Arc<ServerConfig> {
    let Certified { certificate, key } = authority.certify(name);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider's versions")
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("the key's own form");
    let chain = vec![certificate.der().clone()];
    Arc::new(config.with_single_cert(chain, key).expect("a certificate of this key"))
}

/// A server on a port of its own, until the process ends. Its paths:
///
/// - `/echo`: the method, the header `x-sent` and the body; the response's header `x-seen` says the host.
/// - `/duplex`: each chunk of the body as soon as it is there.
/// - `/silent`: nothing. `/half`: a head and the beginning of a body. `/close`: the end of the connection.
#[derive(Debug)]
pub struct HttpServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// Connections that have not ended.
    open: Arc<Mutex<usize>>,
}

impl HttpServer {
    /// Speaks HTTP.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn start() -> Self {
        Self::with(None)
    }

    /// Speaks HTTPS, with a certificate for `name`.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn encrypted(authority: &Authority, name: &str) -> Self {
        Self::with(Some(config(authority, name)))
    }

    fn with(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a listener has an address");
        let open = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&open);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (tls, open) = (tls.clone(), Arc::clone(&counted));
                std::thread::spawn(move || {
                    add(&open, true);
                    // A client that goes away is one that the test wants.
                    let _gone = serve(stream, tls);
                    add(&open, false);
                });
            }
        });
        Self { address, open }
    }

    /// Connections that have not ended.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(open: &Mutex<usize>, one: bool) {
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    *open = if one { *open + 1 } else { *open - 1 };
}

fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_MAX))?;
    match tls {
        None => answer(BufReader::new(stream)),
        Some(config) => {
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            answer(BufReader::new(StreamOwned::new(connection, stream)))
        }
    }
}

/// Answers one request, and waits for the client to close the connection.
fn answer<S: Read + Write>(mut client: BufReader<S>) -> io::Result<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if client.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    };
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    match path {
        "/duplex" => {
            say(&mut client, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            while let Some(part) = chunk(&mut client)? {
                let text = String::from_utf8_lossy(&part).into_owned();
                say(&mut client, &format!("{:x}\r\n{text}\r\n", part.len()))?;
            }
            say(&mut client, "0\r\n\r\n")?;
        }
        "/silent" => {}
        "/half" => say(&mut client, "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")?,
        "/close" => return Ok(()),
        _ => {
            let mut body = Vec::new();
            while let Some(part) = chunk(&mut client)? {
                body.extend(part);
            }
            let (host, sent) = (header("host"), header("x-sent"));
            let body = format!("{method} {path} {sent}: {}", String::from_utf8_lossy(&body));
            let length = body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nx-seen: {host}\r\n\r\n");
            say(&mut client, &(head + &body))?;
        }
    }
    io::copy(&mut client, &mut io::sink()).map(drop)
}

fn say<S: Read + Write>(client: &mut BufReader<S>, text: &str) -> io::Result<()> {
    client.get_mut().write_all(text.as_bytes())?;
    client.get_mut().flush()
}

/// The next chunk of a request's body; `None` at its end.
fn chunk<S: Read>(client: &mut BufReader<S>) -> io::Result<Option<Vec<u8>>> {
    let mut line = String::new();
    client.read_line(&mut line)?;
    let length = u64::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    client.by_ref().take(length).read_to_end(&mut bytes)?;
    client.read_line(&mut line)?;
    Ok((length > 0).then_some(bytes))
}
