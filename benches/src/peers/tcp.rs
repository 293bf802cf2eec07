//! TCP between two processes, over loopback or from one network namespace to another. A server's end is its stdin, so
//! that it ends with its client.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, setns};

use super::uds::{Copying, Server, serve_copies, server_on};
use super::{Buffer, Peer};

/// Connects to new servers.
pub fn start(peer: &Peer) -> Result<Copying<TcpStream>> {
    Ok(Copying::over((0..peer.servers).map(|_| connected(peer)).collect::<Result<_>>()?))
}

/// Serves copies until the client is gone.
pub fn serve(buffer: Buffer) -> Result<()> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("our connection")?;
    serve_copies(buffer, TcpStream::from(stdin))
}

/// A connection from the client's network to a new server in the servers'.
pub fn connected(peer: &Peer) -> Result<(TcpStream, Server)> {
    let bind = || TcpListener::bind((peer.server_address, 0)).context("a port");
    let listener = within(peer.server_network.as_deref(), bind)?;
    let address = listener.local_addr()?;
    let connect = || TcpStream::connect(address).context("connect");
    let ours = within(peer.client_network.as_deref(), connect)?;
    let (theirs, _) = listener.accept().context("a connection")?;
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true)?;
    }
    Ok((ours, server_on(peer, theirs.into())?))
}

/// Runs `job` in a network namespace, where sockets that it opens stay.
pub fn within<T: Send>(
    network: Option<&Path>,
    job: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(network) = network else { return job() };
    let entered = || {
        let network = File::open(network).context("a network namespace")?;
        setns(network, CloneFlags::CLONE_NEWNET).context("enter it")?;
        job()
    };
    // The namespace is the thread's.
    thread::scope(|scope| scope.spawn(entered).join())
        .unwrap_or_else(|_| Err(anyhow!("a panic in a network namespace")))
}
