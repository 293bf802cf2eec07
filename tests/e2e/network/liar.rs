//! A name server that lies, in a way that the name asked for says. Every lie is that the name has 10.77.0.2.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cwasi_testbed::netns::Netns;
use simple_dns::rdata::{A, CNAME, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, ResourceRecord};

const PORT: u16 = 53;
/// The lie, the truth, and where a name moves to.
const LIE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const TRUTH: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const MOVED: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// Datagrams of noise for one question.
const NOISE: usize = 100;
/// Between two bytes of a stream that never ends.
const DRIP: Duration = Duration::from_millis(50);

/// Starts it, for as long as the test's process lives.
pub fn start(network: &Netns, address: IpAddr) {
    let at = SocketAddr::new(address, PORT);
    let sockets = move || (UdpSocket::bind(at).unwrap(), TcpListener::bind(at).unwrap());
    let (datagrams, listener) = network.run(sockets);
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((len, from)) = datagrams.recv_from(&mut buffer) {
            for answer in answers(&buffer[..len]) {
                // A guest that is gone is the test's own business.
                let _gone = datagrams.send_to(&answer, from);
            }
        }
    });
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                while stream.write_all(&[1]).is_ok() {
                    thread::sleep(DRIP);
                }
            });
        }
    });
}

/// What it says to one question.
fn answers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let question = Packet::parse(bytes).unwrap();
    let asked = question.questions[0].clone();
    let name = asked.qname.to_string();
    let reply = |id: u16, asked: &Question<'_>, answers: Vec<ResourceRecord<'_>>| {
        let mut packet = Packet::new_reply(id);
        packet.questions.push(asked.clone());
        packet.answers = answers.into_iter().map(ResourceRecord::into_owned).collect();
        packet.build_bytes_vec().unwrap()
    };
    let id = question.id();
    match name.split('.').next().unwrap_or_default() {
        "wrong-id" => vec![reply(id ^ 1, &asked, vec![a(&name, LIE)])],
        "wrong-question" => {
            let name = Name::new_unchecked("else.test");
            let other = Question::new(name, asked.qtype, asked.qclass, false);
            vec![reply(id, &other, vec![a("else.test", LIE)])]
        }
        "another-name" => vec![reply(id, &asked, vec![a("else.test", LIE)])],
        "noise" => {
            let lie = reply(id, &asked, vec![a(&name, LIE)]);
            vec![b"no packet".to_vec(); NOISE].into_iter().chain([lie]).collect()
        }
        "circle" => {
            let (there, back) = (alias(&name, "back.test"), alias("back.test", &name));
            vec![reply(id, &asked, vec![there, back, a("else.test", LIE)])]
        }
        "slow-stream" => {
            let mut packet = Packet::new_reply(id);
            packet.questions.push(asked);
            packet.set_flags(PacketFlag::TRUNCATION);
            vec![packet.build_bytes_vec().unwrap()]
        }
        _moving => {
            static HAS_MOVED: AtomicBool = AtomicBool::new(false);
            let is_v4 = asked.qtype == simple_dns::TYPE::A.into();
            if !is_v4 {
                return vec![reply(id, &asked, Vec::new())];
            }
            let to = if HAS_MOVED.swap(true, Ordering::Relaxed) { MOVED } else { TRUTH };
            vec![reply(id, &asked, vec![a(&name, to)])]
        }
    }
}

fn record(owner: &str, data: RData<'static>) -> ResourceRecord<'static> {
    ResourceRecord::new(Name::new(owner).unwrap().into_owned(), CLASS::IN, 60, data)
}

fn a(owner: &str, address: Ipv4Addr) -> ResourceRecord<'static> {
    record(owner, RData::A(A { address: address.into() }))
}

fn alias(owner: &str, of: &str) -> ResourceRecord<'static> {
    record(owner, RData::CNAME(CNAME(Name::new(of).unwrap().into_owned())))
}
