//! `cwasi gateway`: HTTP clients call the functions of this node whose `cwasi.http` allows it (`docs/http.md`).
//!
//! The calls, the bodies and the bounds are those of [`cwasi_host::http`]. Here are the paths, who may use them, TLS,
//! and metrics.
//!
//! Invariant: without a token or client certificates, it listens on loopback addresses only, unless the operator says
//! otherwise.

mod callbacks;
mod logs;
mod metrics;
mod namespaces;
mod origins;
mod paths;
mod router;
mod system;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

use cwasi_config::NodeConfig;
use cwasi_host::caller::{CallerIdentity, CallerKind, HostCaller};
use cwasi_host::http::HttpLimits;
use cwasi_host::http::connections::Connections;
use cwasi_host::http::front::FunctionFront;
use cwasi_host::http::server::HttpServer;
use cwasi_host::one_line::OneLine;
use cwasi_wire::egress::Egress;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing_subscriber::EnvFilter;

use crate::access::Access;
use crate::failure::{Exit, Failure};
use crate::output;
use callbacks::Callbacks;
use logs::Logs;
use metrics::Metrics;
use namespaces::Namespaces;
use origins::Origins;
pub use origins::{AllowedHost, CorsOrigin};
use router::Router;
use system::System;

/// Time to the next of the timers that fire before those of connections.
const TIMER_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of a gateway.
#[derive(Debug)]
pub struct GatewayConfig {
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
    /// Web pages that may call functions.
    pub cors_origins: Vec<CorsOrigin>,
    /// Names by which clients may call the gateway; every one, if it has no entries.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Where callbacks may go; nowhere, if it has no entries.
    pub callback_allow: Egress,
    /// Directory of the calls whose callbacks are not done.
    pub callback_dir: PathBuf,
    pub limits: HttpLimits,
    pub node: NodeConfig,
}

/// Writes the log to stderr, as shims do.
fn log(filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| OneLine(io::stderr()))
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false)
        .init();
}

/// The calls with callbacks, if the operator allows any.
fn callbacks(
    directory: &Path,
    allow: Egress,
    front: &FunctionFront,
    metrics: &Metrics,
) -> Result<Option<Callbacks>, Failure> {
    if allow.entries.is_empty() {
        return Ok(None);
    }
    let started = Callbacks::start(directory, allow, front.clone(), metrics.clone());
    started.map(Some).map_err(|error| {
        let text = format!("callback directory {}: {error}", directory.display());
        Failure::text(Exit::Unavailable, text)
    })
}

/// Serves until SIGTERM or SIGINT, then ends the requests that are being served. Prints the address to stderr when it
/// listens. Blocks.
///
/// Each processor has a thread that serves its connections from their requests to their responses, with connections of
/// its own to functions: no request changes threads. Redis, callbacks and signals are the business of another runtime.
///
/// # Errors
/// When the settings contradict each other, a file cannot be used, or the address is taken.
pub fn run(config: GatewayConfig) -> Result<(), Failure> {
    log(&config.node.log);
    let background = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut signals = {
        let _entered = background.enter();
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]
    };
    let (server, router, stopping) = background.block_on(prepare(config))?;
    let threads = available_parallelism().map_or(1, NonZero::get);
    let serving = (0..threads)
        .map(|_| {
            let (server, router) = (server.try_clone()?, router.sibling());
            let stopped = stopping.subscribe();
            let thread = std::thread::Builder::new().name("http".to_owned());
            thread.spawn(move || server.serve(router, stopped))
        })
        .collect::<io::Result<Vec<_>>>()?;
    background.block_on(async {
        let [terminated, interrupted] = &mut signals;
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    });
    // Clients that connect from now on are refused instead of being left to wait.
    drop(server);
    stopping.send_replace(true);
    for thread in serving {
        thread
            .join()
            .map_err(|_panic| Failure::text(Exit::Failed, "a serving thread panicked"))??;
    }
    background.block_on(router.flush());
    Ok(())
}

/// What serves on each thread.
struct Listener {
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    limits: HttpLimits,
    connections: Connections,
}

impl Listener {
    fn try_clone(&self) -> io::Result<Self> {
        let Self { listener, tls, limits, connections } = self;
        let (tls, limits) = (tls.clone(), limits.clone());
        let connections = connections.clone();
        Ok(Self { listener: listener.try_clone()?, tls, limits, connections })
    }

    /// Serves in a runtime of this thread.
    fn serve(self, router: Router, mut stopped: watch::Receiver<bool>) -> io::Result<()> {
        let Self { listener, tls, limits, connections } = self;
        Builder::new_current_thread().enable_all().build()?.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            let stop = async {
                // The sender outlives the threads.
                let _stopped = stopped.wait_for(|stopped| *stopped).await;
            };
            // Ends with the runtime.
            tokio::spawn(keep_a_timer());
            let server = HttpServer { listener, tls, limits };
            server.serve_within(connections, router, stop).await;
            Ok(())
        })
    }
}

/// Always has a timer that fires before those of connections. A timer that fires before all others makes tokio wake its
/// reactor by a system call, also from the reactor's own thread, and each response starts one for the next request.
async fn keep_a_timer() {
    loop {
        tokio::time::sleep(TIMER_INTERVAL).await;
    }
}

/// Checks the settings, listens, and continues with callbacks.
async fn prepare(
    config: GatewayConfig,
) -> Result<(Listener, Router, watch::Sender<bool>), Failure> {
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
    let listener = TcpListener::bind(config.listen).await.and_then(TcpListener::into_std);
    let listener = listener.map_err(|error| {
        let text = format!("cannot listen on {}: {error}", config.listen);
        Failure::text(Exit::Unavailable, text)
    })?;
    let limits = config.limits;
    let front = FunctionFront::new(caller.clone(), limits.clone());
    let metrics = Metrics::new();
    let callbacks = callbacks(&config.callback_dir, config.callback_allow, &front, &metrics)?;
    output::note(format_args!("cwasi gateway: listening on {}", listener.local_addr()?));
    let system = System {
        namespaces: Namespaces::of(&caller),
        logs: Logs::new(&config.node, has_clients),
        caller,
        metrics,
    };
    let origins = Origins::new(&config.cors_origins, config.allowed_hosts);
    let router = Router::new(system, front, access, origins, callbacks);
    let connections = Connections::new(limits.connections);
    Ok((Listener { listener, tls, limits, connections }, router, watch::Sender::new(false)))
}
