//! `cwasi dashboard`: a page about the functions of this node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use cwasi_config::NodeConfig;

use crate::arguments::Global;
use crate::dashboard;
use crate::failure::Failure;

/// Where it listens, unless the user says otherwise.
const LISTEN_DEFAULT: &str = "127.0.0.1:8099";

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Dashboard {
    /// Loopback address and port to listen on
    #[arg(long, default_value = LISTEN_DEFAULT, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The node's configuration file [default: $CWASI_CONFIG, /etc/cwasi/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Dashboard {
    /// Serves until SIGTERM or SIGINT.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        global.refuse_json("dashboard", "it serves a page")?;
        let node = NodeConfig::load(None, self.config.as_deref())?;
        dashboard::serve(global.clone(), node, self.listen).await?;
        Ok(ExitCode::SUCCESS)
    }
}
