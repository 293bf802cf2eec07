//! `cwasi top`: who calls whom, how, how often and how fast, again and again. The shims write these numbers once a
//! second.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::arguments::Global;
use crate::deployment::Node;
use crate::deployment::hops::{self, Hop};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::table::Table;

/// Clears a terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Top {
    /// Only this workflow
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Time between two pictures
    #[arg(short, long, default_value = "2s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// End after this many pictures
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
}

impl Top {
    /// Prints pictures until Ctrl-C. Containers of no workflow have no numbers here.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let mut interrupt = Interrupt::new()?;
        let clears = std::io::IsTerminal::is_terminal(&std::io::stdout()) && !global.json;
        let mut before = (Instant::now(), self.hops(&node).await?);
        let mut pictures = 0;
        while self.count.is_none_or(|count| pictures < count) {
            tokio::select! {
                () = interrupt.received() => break,
                () = tokio::time::sleep(self.interval) => {}
            }
            let now = (Instant::now(), self.hops(&node).await?);
            let seconds = (now.0 - before.0).as_secs_f64();
            let new = hops::since(&before.1, now.1.clone());
            if global.json {
                println!("{}", json!({ "seconds": seconds, "hops": new }));
            } else {
                print!("{}{}", if clears { CLEAR } else { "" }, table(&now.1, &new, seconds));
            }
            before = now;
            pictures += 1;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The calls of all workflows that have a container.
    async fn hops(&self, node: &Node) -> Result<Vec<Hop>, Failure> {
        let containers = node.containerd.containers().await?;
        let names = containers.iter().map(|container| container.annotation("cwasi.workflow"));
        let mut workflows: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
        if let Some(only) = &self.workflow {
            workflows.retain(|name| name == only);
        }
        let read = |workflow: &str| {
            hops::read(&node.config.state_dir, node.containerd.namespace(), workflow)
        };
        Ok(workflows.into_iter().flat_map(read).collect())
    }
}

/// All edges; those without calls since the last picture have a rate of 0.
fn table(all: &[Hop], new: &[Hop], seconds: f64) -> Table {
    let mut table = Table::new([
        "CALLER", "CALLEE", "MODE", "CALLS/S", "MB/S", "ERRORS", "CALLS", "P50 US", "P99 US", "WHY",
    ]);
    for hop in all {
        let is_same =
            |it: &&Hop| (&it.caller, &it.callee, &it.mode) == (&hop.caller, &hop.callee, &hop.mode);
        let (calls, bytes, errors) = new.iter().find(is_same).map_or((0, 0, 0), |new| {
            (new.calls, new.request_bytes + new.response_bytes, new.errors)
        });
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let (calls, megabytes) = (calls as f64 / seconds, bytes as f64 / seconds / 1e6);
        table.row([
            hop.caller.clone(),
            hop.callee.clone(),
            hop.mode.clone(),
            format!("{calls:.0}"),
            format!("{megabytes:.1}"),
            errors.to_string(),
            hop.calls.to_string(),
            format!("{:.0}", hop.p50_us),
            format!("{:.0}", hop.p99_us),
            hop.reason.clone(),
        ]);
    }
    table
}
