//! `cwasi gateway`: HTTP clients call the functions of this node whose `cwasi.http` allows it (`docs/http.md`).
//!
//! The calls, the bodies and the bounds are those of [`cwasi::shim::http`]. Here are the paths, who may use them, TLS,
//! and metrics.
//!
//! Invariant: without a token or client certificates, it listens on loopback addresses only, unless the operator says
//! otherwise.

mod access;
mod metrics;
mod paths;
mod router;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;

use cwasi::config::NodeConfig;
use cwasi::shim::caller::{CallerIdentity, CallerKind, HostCaller};
use cwasi::shim::http::HttpLimits;
use cwasi::shim::http::front::FunctionFront;
use cwasi::shim::http::server::HttpServer;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure};
use access::Access;
use router::Router;

/// Settings of a gateway.
#[derive(Debug)]
pub struct GatewayConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The name that `cwasi.allow` knows it by.
    pub name: String,
    /// containerd namespace of functions that a path names without one.
    pub namespace: String,
    /// Kubernetes namespace of these, empty outside Kubernetes.
    pub pod_namespace: String,
    /// File with the bearer token.
    pub token_file: Option<PathBuf>,
    /// Certificate and key files.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File with the certificates that sign clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients without token and certificate may come from other hosts.
    pub allow_anonymous: bool,
    /// Bounds.
    pub limits: HttpLimits,
    /// The node.
    pub node: NodeConfig,
}

/// Serves until SIGTERM or SIGINT, then ends the requests that are being served. Prints the address to stderr when it
/// listens.
///
/// # Errors
/// When the settings contradict each other, a file cannot be used, or the address is taken.
pub async fn run(config: GatewayConfig) -> Result<(), Failure> {
    let access = Access::new(config.token_file.as_deref())?;
    let has_clients = config.client_ca.is_some() || access.is_restricted();
    if !has_clients && !config.allow_anonymous && !config.listen.ip().is_loopback() {
        let text = format!(
            "{} is reachable from other hosts: set --token-file or --client-ca, or --allow-anonymous if everyone may \
             call the functions",
            config.listen
        );
        return Err(Failure::text(Exit::Usage, text));
    }
    let certificate = config.certificate.as_ref();
    let tls = tls::acceptor(certificate, config.client_ca.as_deref())?;
    let identity = CallerIdentity {
        kind: CallerKind::Gateway,
        name: config.name,
        namespace: config.namespace,
        pod_namespace: config.pod_namespace,
    };
    let caller = HostCaller::start(&config.node, &identity)
        .map_err(|error| Failure::new(Exit::Data, error))?;
    let listener = TcpListener::bind(config.listen).await.map_err(|error| {
        let text = format!("cannot listen on {}: {error}", config.listen);
        Failure::text(Exit::Unavailable, text)
    })?;
    eprintln!("cwasi gateway: listening on {}", listener.local_addr()?);
    let front = FunctionFront::new(caller.clone(), config.limits.clone());
    let router = Router::new(caller, front, access);
    let (mut terminated, mut interrupted) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    HttpServer { listener, tls, limits: config.limits }.serve(router, stop).await;
    Ok(())
}
