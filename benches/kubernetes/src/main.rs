//! Starts each function as a pod of ours and as a pod of a native image, in turns, on one node, and takes the time from
//! "scheduled" to the start of its task, to "running" and to the first answer. These are the operator paper's Figures 4
//! and 5, with the same source on both sides. `scripts/kubernetes.sh bench` runs it beside the test cluster.

mod events;
mod pod;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use kube::Client;

use events::Events;
use pod::{Side, Start};

/// Longest life of one pod.
const POD_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Parser)]
struct Arguments {
    /// Functions, each with its query: `prime-numbers?n=100`
    #[arg(required = true)]
    functions: Vec<String>,
    /// Namespace of the pods
    #[arg(long)]
    namespace: String,
    /// Node of the pods; this program runs in its network
    #[arg(long)]
    node: String,
    /// How often each function starts on each side
    #[arg(long, default_value_t = 100)]
    repeats: usize,
    /// Environment variables of all pods
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// What the functions may reach
    #[arg(long)]
    network: Option<String>,
    /// File to which `ctr events` writes on the node
    #[arg(long)]
    events: PathBuf,
    /// Folder of the report
    #[arg(long)]
    out: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let client = Client::try_default().await.context("read the kubeconfig")?;
    let mut starts = Vec::new();
    let mut events = Events::new(arguments.events.clone());
    for repeat in 0..arguments.repeats {
        for function in &arguments.functions {
            let (name, query) = function.split_once('?').unwrap_or((function, ""));
            // Each side goes first as often as the other.
            let mut sides = [Side::Ours, Side::Native];
            if repeat % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                let wanted = pod::Wanted {
                    name,
                    query,
                    side,
                    number: repeat,
                    node: &arguments.node,
                    env: &arguments.env,
                    network: arguments.network.as_deref(),
                };
                let started = pod::start(&client, &arguments.namespace, &wanted, &mut events);
                let times = tokio::time::timeout(POD_MAX, started).await;
                let times = times.with_context(|| {
                    format!(
                        "{name}, {side}: no answer within {POD_MAX:?}; ask `kubectl describe pods`"
                    )
                })??;
                starts.push(Start { function: name.to_owned(), side, times });
            }
        }
        eprintln!("round {} of {}", repeat + 1, arguments.repeats);
    }
    report::write(&starts, &arguments.out)
}
