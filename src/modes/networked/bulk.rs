//! Connections to Redis for chunks. Each carries one transfer at a time, so a transfer that waits in Redis delays no
//! other. Between a segment and the socket there is only one buffer.
//!
//! Runs in the shim. A session keeps idle connections. A connection whose transfer failed is closed and never reused,
//! because late answers of that transfer could arrive on it.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::error::NetworkError;
use super::resp::{self, Head, LINE_END};

/// Longest time without a byte of an answer, or without room for one of a command; longer than any blocking
/// command waits ([`super::claims`]).
const QUIET_MAX: Duration = Duration::from_secs(10);
/// Longest time for a connection to come up.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// How long an idle connection can be reused; servers and middleboxes close connections that are idle for long.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Bytes that are received at a time: few enough to stay in a processor's cache until they are copied on.
const RECEIVED_MAX: usize = 256 << 10;
/// Most bytes of an answer that is no chunk.
const WORD_MAX: usize = 1024;

trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

/// How to connect; holds the password.
pub(super) struct Dial {
    info: ConnectionInfo,
    tls: Option<TlsConnector>,
}

impl Dial {
    /// To the server of `info`, with these roots if it wants TLS.
    pub(super) fn new(info: ConnectionInfo, tls: Option<TlsConnector>) -> Self {
        Self { info, tls }
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self.info.addr() {
            ConnectionAddr::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            ConnectionAddr::Tcp(host, port) => Ok(Box::new(tcp(host, *port).await?)),
            ConnectionAddr::TcpTls { host, port, .. } => {
                let unusable = || io::Error::other("TLS is not set up");
                let tls = self.tls.as_ref().ok_or_else(unusable)?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                Ok(Box::new(tls.connect(name, tcp(host, *port).await?).await?))
            }
            _ => Err(io::Error::other("an address of an unknown kind")),
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// TLS to servers that these certificates, or else the system's, have signed.
///
/// # Errors
/// When there are none that can be used.
pub(super) fn tls(ca: Option<&Path>) -> Result<TlsConnector, String> {
    let mut roots = rustls::RootCertStore::empty();
    match ca {
        Some(path) => {
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| error.to_string())?;
                roots.add(certificate).map_err(|error| error.to_string())?;
            }
        }
        // Whatever of the system's certificates can be read; a server that none of them knows is refused.
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots);
    Ok(TlsConnector::from(Arc::new(config.with_no_client_auth())))
}

/// A session's connections for chunks; clones share them.
#[derive(Clone)]
pub(super) struct BulkPool {
    dial: Arc<Dial>,
    idle: Arc<Mutex<Vec<(Instant, Bulk)>>>,
}

impl fmt::Debug for BulkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkPool").finish_non_exhaustive()
    }
}

impl BulkPool {
    pub(super) fn new(dial: Arc<Dial>) -> Self {
        Self { dial, idle: Arc::default() }
    }

    /// A connection without a transfer.
    pub(super) async fn get(&self) -> Result<Bulk, NetworkError> {
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            newest(&mut idle, Instant::now())
        };
        match idle {
            Some(bulk) => Ok(bulk),
            None => Bulk::open(&self.dial).await,
        }
    }

    /// Returns a connection whose commands have all been answered.
    pub(super) fn put_back(&self, mut bulk: Bulk) {
        if bulk.start != bulk.end {
            return;
        }
        (bulk.received, bulk.start, bulk.end) = (Vec::new(), 0, 0);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), bulk));
    }
}

/// The connection that came back last. Those that are idle for too long go.
fn newest<T>(idle: &mut Vec<(Instant, T)>, now: Instant) -> Option<T> {
    idle.retain(|(since, _)| now < *since + IDLE_MAX);
    idle.pop().map(|(_, connection)| connection)
}

/// One connection; commands and answers are in order.
pub(super) struct Bulk {
    stream: Box<dyn Stream>,
    /// Bytes `start..end` were received and not read yet.
    received: Vec<u8>,
    start: usize,
    end: usize,
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk").finish_non_exhaustive()
    }
}

fn away(what: &str, reason: impl fmt::Display) -> NetworkError {
    NetworkError::Away { reason: format!("{what}: {reason}") }
}

impl Bulk {
    async fn open(dial: &Dial) -> Result<Self, NetworkError> {
        let connecting = async {
            let stream = dial.connect().await.map_err(|error| away("connecting", error))?;
            let mut bulk = Self { stream, received: Vec::new(), start: 0, end: 0 };
            bulk.introduce(&dial.info).await?;
            Ok(bulk)
        };
        timeout(CONNECT_MAX, connecting)
            .await
            .unwrap_or_else(|_elapsed| Err(away("connecting", "no answer in time")))
    }

    async fn introduce(&mut self, info: &ConnectionInfo) -> Result<(), NetworkError> {
        let info = info.redis_settings();
        let (user, password) = (info.username(), info.password());
        let login = match (user, password) {
            (_, None) => None,
            (None, Some(password)) => Some(vec![b"AUTH", password.as_bytes()]),
            (Some(user), Some(password)) => {
                Some(vec![b"AUTH".as_slice(), user.as_bytes(), password.as_bytes()])
            }
        };
        let number = info.db().to_string();
        let select = (info.db() != 0).then(|| vec![b"SELECT".as_slice(), number.as_bytes()]);
        for (what, words) in [("AUTH", login), ("SELECT", select)] {
            if let Some(words) = words {
                let mut command = Vec::new();
                resp::command(&mut command, &words);
                self.send(&command).await?;
                self.simple(what).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn send(&mut self, commands: &[u8]) -> Result<(), NetworkError> {
        let writing = async {
            self.stream.write_all(commands).await?;
            self.stream.flush().await
        };
        match timeout(QUIET_MAX, writing).await {
            Ok(written) => written.map_err(|error| away("sending", error)),
            Err(_elapsed) => Err(away("sending", "no room in time")),
        }
    }

    /// Receives more bytes.
    async fn receive(&mut self) -> Result<(), NetworkError> {
        if self.received.is_empty() {
            self.received.resize(RECEIVED_MAX, 0);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.received.len() {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let reading = self.stream.read(&mut self.received[self.end..]);
        let count = match timeout(QUIET_MAX, reading).await {
            Ok(count) => count.map_err(|error| away("receiving", error))?,
            Err(_elapsed) => return Err(away("receiving", "no answer in time")),
        };
        if count == 0 {
            return Err(away("receiving", "the connection was closed"));
        }
        self.end += count;
        Ok(())
    }

    /// The next answer's head; an error of the server is ours.
    async fn head(&mut self, command: &'static str) -> Result<Head, NetworkError> {
        loop {
            let found = resp::head(&self.received[self.start..self.end]);
            match found.map_err(|error| away(command, error))? {
                Some((head, len)) => {
                    self.start += len;
                    return match head {
                        Head::Error(reason) => {
                            let code = reason.split(' ').next().unwrap_or_default().to_owned();
                            Err(NetworkError::refused(command, &code, reason))
                        }
                        head => Ok(head),
                    };
                }
                None => self.receive().await?,
            }
        }
    }

    /// The answer of a command without a result.
    pub(super) async fn simple(&mut self, command: &'static str) -> Result<(), NetworkError> {
        match self.head(command).await? {
            Head::Simple => Ok(()),
            other => Err(away(command, format!("{other:?}"))),
        }
    }

    /// The answer of a command whose result is a number.
    pub(super) async fn integer(&mut self, command: &'static str) -> Result<i64, NetworkError> {
        match self.head(command).await? {
            Head::Integer(number) => Ok(number),
            other => Err(away(command, format!("{other:?}"))),
        }
    }

    /// The answer of a blocking pop: the value, or `None` when its time was up.
    pub(super) async fn popped(
        &mut self,
        command: &'static str,
    ) -> Result<Option<Vec<u8>>, NetworkError> {
        match self.head(command).await? {
            Head::Array(None) => return Ok(None),
            Head::Array(Some(2)) => {}
            other => return Err(away(command, format!("{other:?}"))),
        }
        self.word(command).await?;
        self.word(command).await.map(Some)
    }

    async fn word(&mut self, command: &'static str) -> Result<Vec<u8>, NetworkError> {
        let len = match self.head(command).await? {
            Head::Bytes(Some(len)) if len <= WORD_MAX => len,
            other => return Err(away(command, format!("{other:?}"))),
        };
        while self.end - self.start < len + LINE_END.len() {
            self.receive().await?;
        }
        let word = self.received[self.start..self.start + len].to_vec();
        self.start += len + LINE_END.len();
        Ok(word)
    }

    /// The length of the value that an answer holds, which [`Self::part`] then gives; `None` when there is none.
    pub(super) async fn value(
        &mut self,
        command: &'static str,
    ) -> Result<Option<usize>, NetworkError> {
        match self.head(command).await? {
            Head::Bytes(len) => Ok(len),
            other => Err(away(command, format!("{other:?}"))),
        }
    }

    /// The next bytes of a value that has `left` more, at least one.
    pub(super) async fn part(&mut self, left: usize) -> Result<&[u8], NetworkError> {
        if self.start == self.end {
            self.receive().await?;
        }
        let len = left.min(self.end - self.start);
        self.start += len;
        Ok(&self.received[self.start - len..self.start])
    }

    /// What comes after a value.
    pub(super) async fn value_end(&mut self) -> Result<(), NetworkError> {
        while self.end - self.start < LINE_END.len() {
            self.receive().await?;
        }
        self.start += LINE_END.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_reused_for_a_while() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut idle = vec![(at(0), "old"), (at(5), "new"), (at(7), "newest")];
        assert_eq!(newest(&mut idle, at(9)), Some("newest"));
        assert_eq!(newest(&mut idle, at(0) + IDLE_MAX), Some("new"));
        assert_eq!(newest(&mut idle, at(0) + IDLE_MAX), None, "the old one is gone");
    }
}
