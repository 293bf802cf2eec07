//! Messages of name servers, and servers on loopback.

use std::thread::{self, JoinHandle};

use simple_dns::ResourceRecord;
use simple_dns::rdata::{A, AAAA, CNAME};

use super::*;

const WAIT: Duration = Duration::from_secs(20);

fn name(text: &str) -> Name<'_> {
    Name::new(text).unwrap()
}

fn record<'a>(owner: &'a str, rdata: RData<'a>) -> ResourceRecord<'a> {
    ResourceRecord::new(name(owner), CLASS::IN, 60, rdata)
}

fn a(last: u8) -> RData<'static> {
    RData::A(A { address: u32::from_be_bytes([192, 0, 2, last]) })
}

fn v4(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

/// A reply to the question for `asked`.
fn reply(id: u16, asked: &str, kind: RecordKind, answers: Vec<ResourceRecord<'_>>) -> Vec<u8> {
    let mut packet = Packet::new_reply(id);
    let question = Question::new(name(asked), kind.record().into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    packet.answers = answers;
    packet.build_bytes_vec().unwrap()
}

#[test]
fn only_records_of_the_name_and_its_aliases_count() {
    let answers = vec![
        record("other.test", a(9)),
        record("alias.test", a(1)),
        record("Name.Test", RData::CNAME(CNAME(name("middle.test")))),
        record("middle.test", RData::CNAME(CNAME(name("alias.test")))),
        record("alias.test", RData::AAAA(AAAA { address: 1 })),
        record("alias.test", a(2)),
    ];
    let bytes = reply(7, "name.test", RecordKind::A, answers);
    let found = DnsAnswer::Addresses(vec![v4(1), v4(2)]);
    assert_eq!(read(&bytes, 7, "name.test", RecordKind::A), Reading::Answer(found));
}

#[test]
fn aliases_in_a_circle_end() {
    let answers = vec![
        record("a.test", RData::CNAME(CNAME(name("b.test")))),
        record("b.test", RData::CNAME(CNAME(name("a.test")))),
    ];
    let bytes = reply(7, "a.test", RecordKind::A, answers);
    assert_eq!(
        read(&bytes, 7, "a.test", RecordKind::A),
        Reading::Answer(DnsAnswer::Addresses(vec![]))
    );
}

#[test]
fn answers_to_other_questions_are_not_ours() {
    let bytes = reply(7, "name.test", RecordKind::A, vec![record("name.test", a(1))]);
    assert_eq!(read(&bytes, 8, "name.test", RecordKind::A), Reading::NotOurs);
    assert_eq!(read(&bytes, 7, "other.test", RecordKind::A), Reading::NotOurs);
    assert_eq!(read(&bytes, 7, "name.test", RecordKind::Aaaa), Reading::NotOurs);
    assert_eq!(
        read(&question(7, "name.test", RecordKind::A).unwrap(), 7, "name.test", RecordKind::A),
        Reading::NotOurs
    );
    assert_eq!(read(&bytes[..20], 7, "name.test", RecordKind::A), Reading::NotOurs);
}

/// Answers one datagram with what `answers` makes of it, one after the other.
fn server(answers: fn(u16) -> Vec<Vec<u8>>) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let address = socket.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let mut buffer = [0; 512];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        let id = Packet::parse(&buffer[..len]).unwrap().id();
        for answer in answers(id) {
            socket.send_to(&answer, from).unwrap();
        }
    });
    (address, serving)
}

#[test]
fn noise_before_the_answer_is_passed_over() {
    let (address, serving) = server(|id| {
        let forged = reply(id ^ 1, "name.test", RecordKind::A, vec![record("name.test", a(66))]);
        let right = reply(id, "name.test", RecordKind::A, vec![record("name.test", a(1))]);
        vec![b"noise".to_vec(), forged, right]
    });
    let answer = ask_at(address, "name.test", RecordKind::A, WAIT);
    assert_eq!(answer, DnsAnswer::Addresses(vec![v4(1)]));
    serving.join().unwrap();
}

#[test]
fn a_truncated_answer_is_asked_for_over_tcp() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let datagrams = UdpSocket::bind(address).unwrap();
    let serving = thread::spawn(move || {
        let mut buffer = [0; 512];
        let (len, from) = datagrams.recv_from(&mut buffer).unwrap();
        let mut packet = Packet::parse(&buffer[..len]).unwrap().into_reply();
        packet.set_flags(PacketFlag::TRUNCATION);
        datagrams.send_to(&packet.build_bytes_vec().unwrap(), from).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut len = [0; 2];
        stream.read_exact(&mut len).unwrap();
        let mut question = vec![0; usize::from(u16::from_be_bytes(len))];
        stream.read_exact(&mut question).unwrap();
        let id = Packet::parse(&question).unwrap().id();
        let bytes = reply(id, "name.test", RecordKind::A, vec![record("name.test", a(1))]);
        let len = u16::try_from(bytes.len()).unwrap();
        stream.write_all(&[&len.to_be_bytes()[..], &bytes].concat()).unwrap();
    });
    let answer = ask_at(address, "name.test", RecordKind::A, WAIT);
    assert_eq!(answer, DnsAnswer::Addresses(vec![v4(1)]));
    serving.join().unwrap();
}

#[test]
fn a_server_that_is_silent_or_not_there_has_failed() {
    let silent = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let address = silent.local_addr().unwrap();
    let soon = Duration::from_millis(50);
    assert_eq!(ask_at(address, "name.test", RecordKind::A, soon), DnsAnswer::Failed);
    drop(silent);
    assert_eq!(ask_at(address, "name.test", RecordKind::A, soon), DnsAnswer::Failed);
}
