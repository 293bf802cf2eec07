//! Payloads through a Redis server: one message each way.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, bail};
use cwasi_bench_protocol::READY;
use cwasi_bench_protocol::payload::{Seen, Sum};
use nix::unistd::{getpid, getppid};
use redis::{Commands as _, Connection, PubSub};

use super::transport::{Payload, Transport};
use super::{Peer, monotonic_ns};

/// A client with its server's process.
pub struct Publisher {
    server: Child,
    publishing: Connection,
    answers: PubSub<'static>,
    channels: Channels,
}

/// Channels of one client.
struct Channels {
    touch: String,
    keep: String,
    answers: String,
}

impl Channels {
    fn of(client: nix::unistd::Pid) -> Self {
        let name = |what: &str| format!("bench:{client}:{what}");
        Self { touch: name("touch"), keep: name("keep"), answers: name("answers") }
    }
}

fn connect(url: &str) -> Result<Connection> {
    redis::Client::open(url)?.get_connection().context("connect to Redis")
}

impl Publisher {
    /// Starts the server's process and waits until it has subscribed.
    pub fn start(peer: &Peer) -> Result<Self> {
        let channels = Channels::of(getpid());
        let mut server = peer.server_command()?.stdout(Stdio::piped()).spawn()?;
        let stdout = server.stdout.take().context("stdout is a pipe")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("wait for the subscriber")?;
        if line.trim() != READY {
            bail!("the subscriber did not start");
        }
        // One for each process, for as long as it lives: dropping a subscription ends it.
        let mut answers = Box::leak(Box::new(connect(&peer.address)?)).as_pubsub();
        answers.subscribe(&channels.answers)?;
        Ok(Self { server, publishing: connect(&peer.address)?, answers, channels })
    }
}

impl Transport for Publisher {
    fn call(&mut self, payload: &Payload) -> Result<u64> {
        let channel = if payload.touch { &self.channels.touch } else { &self.channels.keep };
        let receivers: usize = self.publishing.publish(channel, &payload.bytes[..])?;
        if receivers != 1 {
            bail!("{receivers} subscribers got a payload");
        }
        let answer = self.answers.get_message().context("an answer")?;
        Ok(Seen::check(answer.get_payload_bytes(), payload.expected)
            .map_err(anyhow::Error::msg)?
            .at)
    }

    fn call_all(&mut self, _payloads: &[&Payload]) -> Result<u64> {
        bail!("this baseline has one subscriber")
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ended = self.server.kill();
        let _reaped = self.server.wait();
    }
}

/// Answers messages until it is killed.
pub fn serve(url: &str) -> Result<()> {
    let channels = Channels::of(getppid());
    let mut subscribed = connect(url)?;
    let mut answering = connect(url)?;
    let mut messages = subscribed.as_pubsub();
    messages.subscribe(&[&channels.touch, &channels.keep])?;
    writeln!(std::io::stdout(), "{READY}")?;
    loop {
        let message = messages.get_message().context("a payload")?;
        let payload = message.get_payload_bytes();
        let at = monotonic_ns();
        let touch = message.get_channel_name() == channels.touch;
        let sum = if touch { Sum::of(payload) } else { payload.len() as u64 };
        let seen = Seen { at, sum }.to_bytes();
        let _receivers: usize = answering.publish(&channels.answers, &seen[..])?;
    }
}
