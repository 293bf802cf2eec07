//! `cwasi openwhisk`: actions of OpenWhisk, and of WOW's executor, without containers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::arguments::Global;
use crate::failure::Failure;
use crate::openwhisk::{self, Allowed};

/// Where WOW's executor listens.
const LISTEN_DEFAULT: &str = "127.0.0.1:9000";

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Openwhisk {
    /// Loopback address and port to listen on
    #[arg(long, default_value = LISTEN_DEFAULT, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Directory that actions may ask for, with all below it (annotation dir); repeatable
    #[arg(long, value_name = "DIR")]
    allow_dir: Vec<PathBuf>,
    /// Actions may ask for sockets to every destination (annotation net_access)
    #[arg(long)]
    allow_network: bool,
}

impl Openwhisk {
    /// Serves until SIGTERM or SIGINT.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        global.refuse_json("openwhisk", "it serves HTTP clients")?;
        let allowed = Allowed { dirs: self.allow_dir, network: self.allow_network };
        openwhisk::run(self.listen, allowed).await?;
        Ok(ExitCode::SUCCESS)
    }
}
