//! `cwasi metrics`: numbers of all calls and functions of this node, for Prometheus.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use cwasi_config::NodeConfig;
use cwasi_host::metrics::node::NodeMetrics;
use cwasi_host::state::StateDir;

use crate::arguments::Global;
use crate::failure::Failure;
use crate::metrics::{self, Listen};
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Metrics {
    /// Serve them at /metrics instead of printing them once
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    listen: Option<Listen>,
    /// The node's configuration file [default: $CWASI_CONFIG, /etc/cwasi/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Metrics {
    /// Prints them, or serves until SIGTERM or SIGINT. containerd is not needed.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        global.refuse_json(
            "metrics",
            "it speaks OpenMetrics; cwasi top --json has calls and functions",
        )?;
        let node = NodeConfig::load(None, self.config.as_deref())?;
        let state = StateDir::new(&node.state_dir);
        match self.listen {
            None => output::bytes(metrics::text(NodeMetrics::read(&state)).as_bytes())?,
            Some(listen) => metrics::serve(state, listen).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
