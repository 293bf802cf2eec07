//! The address of Redis, and the clients for it. Runs in the shim daemon.

use std::fs;
use std::path::{Path, PathBuf};

use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, IntoConnectionInfo as _, TlsCertificates};

use super::bulk::{self, Dial};

/// The address of Redis, from the node's configuration.
#[derive(Clone)]
pub struct RedisTarget {
    /// `redis://` or `rediss://`, with user and password.
    pub url: String,
    /// Certificates that a `rediss://` server may be signed by, as a PEM file; `None` = the system's.
    pub ca: Option<PathBuf>,
}

impl RedisTarget {
    /// Host and port of the server; `None` when the URL has none.
    #[must_use]
    pub fn host_and_port(&self) -> Option<(String, u16)> {
        match self.url.as_str().into_connection_info().ok()?.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        }
    }
}

/// The link cannot be set up at all. Never holds the URL.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(
        "redis_url is not usable ({reason}): redis://[user:password@]host[:port][/db] or rediss://…"
    )]
    Url {
        /// What is wrong with it.
        reason: &'static str,
    },
    #[error("redis_ca {} cannot be used: {reason}", path.display())]
    Ca {
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// For messages, and for chunks.
pub(super) fn client(target: &RedisTarget) -> Result<(Client, Dial), LinkError> {
    // Every other error of the parser could quote the URL.
    let wrong = |reason| move |_| LinkError::Url { reason };
    let info = target.url.as_str().into_connection_info().map_err(wrong("not a Redis URL"))?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    if !target.url.starts_with("rediss:") && !target.url.starts_with("valkeys:") {
        let client = Client::open(info.clone()).map_err(wrong("not a server's address"))?;
        return Ok((client, Dial::new(info, None)));
    }
    // Fails when another process was first, which is as good.
    let _first = rustls::crypto::ring::default_provider().install_default();
    let root_cert = target.ca.as_deref().map(read_ca).transpose()?;
    let unusable = |reason: String| match &target.ca {
        Some(path) => LinkError::Ca { path: path.clone(), reason },
        None => LinkError::Url { reason: "TLS cannot be set up" },
    };
    let tls = bulk::tls(target.ca.as_deref()).map_err(unusable)?;
    let certificates = TlsCertificates { client_tls: None, root_cert };
    let client = Client::build_with_tls(info.clone(), certificates)
        .map_err(|error| unusable(error.to_string()))?;
    Ok((client, Dial::new(info, Some(tls))))
}

fn read_ca(path: &Path) -> Result<Vec<u8>, LinkError> {
    fs::read(path)
        .map_err(|error| LinkError::Ca { path: path.to_owned(), reason: error.to_string() })
}
