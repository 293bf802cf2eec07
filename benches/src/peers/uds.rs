//! Stream sockets between two processes. A server's end is its stdin, so that it ends with its client.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use cwasi_bench_protocol::payload::{Seen, Sum};
use memmap2::MmapMut;

use super::transport::{Payload, Transport};
use super::{Buffer, Peer, monotonic_ns};

/// A request's first bytes: length, and whether to read what follows.
const HEADER_LEN: usize = 16;
/// Answers that a client leaves unread on one connection.
const UNREAD_MAX: usize = 16;
/// Largest payload that a server takes, in bytes.
const PAYLOAD_MAX: u64 = 1 << 30;

/// A client's connections, one to each server.
pub struct Copying<S> {
    connections: Vec<S>,
    _servers: Vec<Server>,
}

/// A server's process; it ends when its connection does.
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn server(peer: &Peer) -> Result<(UnixStream, Server)> {
    let (ours, theirs) = UnixStream::pair().context("a pair of sockets")?;
    Ok((ours, server_on(peer, theirs.into())?))
}

/// A server whose stdin is this connection.
pub fn server_on(peer: &Peer, connection: OwnedFd) -> Result<Server> {
    let mut command = peer.server_command()?;
    let child = command.stdin(Stdio::from(connection)).spawn().context("a server")?;
    Ok(Server(child))
}

impl Copying<UnixStream> {
    pub fn start(peer: &Peer) -> Result<Self> {
        Ok(Self::over((0..peer.servers).map(|_| server(peer)).collect::<Result<_>>()?))
    }
}

impl<S: Read + Write> Copying<S> {
    pub fn over(pairs: Vec<(S, Server)>) -> Self {
        let (connections, servers) = pairs.into_iter().unzip();
        Self { connections, _servers: servers }
    }

    fn send(connection: &mut S, payload: &Payload) -> Result<()> {
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&(payload.bytes.len() as u64).to_le_bytes());
        header[8] = u8::from(payload.touch);
        connection.write_all(&header).context("send a header")?;
        connection.write_all(&payload.bytes).context("send a payload")?;
        connection.flush().context("send a payload")
    }

    fn receive(connection: &mut S, payload: &Payload) -> Result<u64> {
        let mut answer = [0; Seen::LEN];
        connection.read_exact(&mut answer).context("receive an answer")?;
        Ok(Seen::check(&answer, payload.expected).map_err(anyhow::Error::msg)?.at)
    }
}

impl<S: Read + Write> Transport for Copying<S> {
    fn call(&mut self, payload: &Payload) -> Result<u64> {
        let connection = self.connections.first_mut().context("no server")?;
        Self::send(connection, payload)?;
        Self::receive(connection, payload)
    }

    fn call_all(&mut self, payloads: &[&Payload]) -> Result<u64> {
        let servers = self.connections.len();
        ensure!(servers > 0, "no server");
        // Answers wait in their sockets; those of a server that gets many payloads would not all have room there.
        let ahead = servers.saturating_mul(UNREAD_MAX);
        let mut last = 0;
        for number in 0..payloads.len().saturating_add(ahead) {
            if let Some(payload) = payloads.get(number) {
                Self::send(&mut self.connections[number % servers], payload)?;
            }
            if let Some(early) = number.checked_sub(ahead)
                && let Some(payload) = payloads.get(early)
            {
                let connection = &mut self.connections[early % servers];
                last = last.max(Self::receive(connection, payload)?);
            }
        }
        Ok(last)
    }
}

/// Serves copies until the client is gone.
pub fn serve_copies(buffer: Buffer, mut connection: impl Read + Write) -> Result<()> {
    let mut warm: Option<MmapMut> = None;
    loop {
        let mut header = [0; HEADER_LEN];
        match connection.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error).context("receive a header"),
        }
        let (len, touch) = read_header(&header)?;
        let mut memory = match warm.take() {
            Some(memory) if memory.len() >= len => memory,
            _ => MmapMut::map_anon(len.max(1)).context("memory for a payload")?,
        };
        let payload = &mut memory[..len];
        connection.read_exact(payload).context("receive a payload")?;
        let at = monotonic_ns();
        let sum = if touch { Sum::of(payload) } else { len as u64 };
        connection.write_all(&Seen { at, sum }.to_bytes()).context("answer")?;
        connection.flush().context("answer")?;
        warm = (buffer == Buffer::Warm).then_some(memory);
    }
}

fn read_header(header: &[u8; HEADER_LEN]) -> Result<(usize, bool)> {
    let mut len = [0; 8];
    len.copy_from_slice(&header[..8]);
    let len = u64::from_le_bytes(len);
    if len > PAYLOAD_MAX {
        bail!("a payload of {len} bytes");
    }
    Ok((usize::try_from(len)?, header[8] != 0))
}

/// The payload there and back, and nothing else.
pub struct Pingpong {
    connection: UnixStream,
    back: Vec<u8>,
    _server: Server,
}

impl Pingpong {
    pub fn start(peer: &Peer) -> Result<Self> {
        let (connection, server) = server(peer)?;
        Ok(Self { connection, back: Vec::new(), _server: server })
    }
}

impl Transport for Pingpong {
    fn call(&mut self, payload: &Payload) -> Result<u64> {
        self.back.resize(payload.bytes.len(), 0);
        self.connection.write_all(&payload.bytes).context("send")?;
        self.connection.read_exact(&mut self.back).context("receive")?;
        // Nothing but the payload travels: half a round trip is unknown, the whole of it counts.
        let at = monotonic_ns();
        if self.back != *payload.bytes {
            bail!("other bytes came back");
        }
        Ok(at)
    }

    fn call_all(&mut self, _payloads: &[&Payload]) -> Result<u64> {
        bail!("a ping-pong has two players")
    }
}

/// Sends back what comes until the client is gone.
pub fn serve_pingpong(mut connection: UnixStream) -> Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match connection.read(&mut buffer).context("receive")? {
            0 => return Ok(()),
            len => connection.write_all(&buffer[..len]).context("send back")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over_a_pair(
        serve: impl FnOnce(UnixStream) -> Result<()> + Send + 'static,
        client: impl FnOnce(UnixStream),
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(theirs));
        client(ours);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn a_copy_is_checked_by_its_sum_and_its_length() {
        for buffer in [Buffer::Fresh, Buffer::Warm] {
            over_a_pair(
                move |stream| serve_copies(buffer, stream),
                |mut stream| {
                    for (len, touch) in [(100_000, true), (64, true), (3, false), (0, true)] {
                        let bytes: bytes::Bytes = vec![1; len].into();
                        let expected = if touch { Sum::of(&bytes) } else { len as u64 };
                        let payload = Payload { bytes, touch, expected };
                        Copying::send(&mut stream, &payload).unwrap();
                        assert!(Copying::receive(&mut stream, &payload).unwrap() > 0);
                        let wrong = Payload { expected: expected + 1, ..payload };
                        Copying::send(&mut stream, &wrong).unwrap();
                        assert!(Copying::receive(&mut stream, &wrong).is_err());
                    }
                },
            );
        }
    }

    #[test]
    fn more_payloads_than_a_socket_holds_answers_go_to_one_server() {
        over_a_pair(
            |stream| serve_copies(Buffer::Warm, stream),
            |stream| {
                let bytes = bytes::Bytes::from_static(b"payload");
                let payload = Payload { expected: bytes.len() as u64, bytes, touch: false };
                let mut client = Copying { connections: vec![stream], _servers: Vec::new() };
                assert!(client.call_all(&vec![&payload; 2000]).unwrap() > 0);
                client.connections.clear();
                assert!(client.call_all(&[&payload]).is_err(), "no server");
            },
        );
    }

    #[test]
    fn a_pingpong_comes_back() {
        over_a_pair(serve_pingpong, |mut stream| {
            stream.write_all(b"hello").unwrap();
            let mut back = [0; 5];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"hello");
        });
    }

    #[test]
    fn an_overlong_header_is_refused() {
        assert!(read_header(&[0xff; HEADER_LEN]).is_err());
    }
}
