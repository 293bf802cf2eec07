//! `cwasi gateway`: HTTP clients call functions of this node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use cwasi_config::NodeConfig;
use cwasi_config::http::check_idle;
use cwasi_host::caller::CALLER_NAME;
use cwasi_host::http::HttpLimits;
use cwasi_wire::egress::{Egress, EgressEntry};

use crate::arguments::Global;
use crate::failure::{Exit, Failure};
use crate::gateway::{self, AllowedHost, CorsOrigin, GatewayConfig};

/// Where a gateway listens, unless the operator says otherwise: this host alone reaches it.
const LISTEN_DEFAULT: &str = "127.0.0.1:8080";

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Gateway {
    /// Address and port to listen on
    #[arg(long, default_value = LISTEN_DEFAULT, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The name by which `cwasi.allow` of a function knows the gateway
    #[arg(long, default_value = CALLER_NAME, value_name = "NAME")]
    name: String,
    /// Kubernetes namespace of functions that a path names without one
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pod_namespace: String,
    /// File with the bearer token that clients send
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the certificate's key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File with the certificates that sign clients' certificates, PEM; clients without one are refused
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Serve clients on other hosts without token and certificate
    #[arg(long)]
    allow_anonymous: bool,
    /// Origin whose web pages may call functions, as browsers write it, or * for all; repeatable
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<CorsOrigin>,
    /// Host that requests may name, without a port; others get 421; repeatable [default: every host]
    #[arg(long, value_name = "HOST")]
    allowed_host: Vec<AllowedHost>,
    /// Where X-Callback-Url may lead, as in cwasi.network: NAME:PORT, *.DOMAIN:PORT, an address or a network
    #[arg(long, value_name = "DESTINATION", value_delimiter = ',')]
    callback_allow: Vec<EgressEntry>,
    /// Directory that keeps calls until their callbacks are done [default: callbacks in the node's cache_dir]
    #[arg(long, value_name = "DIR")]
    callback_dir: Option<PathBuf>,
    /// Most requests at a time; more get 429
    #[arg(long, default_value_t = HttpLimits::default().requests, value_name = "N")]
    max_requests: usize,
    /// Longest request in seconds
    #[arg(long, default_value_t = HttpLimits::default().request_timeout.as_secs(), value_name = "SECONDS")]
    timeout: u64,
    /// Longest pause of a client in seconds: before and in its request, and in reading the response
    #[arg(long, default_value_t = HttpLimits::default().stall_timeout.as_secs(), value_name = "SECONDS")]
    client_timeout: u64,
    /// Longest wait of an idle connection for its next request, in seconds [default: idle_seconds in the node's `[http]`]
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
    /// The node's configuration file [default: $CWASI_CONFIG, /etc/cwasi/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Gateway {
    /// Serves until SIGTERM or SIGINT.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        global.refuse_json("gateway", "it serves HTTP clients")?;
        let node = NodeConfig::load(None, self.config.as_deref())?;
        let idle_timeout = self.idle_timeout.unwrap_or(node.http.idle_seconds);
        check_idle(idle_timeout)
            .map_err(|problem| Failure::text(Exit::Usage, format!("--idle-timeout {problem}")))?;
        let client_timeout = Duration::from_secs(self.client_timeout.max(1));
        let config = GatewayConfig {
            listen: self.listen,
            name: self.name,
            namespace: global.namespace.clone(),
            pod_namespace: self.pod_namespace,
            token_file: self.token_file,
            certificate: self.tls_cert.zip(self.tls_key),
            client_ca: self.client_ca,
            allow_anonymous: self.allow_anonymous,
            cors_origins: self.cors_origin,
            allowed_hosts: self.allowed_host,
            callback_allow: Egress { entries: self.callback_allow, ..Egress::default() },
            callback_dir: self.callback_dir.unwrap_or_else(|| node.cache_dir.join("callbacks")),
            limits: HttpLimits {
                requests: self.max_requests.max(1),
                request_timeout: Duration::from_secs(self.timeout.max(1)),
                head_timeout: client_timeout,
                idle_timeout: Duration::from_secs(idle_timeout),
                stall_timeout: client_timeout,
                ..HttpLimits::default()
            },
            node,
        };
        tokio::task::spawn_blocking(|| gateway::run(config)).await??;
        Ok(ExitCode::SUCCESS)
    }
}
