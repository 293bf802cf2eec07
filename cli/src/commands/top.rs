//! `cwasi top`: who calls whom, how, how often and how fast, and how busy the functions are, again and again. The shims
//! write these numbers once a second.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use cwasi_host::metrics::snapshot::{EdgeSnapshot, FunctionSnapshot};
use serde_json::json;

use crate::arguments::Global;
use crate::deployment::Node;
use crate::deployment::hops;
use crate::duration;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::keys::Key;
use crate::output;
use crate::table::Table;

/// The annotation with a function's workflow.
const WORKFLOW: &str = "cwasi.workflow";
/// Clears a terminal.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";
/// The key that ends it.
const QUIT: u8 = b'q';

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Top {
    /// Only this workflow
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Time between two pictures, such as 2s; a plain number is of seconds
    #[arg(short, long, default_value = "2s", value_parser = duration::parse)]
    interval: Duration,
    /// End after this many pictures
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
}

impl Top {
    /// Prints pictures until Ctrl-C, or the key `q` on a terminal. Calls between containers of no workflow have no
    /// numbers here.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let node = Node::connect(global).await?;
        let mut interrupt = Interrupt::new()?;
        let clears = std::io::IsTerminal::is_terminal(&std::io::stdout()) && !global.json;
        let mut quit = if clears { Key::wait_for(QUIT)? } else { None };
        let mut before = (Instant::now(), self.read(&node).await?.0);
        let mut pictures = 0;
        while self.count.is_none_or(|count| pictures < count) {
            tokio::select! {
                exit = interrupt.received() => return Ok(exit.into()),
                () = pressed(quit.as_mut()) => return Ok(ExitCode::SUCCESS),
                () = tokio::time::sleep(self.interval) => {}
            }
            let (hops, functions) = self.read(&node).await?;
            let now = (Instant::now(), hops);
            let seconds = (now.0 - before.0).as_secs_f64();
            let new = hops::merged(hops::since(&before.1, now.1.clone()));
            if global.json {
                let picture = json!({ "seconds": seconds, "hops": new, "functions": functions });
                output::json_line(&picture)?;
            } else {
                let edges = table(&hops::merged(now.1.clone()), &new, seconds);
                if clears {
                    output::bytes(CLEAR)?;
                }
                let functions = functions_table(&functions);
                output::text(format_args!("{edges}\n{functions}"))?;
            }
            before = now;
            pictures += 1;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The calls and the secondaries of all workflows that have a container, and the calls of the host's processes.
    async fn read(
        &self,
        node: &Node,
    ) -> Result<(Vec<EdgeSnapshot>, Vec<FunctionSnapshot>), Failure> {
        let containers = node.containerd.containers().await?;
        let names = containers.iter().map(|container| container.annotation(WORKFLOW));
        let mut workflows: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
        if let Some(only) = &self.workflow {
            workflows.retain(|name| name == only);
        }
        let (state, namespace) = (&node.config.state_dir, node.containerd.namespace());
        let calls = workflows.iter().flat_map(|name| hops::read(state, namespace, name));
        let functions = workflows.iter().flat_map(|name| hops::functions(state, namespace, name));
        let mut calls: Vec<_> = calls.collect();
        let callees = containers.iter().filter(|it| workflows.contains(it.annotation(WORKFLOW)));
        let callees: BTreeSet<_> = callees.map(|it| it.function()).collect();
        let from_host = hops::of_host_callers(state, namespace).into_iter();
        calls
            .extend(from_host.filter(|hop| {
                self.workflow.is_none() || callees.contains(hop.key.callee.as_str())
            }));
        Ok((calls, functions.collect()))
    }
}

/// Waits for the key that ends it; without a keyboard, never returns.
async fn pressed(key: Option<&mut Key>) {
    match key {
        Some(key) => key.pressed().await,
        None => std::future::pending().await,
    }
}

/// All edges; those without calls since the last picture have a rate of 0. Columns of rates and new errors are of the
/// interval, those of `ALL` of the time since the workflow's start.
fn table(all: &[EdgeSnapshot], new: &[EdgeSnapshot], seconds: f64) -> Table {
    let mut table = Table::new([
        "CALLER",
        "CALLEE",
        "MODE",
        "CALLS/S",
        "MB/S",
        "NEW ERRORS",
        "ALL CALLS",
        "ALL P50 US",
        "ALL P99 US",
        "WHY",
    ]);
    for EdgeSnapshot { key, reason, counts, p50_us, p99_us, .. } in all {
        let new = new.iter().find(|new| new.key == *key).map(|new| &new.counts);
        let (calls, bytes, errors) = new.map_or((0, 0, 0), |new| {
            (new.calls, new.request_bytes + new.response_bytes, new.errors)
        });
        let kinds = new.map(|new| new.error_kinds.keys().cloned().collect::<Vec<_>>().join(", "));
        let kinds = kinds.unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let (calls, megabytes) = (calls as f64 / seconds, bytes as f64 / seconds / 1e6);
        table.row([
            key.caller.clone(),
            key.callee.clone(),
            key.mode_and_path(),
            format!("{calls:.0}"),
            format!("{megabytes:.1}"),
            if errors == 0 { "0".to_owned() } else { format!("{errors} ({kinds})") },
            counts.calls.to_string(),
            format!("{p50_us:.0}"),
            format!("{p99_us:.0}"),
            reason.clone(),
        ]);
    }
    table
}

/// The secondaries now. Refusals are those since the shim started.
fn functions_table(functions: &[FunctionSnapshot]) -> Table {
    let mut table =
        Table::new(["FUNCTION", "INSTANCES", "WORKERS", "BUSY", "QUEUED", "ALL REFUSED", "POOL"]);
    for FunctionSnapshot { key, gauges } in functions {
        table.row([
            key.function.clone(),
            gauges.instances.to_string(),
            gauges.workers.to_string(),
            gauges.busy.to_string(),
            gauges.queued.to_string(),
            gauges.refused.to_string(),
            hops::bytes(gauges.pool_bytes),
        ]);
    }
    table
}
