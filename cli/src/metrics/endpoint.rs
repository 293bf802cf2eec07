//! Serves the text to a scraper, by HTTP on a port or a Unix socket.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use cwasi_host::http::HttpLimits;
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::server::{HttpServer, Service};
use cwasi_host::http::status::sentence;
use cwasi_host::metrics::node::NodeMetrics;
use cwasi_host::state::StateDir;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use tokio::net::{TcpListener, UnixListener};

use crate::failure::{Exit, Failure};
use crate::http::{metrics, reading};
use crate::interrupt::Interrupt;
use crate::output;

/// Most connections: a few scrapers.
const CONNECTIONS_MAX: usize = 16;
/// Mode of the socket: its owner and group.
const SOCKET_MODE: u32 = 0o660;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A port of an address.
    Tcp(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("a path follows unix:".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| "write ADDRESS:PORT, such as 127.0.0.1:9477, or unix:PATH".to_owned()),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Serves until SIGTERM or SIGINT. Prints the address to stderr when it listens.
///
/// # Errors
/// When the address is taken.
pub async fn serve(state: StateDir, listen: Listen) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::text(Exit::Unavailable, format!("cannot listen on {listen}: {error}"))
    };
    let limits = HttpLimits { connections: CONNECTIONS_MAX, ..HttpLimits::default() };
    let mut interrupt = Interrupt::new()?;
    let stop = async move {
        // A server that is asked to stop has done its work.
        let _signal = interrupt.received().await;
    };
    let service = Scraped { state };
    match &listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            output::note(format_args!("cwasi metrics: listening on {}", listener.local_addr()?));
            HttpServer { listener, tls: None, limits }.serve(service, stop).await;
        }
        Listen::Unix(path) => {
            remove_old(path).map_err(failed)?;
            let listener = UnixListener::bind(path).map_err(failed)?;
            fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
            output::note(format_args!("cwasi metrics: listening on {listen}"));
            HttpServer { listener, tls: None, limits }.serve(service, stop).await;
            // The next one binds the name anew.
            let _gone = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Removes the socket of a process that was killed. A living one keeps it.
fn remove_old(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[derive(Clone)]
struct Scraped {
    state: StateDir,
}

impl Service for Scraped {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        if !matches!(request.uri().path(), "/metrics" | "/") {
            return sentence(StatusCode::NOT_FOUND, "there is /metrics");
        }
        let state = self.state.clone();
        let read = tokio::task::spawn_blocking(move || super::text(NodeMetrics::read(&state)));
        match read.await {
            Ok(text) => reading(request.method(), || metrics(request.headers(), text)),
            Err(error) => sentence(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_and_sockets() {
        assert_eq!("unix:/run/a b".parse(), Ok(Listen::Unix("/run/a b".into())));
        assert_eq!("[::1]:9".parse::<Listen>().unwrap().to_string(), "[::1]:9");
        for wrong in ["", "unix:", "localhost:9", "9477"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }
}
