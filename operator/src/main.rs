//! The program `cwasi-operator`: one of its processes works, the others wait until its Lease ends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use cwasi_networked::RedisTarget;
use cwasi_operator::context::{Context, Written};
use cwasi_operator::controller::Controller;
use cwasi_operator::edges::Edges;
use cwasi_operator::endpoints::{self, Metrics};
use cwasi_operator::leader;
use cwasi_operator::objects::names;
use cwasi_operator::plan::pod_security::PodSecurity;
use cwasi_operator::resource::Workflow;
use cwasi_operator::scaler::announcer::announce;
use cwasi_operator::scaler::{Scaler, ServeError};
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::Store;
use kube_lease_manager::LeaseManagerBuilder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

/// A leader that does not renew its Lease for so long is one no more, in seconds; it renews the rest before.
const LEASE_SECONDS: u64 = 15;
const LEASE_GRACE_SECONDS: u64 = 5;
/// Longest time to give it back at the end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// What is logged without RUST_LOG. What watchers say is logged here, once.
const LOG: &str = "info,kube_runtime::watcher=off";
/// The operator's Service.
const SERVICE: &str = "cwasi-operator";

/// Makes Deployments, Jobs, Services and more of CWASI's workflows
#[derive(Debug, Parser)]
#[command(name = "cwasi-operator", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Only workflows of this namespace; without it, of all
    #[arg(long, env = "CWASI_NAMESPACE")]
    namespace: Option<String>,
    /// Address of /metrics, /healthz and /readyz
    #[arg(long, default_value = "0.0.0.0:8080", env = "CWASI_LISTEN")]
    listen: SocketAddr,
    /// Name of the Lease, in the operator's namespace, by which one process is the leader
    #[arg(long, default_value = "cwasi-operator")]
    lease: String,
    /// Redis of the nodes (their `redis_url`), for functions with `scale.min: 0`; without it they keep one pod
    #[arg(long, env = "CWASI_REDIS_URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// File with the certificates that Redis' may be signed by; without it, the system's
    #[arg(long, env = "CWASI_REDIS_CA")]
    redis_ca: Option<PathBuf>,
    /// Address of the scaler for KEDA
    #[arg(long, default_value = "0.0.0.0:9091", env = "CWASI_SCALER_LISTEN")]
    scaler_listen: SocketAddr,
    /// The same as KEDA reaches it, HOST:PORT; without it, the Service cwasi-operator of the operator's namespace
    #[arg(long, env = "CWASI_SCALER_ADDRESS")]
    scaler_address: Option<String>,
    /// The most that a Workflow may ask for its pods, as a level of Pod Security; a service account of its own needs
    /// privileged
    #[arg(
        long,
        env = "CWASI_POD_SECURITY",
        value_enum,
        default_value_t = PodSecurity::Privileged,
        value_name = "LEVEL"
    )]
    pod_security: PodSecurity,
    /// Name of this process in the Lease
    #[arg(long, env = "HOSTNAME", default_value = "cwasi-operator")]
    identity: String,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the CustomResourceDefinition
    Crd,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.verb {
        Some(Verb::Crd) => print_definition(),
        None => operate(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cwasi-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print_definition() -> anyhow::Result<()> {
    let text = serde_saphyr::to_string(&cwasi_operator::crd::definition())?;
    print!("{text}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn operate(arguments: Arguments) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| LOG.into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let client = Client::try_default()
        .await
        .context("no Kubernetes API: run it in a cluster, or set KUBECONFIG")?;
    let metrics = Metrics::default();
    let lease = LeaseManagerBuilder::new(client.clone(), &arguments.lease)
        .with_namespace(client.default_namespace())
        .with_identity(&arguments.identity)
        .with_duration(LEASE_SECONDS)
        .with_grace(LEASE_GRACE_SECONDS)
        .build()
        .await
        .with_context(|| format!("the Lease {} cannot be used", arguments.lease))?;
    let on_demand = OnDemand::start(&arguments, client.default_namespace())?;
    // Process 1 of a container ignores signals for which it has no handler.
    let mut terminated = signal(SignalKind::terminate())?;
    let (mut leads, lease) = leader::keep(lease);
    let ended = tokio::select! {
        served = endpoints::serve(arguments.listen, metrics.clone()) => {
            let Err(error) = served;
            Err(error).with_context(|| format!("{} cannot be listened on", arguments.listen))
        }
        served = serve_scaler(on_demand.as_ref(), arguments.scaler_listen) => {
            served.with_context(|| format!("{} cannot be listened on", arguments.scaler_listen))
        }
        worked = work(&arguments, &client, &metrics, on_demand.as_ref(), &mut leads) => worked,
        _signal = terminated.recv() => Ok(()),
    };
    // Whoever waits for the Lease has it now, and not when it ends.
    drop(leads);
    let _released = tokio::time::timeout(RELEASE_TIMEOUT, lease).await;
    ended
}

/// Waits for the Lease, and works while this process has it.
async fn work(
    arguments: &Arguments,
    client: &Client,
    metrics: &Metrics,
    on_demand: Option<&OnDemand>,
    leads: &mut watch::Receiver<bool>,
) -> anyhow::Result<()> {
    leads.wait_for(|leads| *leads).await.context("the Lease ended")?;
    info!(identity = arguments.identity, "is the leader");
    metrics.lead();
    let valid = Duration::from_secs(LEASE_SECONDS);
    tokio::select! {
        // Another process may be the leader now: this one begins anew.
        _lost = leads.wait_for(|leads| !*leads) => bail!("the Lease was lost"),
        () = leader::expired(client.clone(), &arguments.lease, &arguments.identity, valid) => {
            bail!("the Lease was lost: another process has it, or it was not renewed for {LEASE_SECONDS} s")
        }
        () = control(arguments, client, metrics, on_demand) => Ok(()),
    }
}

/// Reconciles Workflows and measures their edges. It ends only when it is dropped, which loses nothing.
async fn control(
    arguments: &Arguments,
    client: &Client,
    metrics: &Metrics,
    on_demand: Option<&OnDemand>,
) {
    let reporter = Reporter {
        controller: names::MANAGER.to_owned(),
        instance: Some(arguments.identity.clone()),
    };
    let context = Context {
        client: client.clone(),
        cache: Arc::default(),
        recorder: Recorder::new(client.clone(), reporter),
        metrics: metrics.clone(),
        scaler: on_demand.map(|it| it.address.clone()),
        pod_security: arguments.pod_security,
        written: Written::default(),
    };
    let controller = Controller::new(client, arguments.namespace.as_deref(), context);
    let edges = Edges::new(client.clone(), client.default_namespace(), metrics.clone());
    let measured = edges.run(controller.store());
    let announced = announce_functions(client, on_demand, controller.store());
    tokio::select! {
        () = announced => {}
        () = controller.run() => {}
        () = measured => {}
    }
}

/// Announces functions that are started on demand. Never ends.
async fn announce_functions(
    client: &Client,
    on_demand: Option<&OnDemand>,
    workflows: Store<Workflow>,
) {
    match on_demand {
        Some(it) => announce(client.clone(), it.scaler.link().clone(), workflows).await,
        None => std::future::pending().await,
    }
}

/// What starts functions on demand.
struct OnDemand {
    scaler: Scaler,
    /// Of the scaler, as KEDA reaches it.
    address: String,
}

impl OnDemand {
    /// Begins to collect calls; `None` without a Redis.
    fn start(arguments: &Arguments, namespace: &str) -> anyhow::Result<Option<Self>> {
        let Some(url) = &arguments.redis_url else { return Ok(None) };
        let redis = RedisTarget { url: url.clone(), ca: arguments.redis_ca.clone() };
        let scaler = Scaler::start(&redis).context("CWASI_REDIS_URL or CWASI_REDIS_CA")?;
        let port = arguments.scaler_listen.port();
        let address = arguments
            .scaler_address
            .clone()
            .unwrap_or_else(|| format!("{SERVICE}.{namespace}.svc:{port}"));
        Ok(Some(Self { scaler, address }))
    }
}

async fn serve_scaler(on_demand: Option<&OnDemand>, address: SocketAddr) -> Result<(), ServeError> {
    match on_demand {
        Some(on_demand) => on_demand.scaler.clone().serve(address).await,
        None => std::future::pending().await,
    }
}
