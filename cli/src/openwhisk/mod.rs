//! `cwasi openwhisk`: the API of WOW's executor. One process runs many actions, each in a sandbox of `run --local`.
//!
//! Invariants: clients know the token or are on this host, and are no web pages. An action gets a directory or a network
//! only if the command line allows it, and never the executor itself. A running action delays no other client.
//!
//! - [`service`]: the paths; [`messages`]: bodies; `actions`: the sandboxes; `folders`: what
//!   they may open; `own_addresses`: what they may not reach.

mod actions;
mod error;
mod folders;
mod messages;
mod own_addresses;
mod service;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use cwasi_host::http::HttpLimits;
use cwasi_host::http::server::HttpServer;
use tokio::net::TcpListener;

use self::actions::Actions;
use self::folders::AllowedFolders;
use self::service::Executor;
use crate::access::Access;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;

/// What an action may get, if it asks for it.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Directories of this user, and all below them.
    pub dirs: Vec<PathBuf>,
    /// Every destination but the executor.
    pub network: bool,
}

/// Serves until a signal comes, then ends all actions. Prints the address to stderr when it listens. With a token file
/// clients need its token.
///
/// # Errors
/// When the address is taken, another host could reach it without a token, or no sandboxes can be made.
pub async fn run(
    listen: SocketAddr,
    allowed: Allowed,
    token_file: Option<&Path>,
) -> Result<(), Failure> {
    let access = Access::new(token_file)?;
    if !listen.ip().is_loopback() && !access.is_restricted() {
        let text = format!(
            "{listen} is reached by other hosts, and clients need no token: set --token-file, or listen on a loopback address"
        );
        return Err(Failure::text(Exit::Denied, text));
    }
    let folders = AllowedFolders::open(&allowed.dirs)?;
    let mut interrupt = Interrupt::new()?;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure::text(Exit::Unavailable, format!("{listen} cannot be listened on: {error}"))
    })?;
    let address = listener.local_addr()?;
    let actions = Actions::start(folders, allowed.network, address).await?;
    output::note(format_args!("cwasi: listening on http://{address}"));
    let executor = Executor::new(actions, access);
    let server = HttpServer { listener, tls: None, limits: HttpLimits::default() };
    let signalled = async {
        let _exit = interrupt.received().await;
    };
    server.serve(executor.clone(), signalled).await;
    executor.end().await;
    Ok(())
}
