//! Sends one answer to its callback URL: one POST over a connection of its own.
//!
//! The receiver is not trusted: it has [`POST_MAX`], its response's head is bounded, its body is not read, and a redirect is
//! a status like any other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cwasi_wire::egress::Egress;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::destination::{Destination, DestinationError};

/// Longest attempt, from the look-up of the name to the status.
const POST_MAX: Duration = Duration::from_secs(30);
/// Longest wait for one address to accept.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest head of a response in bytes.
const HEAD_MAX: usize = 16 << 10;

/// Why an answer was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryError {
    /// There is no way to the receiver.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    #[error("{0}")]
    Connection(#[from] io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// It takes too long.
    #[error("no response within {POST_MAX:?}")]
    Slow,
}

pub(super) struct Delivery {
    allow: Egress,
    tls: TlsConnector,
}

impl Delivery {
    /// Sends to destinations that are allowed; the system's certificate authorities vouch for those of HTTPS.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(super) fn new(allow: Egress) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        // Whatever of them can be read; a receiver that none of them knows is refused.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { allow, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Whether a callback may go there now.
    ///
    /// # Errors
    /// Why not.
    pub(super) async fn check(&self, to: &Destination) -> Result<(), DestinationError> {
        to.addresses(&self.allow).await.map(drop)
    }

    /// Sends a request, and returns the status of its response.
    ///
    /// # Errors
    /// When there was none.
    pub(super) async fn post(
        &self,
        to: &Destination,
        request: Request<Full<Bytes>>,
    ) -> Result<StatusCode, DeliveryError> {
        timeout(POST_MAX, self.try_post(to, request)).await.unwrap_or(Err(DeliveryError::Slow))
    }

    async fn try_post(
        &self,
        to: &Destination,
        request: Request<Full<Bytes>>,
    ) -> Result<StatusCode, DeliveryError> {
        let stream = self.connect(to).await?;
        if !to.encrypted {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(to.host()).map_err(io::Error::other)?;
        exchange(self.tls.connect(name, stream).await?, request).await
    }

    async fn connect(&self, to: &Destination) -> Result<TcpStream, DeliveryError> {
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in to.addresses(&self.allow).await? {
            match timeout(CONNECT_MAX, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failed = error,
                Err(_elapsed) => failed = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(failed.into())
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<StatusCode, DeliveryError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(HEAD_MAX).handshake(TokioIo::new(stream)).await?;
    let mut response = std::pin::pin!(sender.send_request(request));
    let response = tokio::select! {
        response = &mut response => response,
        // It ends after it has passed on the response or the reason why there is none.
        _ended = connection => response.await,
    };
    Ok(response?.status())
}
