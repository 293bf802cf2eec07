//! The server process of a baseline. Its stdin is its connection or its lifeline: it ends with its client.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail};

use super::{
    Baseline, Peer, end_with_parent, http, http_wasmedge, http2, pubsub, tcp, tls, uds, watchdog,
};
use crate::placement::pin;

/// Serves until the client is gone.
///
/// # Errors
/// When it cannot serve.
pub fn run(peer: &Peer) -> Result<()> {
    end_with_parent()?;
    if let Some(processor) = peer.server_processor {
        pin(0, Some(processor))?;
    }
    match peer.kind {
        Baseline::UdsCopy => uds::serve_copies(peer.buffer, connection()?),
        Baseline::UdsPingpong => uds::serve_pingpong(connection()?),
        Baseline::HttpLoopback => http::serve(peer.server_port, http::answer),
        Baseline::HttpWatchdog => http::serve(peer.server_port, watchdog::answer),
        Baseline::HttpWasmedge => http_wasmedge::become_server(peer),
        Baseline::Redis => pubsub::serve(&peer.address),
        Baseline::Tcp => tcp::serve(peer.buffer),
        Baseline::Tls => tls::serve(&peer.address, peer.buffer),
        Baseline::Http2 => http2::serve(&peer.address),
        Baseline::Native => bail!("what only computes has no server"),
        Baseline::Memcpy => bail!("a copy in one process has no server"),
    }
}

fn connection() -> Result<UnixStream> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("our connection")?;
    Ok(UnixStream::from(stdin))
}
