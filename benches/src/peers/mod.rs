//! The alternatives: native processes that move the same payloads by other means.
//!
//! A baseline is a client process that takes the harness's jobs, and a server process. Both are this program again
//! (`cwasi-bench peer`, `cwasi-bench peer-server`), or a program that it executes.

mod client;
mod http;
mod http2;
mod http_wasmedge;
mod memcpy;
mod pubsub;
mod server;
mod tcp;
mod tls;
mod transport;
mod uds;
mod wasmtime_serve;
mod watchdog;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

pub use client::run as run_client;
pub use http::Server as HttpServer;
pub use http_wasmedge::{HTTP_GUESTS, HttpGuests, compile as compile_http_guests};
pub use server::run as run_server;
pub use wasmtime_serve::WasmtimeServe;
pub use watchdog::{PROCESSES_MAX, handle as run_handler};

use crate::placement::Placement;
use crate::side::Side;

/// A way of moving payloads between two native processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Baseline {
    /// A stream socket: write all, read all, a short answer.
    UdsCopy,
    /// A stream socket: the payload there and back, nothing else.
    UdsPingpong,
    /// HTTP/1.1 over loopback, one connection kept alive.
    HttpLoopback,
    /// The same, and the server starts a process for each request, as classic watchdogs do.
    HttpWatchdog,
    /// The same between two guests under the `wasmedge` command, which the paper measured.
    HttpWasmedge,
    /// One message through a Redis server, one back.
    Redis,
    /// TCP over loopback or a cable: header and payload there, a short answer back.
    Tcp,
    /// TLS 1.3 over loopback or a cable: header and payload there, a short answer back.
    Tls,
    /// HTTP/2 over TLS 1.3, over loopback or a cable: one connection with a stream for each of a job's callers.
    Http2,
    /// One copy in one process: a limit, no transport.
    Memcpy,
    /// The same program, compiled for this processor.
    Native,
}

/// Memory that a server receives into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Buffer {
    /// Mapped for each request, as memory of a fresh instance is.
    Fresh,
    /// The same for all requests.
    Warm,
}

/// One baseline.
#[derive(Clone, Debug, Args)]
pub struct Peer {
    /// How payloads move.
    #[arg(value_enum)]
    pub kind: Baseline,
    /// What they are received into.
    #[arg(long, value_enum, default_value = "fresh")]
    pub buffer: Buffer,
    /// Servers; a fan-out goes round them.
    #[arg(long, default_value_t = 1)]
    pub servers: usize,
    /// Connections of an HTTP client, if more than servers.
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// The Redis server's URL, a folder for a certificate, the address of an HTTP server that runs already, with or
    /// without a path, or the folder of compiled guests.
    #[arg(long, default_value = "")]
    pub address: String,
    /// Network namespace of the client, a file; ours if there is none. Of `tcp`, `tls`, `http2` and HTTP only.
    #[arg(long)]
    pub client_network: Option<PathBuf>,
    /// Network namespace of the servers. Of `tcp`, `tls` and `http2` only, as the next one.
    #[arg(long)]
    pub server_network: Option<PathBuf>,
    /// Their address in it.
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST)]
    pub server_address: Ipv4Addr,
    /// Port of an HTTP server; 0 is a free one.
    #[arg(long, default_value_t = 0)]
    pub server_port: u16,
    /// Processor of the client.
    #[arg(long)]
    pub client_processor: Option<usize>,
    /// Processor of the servers.
    #[arg(long)]
    pub server_processor: Option<usize>,
}

impl Peer {
    /// One of a kind, with one server and fresh memory.
    #[must_use]
    pub const fn new(kind: Baseline) -> Self {
        Self {
            kind,
            buffer: Buffer::Fresh,
            servers: 1,
            connections: 1,
            address: String::new(),
            client_network: None,
            server_network: None,
            server_address: Ipv4Addr::LOCALHOST,
            server_port: 0,
            client_processor: None,
            server_processor: None,
        }
    }

    /// Receiving into the same memory again and again.
    #[must_use]
    pub const fn warm(mut self) -> Self {
        self.buffer = Buffer::Warm;
        self
    }

    /// Through this Redis server, to this HTTP server, or with the guests in this folder.
    #[must_use]
    pub fn through(mut self, address: &str) -> Self {
        self.address = address.to_owned();
        self
    }

    /// With that many connections.
    #[must_use]
    pub const fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// With that many servers.
    #[must_use]
    pub const fn servers(mut self, servers: usize) -> Self {
        self.servers = servers;
        self
    }

    /// From the network of one process to that of another one, which has this address.
    #[must_use]
    pub fn across(mut self, client: i32, (server, address): (i32, Ipv4Addr)) -> Self {
        let network = |pid| Some(PathBuf::from(format!("/proc/{pid}/ns/net")));
        (self.client_network, self.server_network) = (network(client), network(server));
        self.server_address = address;
        self
    }

    /// From the network of this process, where the server is, too.
    #[must_use]
    pub fn inside(mut self, process: i32) -> Self {
        self.client_network = Some(PathBuf::from(format!("/proc/{process}/ns/net")));
        self
    }

    /// With client and server where caller and callee are.
    #[must_use]
    pub const fn at(mut self, placement: Placement) -> Self {
        self.client_processor = placement.caller();
        self.server_processor = placement.callee();
        self
    }

    /// Its name in the report.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match (self.kind, self.buffer) {
            (Baseline::UdsCopy, Buffer::Fresh) => "uds-copy",
            (Baseline::UdsCopy, Buffer::Warm) => "uds-copy-warm",
            (Baseline::UdsPingpong, _) => "uds-pingpong",
            (Baseline::HttpLoopback, _) => "http-loopback",
            (Baseline::HttpWatchdog, _) => "http-watchdog",
            (Baseline::HttpWasmedge, _) => "http-wasmedge",
            (Baseline::Redis, _) => "redis",
            (Baseline::Tcp, _) => "tcp",
            (Baseline::Tls, _) => "tls",
            (Baseline::Http2, _) => "http2",
            (Baseline::Memcpy, _) => "memcpy",
            (Baseline::Native, _) => "native",
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&self, program: &std::path::Path) -> Result<Side> {
        Side::start(self.name(), self.command(program, "peer"))
    }

    /// This program as client or server of this baseline.
    fn command(&self, program: &std::path::Path, verb: &str) -> Command {
        let mut command = Command::new(program);
        command.args([verb, &word(self.kind), "--buffer", &word(self.buffer)]);
        command.args(["--servers", &self.servers.to_string(), "--address", &self.address]);
        command.args(["--connections", &self.connections.to_string()]);
        command.args(["--server-address", &self.server_address.to_string()]);
        for (flag, network) in
            [("--client-network", &self.client_network), ("--server-network", &self.server_network)]
        {
            if let Some(network) = network {
                command.arg(flag).arg(network);
            }
        }
        for (flag, processor) in [
            ("--client-processor", self.client_processor),
            ("--server-processor", self.server_processor),
        ] {
            if let Some(processor) = processor {
                command.args([flag, &processor.to_string()]);
            }
        }
        command
    }

    /// The command of one of its servers.
    fn server_command(&self) -> Result<Command> {
        let program = std::env::current_exe().context("our own program")?;
        Ok(self.command(&program, "peer-server"))
    }
}

/// A value as it is written on the command line.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// However the parent ends, this process does too.
fn end_with_parent() -> Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("follow our parent")
}

/// `CLOCK_MONOTONIC` in ns.
fn monotonic_ns() -> u64 {
    clock(nix::time::ClockId::CLOCK_MONOTONIC)
}

/// CPU time of this process in ns.
fn cpu_ns() -> u64 {
    clock(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: nix::time::ClockId) -> u64 {
    let now = nix::time::clock_gettime(id).expect("every Linux has these clocks");
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec()) * 1_000_000_000 + part(now.tv_nsec())
}
