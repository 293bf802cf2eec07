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
    /// Address and port to listen on; without --token-file a loopback one
    #[arg(long, default_value = LISTEN_DEFAULT, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Directory that actions may ask for, with all below it (annotation dir); repeatable
    #[arg(long, value_name = "DIR")]
    allow_dir: Vec<PathBuf>,
    /// Actions may ask for sockets to every destination but this executor (annotation net_access)
    #[arg(long)]
    allow_network: bool,
    /// File with a token of 16 bytes or more that clients send (Authorization: Bearer TOKEN)
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Openwhisk {
    /// Serves until SIGTERM or SIGINT.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        global.refuse_json("openwhisk", "it serves HTTP clients")?;
        let allowed = Allowed { dirs: self.allow_dir, network: self.allow_network };
        openwhisk::run(self.listen, allowed, self.token_file.as_deref()).await?;
        Ok(ExitCode::SUCCESS)
    }
}
