//! `cwasi openwhisk`: the API of WOW's executor. One process runs many actions, each in a sandbox of `run --local`.
//!
//! Invariants: clients are on this host, and no web pages. An action gets a directory or a network only if the command
//! line allows it. A running action delays no other client.
//!
//! - [`service`]: the paths; [`messages`]: bodies; `actions`: the sandboxes.

mod actions;
mod messages;
mod service;

use std::net::SocketAddr;
use std::path::PathBuf;

use cwasi_host::http::HttpLimits;
use cwasi_host::http::server::HttpServer;
use tokio::net::TcpListener;

use self::actions::Actions;
use self::service::Executor;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;

/// What an action may get, if it asks for it.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Directories of this user, and all below them.
    pub dirs: Vec<PathBuf>,
    /// Every destination.
    pub network: bool,
}

/// Serves until a signal comes, then ends all actions. Prints the address to stderr when it listens.
///
/// # Errors
/// When the address is taken or another host could reach it, or no sandboxes can be made.
pub async fn run(listen: SocketAddr, allowed: Allowed) -> Result<(), Failure> {
    if !listen.ip().is_loopback() {
        let text = format!(
            "{listen} is reached by other hosts, and clients need no token here: listen on a loopback address"
        );
        return Err(Failure::text(Exit::Denied, text));
    }
    let mut interrupt = Interrupt::new()?;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure::text(Exit::Unavailable, format!("{listen} cannot be listened on: {error}"))
    })?;
    let actions = Actions::start(allowed).await?;
    output::note(format_args!("cwasi: listening on http://{}", listener.local_addr()?));
    let executor = Executor::new(actions);
    let server = HttpServer { listener, tls: None, limits: HttpLimits::default() };
    let signalled = async {
        let _exit = interrupt.received().await;
    };
    server.serve(executor.clone(), signalled).await;
    executor.end().await;
    Ok(())
}
