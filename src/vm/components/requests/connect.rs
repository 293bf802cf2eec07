//! The connection of a request: an allowed address of its host, TCP, and TLS for `https`. Runs in a worker.

use std::time::Duration;

use cwasi_vm::sockets::WasiErrno;
use http::Uri;
use http::uri::Scheme;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use wasmtime_wasi_http::Error;

use super::super::rules::Rules;
use super::failures;
use super::roots::Roots;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
/// Longest wait for one of several addresses to accept, but for the last.
const ADDRESS_MAX: Duration = Duration::from_secs(5);

/// Bytes in both directions.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(super) type Connection = Box<dyn Stream>;

/// Connects to the host of `uri`, until `end`.
///
/// # Errors
/// When no address is allowed or accepts, or TLS fails.
pub(super) async fn connect(
    rules: &Rules,
    roots: &Roots,
    uri: &Uri,
    end: Instant,
) -> Result<Connection, Error> {
    let host = uri.host().ok_or(Error::HttpRequestUriInvalid)?;
    // Brackets are around addresses of IPv6 only.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let encrypted = uri.scheme() == Some(&Scheme::HTTPS);
    let port = uri.port_u16().unwrap_or(if encrypted { HTTPS_PORT } else { HTTP_PORT });
    let stream = to_any_address(rules, host, port, end).await?;
    if !encrypted {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_no_name| Error::HttpRequestUriInvalid)?;
    let connector = roots.connector(rules)?;
    let encrypted = timeout_at(end, connector.connect(name, stream)).await;
    let encrypted = encrypted.map_err(|_elapsed| Error::ConnectionTimeout)?;
    Ok(Box::new(encrypted.map_err(|error| failures::tls(&error))?))
}

/// Connects to the first address that accepts, of those that the rules allow.
async fn to_any_address(
    rules: &Rules,
    host: &str,
    port: u16,
    end: Instant,
) -> Result<TcpStream, Error> {
    let longest = end.saturating_duration_since(Instant::now());
    let addresses = rules.sockets().destinations(host, port, longest).map_err(not_found)?;
    let mut failed = Error::DestinationNotFound;
    for (number, address) in addresses.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::ConnectionTimeout);
        }
        let is_last = number + 1 == addresses.len();
        let wait = if is_last { left } else { left.min(ADDRESS_MAX) };
        failed = match timeout(wait, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Without it, the last part of a body waits for the acknowledgement of the one before.
                let _slower_otherwise = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => failures::connecting(&error),
            Err(_elapsed) => Error::ConnectionTimeout,
        };
    }
    Err(failed)
}

fn not_found(errno: WasiErrno) -> Error {
    let dns = |rcode: &str| Error::DnsError { rcode: Some(rcode.to_owned()), info_code: None };
    match errno {
        WasiErrno::ACCES => Error::HttpRequestDenied,
        WasiErrno::AI_AGAIN => Error::DnsTimeout,
        WasiErrno::AI_FAIL => dns("SERVFAIL"),
        WasiErrno::AI_NO_NAME => dns("NXDOMAIN"),
        _ => dns("NODATA"),
    }
}
