//! One question to the container's name servers: over UDP, and over TCP for a truncated answer. Runs in a worker.
//!
//! Invariant: an answer is compared with the question. Only records of the name itself, or of its aliases in the same
//! answer, count.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};

use cwasi_sys::random;

const PORT: u16 = 53;
/// Longest answer over UDP in bytes, and longest part that is read over TCP.
const DATAGRAM_MAX: usize = 4096;
const STREAM_MAX: usize = 16 * 1024;
/// Most addresses of one answer.
pub const ADDRESSES_MAX: usize = 32;
/// Most aliases in one answer.
const ALIASES_MAX: usize = 8;
/// Most datagrams per answer: other senders may reach the socket.
const DATAGRAMS_MAX: usize = 16;

/// The kind of addresses to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// IPv4.
    A,
    /// IPv6.
    Aaaa,
}

/// Result of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    /// The addresses; empty if the name has none of this kind.
    Addresses(Vec<IpAddr>),
    /// The name does not exist.
    NoSuchName,
    /// The server failed, or its answer is malformed.
    Failed,
}

/// Asks one server, at most for `timeout`.
pub fn ask(server: IpAddr, name: &str, kind: RecordKind, timeout: Duration) -> DnsAnswer {
    ask_at(SocketAddr::new(server, PORT), name, kind, timeout)
}

fn ask_at(server: SocketAddr, name: &str, kind: RecordKind, timeout: Duration) -> DnsAnswer {
    let end = Instant::now() + timeout;
    let [high, low, ..] = random::bytes16();
    let id = u16::from_be_bytes([high, low]);
    let Some(question) = question(id, name, kind) else { return DnsAnswer::NoSuchName };
    let by_datagram = datagram(server, &question, end, |bytes| read(bytes, id, name, kind));
    match by_datagram {
        Ok(Reading::Answer(answer)) => answer,
        Ok(Reading::Truncated) => {
            let bytes = stream(server, &question, end).unwrap_or_default();
            match read(&bytes, id, name, kind) {
                Reading::Answer(answer) => answer,
                Reading::Truncated | Reading::NotOurs => DnsAnswer::Failed,
            }
        }
        Ok(Reading::NotOurs) | Err(_) => DnsAnswer::Failed,
    }
}

fn question(id: u16, name: &str, kind: RecordKind) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).ok()?;
    packet.questions.push(Question::new(name, kind.record().into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().ok()
}

impl RecordKind {
    const fn record(self) -> TYPE {
        match self {
            Self::A => TYPE::A,
            Self::Aaaa => TYPE::AAAA,
        }
    }
}

/// A message of a name server.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading {
    Answer(DnsAnswer),
    Truncated,
    /// It answers another question.
    NotOurs,
}

/// Reads an untrusted message.
pub fn read(bytes: &[u8], id: u16, name: &str, kind: RecordKind) -> Reading {
    let Ok(packet) = Packet::parse(bytes) else { return Reading::NotOurs };
    let asked = packet.questions.first().is_some_and(|question| {
        is_name(&question.qname, name) && question.qtype == kind.record().into()
    });
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) || !asked {
        return Reading::NotOurs;
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Reading::Truncated;
    }
    Reading::Answer(match packet.rcode() {
        RCODE::NoError => DnsAnswer::Addresses(addresses(&packet, name, kind)),
        RCODE::NameError => DnsAnswer::NoSuchName,
        _ => DnsAnswer::Failed,
    })
}

fn addresses(packet: &Packet<'_>, name: &str, kind: RecordKind) -> Vec<IpAddr> {
    let records = || packet.answers.iter().filter(|record| record.class == CLASS::IN);
    let mut owner = name.to_owned();
    for _ in 0..ALIASES_MAX {
        let alias = records().find_map(|record| match &record.rdata {
            RData::CNAME(target) if is_name(&record.name, &owner) => Some(target.0.to_string()),
            _ => None,
        });
        let Some(alias) = alias else { break };
        owner = alias;
    }
    let address = |rdata: &RData<'_>| match (rdata, kind) {
        (RData::A(a), RecordKind::A) => Some(IpAddr::from(Ipv4Addr::from(a.address))),
        (RData::AAAA(aaaa), RecordKind::Aaaa) => Some(IpAddr::from(Ipv6Addr::from(aaaa.address))),
        _ => None,
    };
    records()
        .filter(|record| is_name(&record.name, &owner))
        .filter_map(|record| address(&record.rdata))
        .take(ADDRESSES_MAX)
        .collect()
}

fn is_name(name: &Name<'_>, text: &str) -> bool {
    let shown = name.to_string();
    shown.trim_end_matches('.').eq_ignore_ascii_case(text.trim_end_matches('.'))
}

/// Time until `end`; an error if none is left.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn datagram(
    server: SocketAddr,
    question: &[u8],
    end: Instant,
    read: impl Fn(&[u8]) -> Reading,
) -> io::Result<Reading> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // From here on the kernel drops datagrams of other senders.
    socket.connect(server)?;
    socket.send(question)?;
    let mut buffer = [0; DATAGRAM_MAX];
    for _ in 0..DATAGRAMS_MAX {
        socket.set_read_timeout(Some(left(end)?))?;
        let reading = match socket.recv(&mut buffer) {
            Ok(len) => read(&buffer[..len]),
            // A container that is paused and resumed.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if !matches!(reading, Reading::NotOurs) {
            return Ok(reading);
        }
    }
    Ok(Reading::NotOurs)
}

fn stream(server: SocketAddr, question: &[u8], end: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, left(end)?)?;
    stream.set_write_timeout(Some(left(end)?))?;
    let len = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), question].concat())?;
    let mut len = [0; 2];
    read_until(&mut stream, &mut len, end)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(len)).min(STREAM_MAX)];
    read_until(&mut stream, &mut bytes, end)?;
    Ok(bytes)
}

/// Fills `buffer` until `end`, however slowly its bytes come.
fn read_until(stream: &mut TcpStream, buffer: &mut [u8], end: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "dns/tests.rs"]
mod tests;
