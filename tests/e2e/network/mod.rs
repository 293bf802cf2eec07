//! End to end on a real containerd: what sockets of functions reach, in a network of the test's own with a real name
//! server (NSD), and with one that lies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod liar;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::thread;

use cwasi_testbed::name_server::NameServer;
use cwasi_testbed::netns::Netns;
use cwasi_testbed::run::Outcome;
use cwasi_testbed::scene::Scene;

use crate::SHIM;

/// Where servers listen, each a TCP and a UDP one.
const PORT: u16 = 7000;
const NSD: [&str; 2] = ["fd77::53", "10.77.0.53"];
const LIAR: &str = "10.77.0.54";
/// What [`NSD`] answers with.
const RECORDS: &str = "\
ns A 10.77.0.53
four A 10.77.0.1
six AAAA fd77::1
both A 10.77.0.1
both AAAA fd77::1
alias CNAME alias-of-alias
alias-of-alias CNAME four
other A 10.77.0.2
own A 127.0.0.1
own A 169.254.169.254
own AAAA ::1
mixed A 127.0.0.1
mixed A 10.77.0.1
";

/// A network with servers at four addresses.
struct Stage {
    scene: Scene,
    network: Netns,
    dir: tempfile::TempDir,
}

impl Stage {
    fn new(name: &str) -> Self {
        let scene = Scene::new(SHIM, name);
        let network = Netns::new(&[
            "10.77.0.1/24",
            "10.77.0.2/24",
            "10.77.0.53/24",
            "10.77.0.54/24",
            "fd77::1/64",
            "fd77::2/64",
            "fd77::53/64",
        ]);
        for address in ["10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"] {
            serve(&network, address.parse().unwrap());
        }
        Self { scene, network, dir: tempfile::tempdir().unwrap() }
    }

    /// A file of the host's.
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs the guest `net` with these orders; with a `resolv.conf` if there is one.
    fn run(&self, id: &str, allowed: &str, resolver: Option<&str>, orders: &[&str]) -> Outcome {
        let run = self.scene.guest(id, "net").args(orders.iter().copied());
        let run = run.flag("--with-ns").flag(format!("network:{}", self.network.path().display()));
        let run = run.annotation("cwasi.network", allowed).annotation("cwasi.timeout", "60s");
        let run = match resolver {
            Some(text) => run.mount(&self.file(id, text), "/etc/resolv.conf", "ro"),
            None => run,
        };
        self.scene.run(run).success()
    }
}

/// Servers that say who they are, for as long as the test's process lives.
fn serve(network: &Netns, address: IpAddr) {
    let at = SocketAddr::new(address, PORT);
    let sockets = move || (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap());
    let (listener, datagrams) = network.run(sockets);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A guest that is gone is the test's own business.
            let _gone = write!(stream, "tcp at {at}");
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = datagrams.recv_from(&mut buffer) {
            let _gone = datagrams.send_to(format!("udp at {at}").as_bytes(), from);
        }
    });
}

/// Every order came to what is expected.
fn assert_outcomes(outcome: &Outcome, expected: &[(&str, &str)]) {
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    let wanted: Vec<String> =
        expected.iter().map(|(order, end)| format!("{order} -> {end}")).collect();
    assert_eq!(lines, wanted, "stderr: {}", outcome.stderr);
}

fn orders<'a>(expected: &[(&'a str, &str)]) -> Vec<&'a str> {
    expected.iter().map(|(order, _)| *order).collect()
}

#[test]
fn ipv4_and_ipv6_are_filtered_over_tcp_and_udp() {
    let stage = Stage::new("addresses");
    let expected = [
        ("tcp=10.77.0.1:7000", "tcp at 10.77.0.1:7000"),
        ("tcp=[fd77::1]:7000", "tcp at [fd77::1]:7000"),
        ("udp=10.77.0.1:7000", "udp at 10.77.0.1:7000"),
        ("udp=[fd77::1]:7000", "udp at [fd77::1]:7000"),
        // IPv4 in the notation of IPv6.
        ("tcp=[::ffff:10.77.0.1]:7000", "tcp at 10.77.0.1:7000"),
        ("tcp=[::ffff:10.77.0.2]:7000", "errno 2"),
        ("tcp=10.77.0.2:7000", "errno 2"),
        ("tcp=10.77.0.2:7000", "errno 2"),
        ("tcp=10.77.0.1:7001", "errno 2"),
        ("tcp=[fd77::2]:7000", "errno 2"),
        ("udp=10.77.0.2:7000", "errno 2"),
        ("udp=[fd77::2]:7000", "errno 2"),
        ("udp=[fd77::1]:7001", "errno 2"),
        // Without a name server.
        ("look=four.test", "errno 2"),
        ("look=own.test", "errno 80"),
    ];
    let allowed = "10.77.0.1:7000,[fd77::1]:7000,own.test:80";
    let outcome = stage.run("both", allowed, None, &orders(&expected));
    assert_outcomes(&outcome, &expected);
    // What was refused is logged, once each, with what to write.
    let refused =
        ["10.77.0.2:7000", "10.77.0.1:7001", "[fd77::2]:7000", "[fd77::1]:7001", "four.test:PORT"];
    for destination in refused {
        let line = format!("`{destination}` to this annotation");
        assert_eq!(outcome.stderr.matches(&line).count(), 1, "{destination}: {}", outcome.stderr);
    }
    assert!(outcome.stderr.contains("own.test failed"), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("was refused").count(), refused.len(), "{}", outcome.stderr);
}

#[test]
fn names_stand_for_what_the_containers_name_server_says() {
    let stage = Stage::new("names");
    let many: Vec<IpAddr> = (1..=60).map(|last| IpAddr::from([10, 77, 1, last])).collect();
    let lines: String = many.iter().map(|address| format!("many A {address}\n")).collect();
    let chain: String = (0..40).map(|at| format!("chain{at} CNAME chain{}\n", at + 1)).collect();
    let records = format!("{RECORDS}{lines}{chain}chain40 A 10.77.0.2\n");
    let addresses = NSD.map(|text| text.parse().unwrap());
    let _nsd = NameServer::start(&stage.network, &addresses, &records);
    let expected = [
        ("look=four.test", "10.77.0.1"),
        ("look=six.test", "fd77::1"),
        ("look=both.test", "10.77.0.1 fd77::1"),
        ("look=BOTH.test.", "10.77.0.1 fd77::1"),
        ("look=alias.test", "10.77.0.1"),
        // A name allows its port only, and another one's addresses are none of its.
        ("tcp=10.77.0.1:7000", "tcp at 10.77.0.1:7000"),
        ("tcp=[fd77::1]:7000", "tcp at [fd77::1]:7000"),
        ("udp=10.77.0.1:7000", "udp at 10.77.0.1:7000"),
        ("tcp=10.77.0.1:7001", "errno 2"),
        ("tcp=10.77.0.2:7000", "errno 2"),
        // Allowed on another port than the one that is asked for.
        ("look=other.test", "10.77.0.2"),
        ("tcp=10.77.0.2:7000", "errno 2"),
        // Answers that lead to the host itself.
        ("look=own.test", "errno 83"),
        ("tcp=127.0.0.1:7000", "errno 2"),
        ("tcp=169.254.169.254:7000", "errno 2"),
        ("look=mixed.test", "10.77.0.1"),
        ("tcp=127.0.0.1:7000", "errno 2"),
        // More aliases than are followed: no address, and none that may be reached.
        ("look=chain0.test", "errno 83"),
        ("tcp=10.77.0.2:7000", "errno 2"),
        ("look=nowhere.test", "errno 84"),
        ("look=secret.elsewhere", "errno 2"),
        // By the crate that Rust functions use.
        ("tcp=alias.test:7000", "tcp at 10.77.0.1:7000"),
        ("tcp=alias.test:7001", "errno 2"),
    ];
    let own = ["four", "six", "both", "alias", "own", "mixed", "chain0", "nowhere", "many"];
    let own = own.map(|name| format!("{name}.test:{PORT}")).join(",");
    let allowed = format!("{own},other.test:22");
    let resolver = NSD.map(|server| format!("nameserver {server}\n")).concat();
    let outcome = stage.run("names", &allowed, Some(&resolver), &orders(&expected));
    assert_outcomes(&outcome, &expected);
    assert!(outcome.stderr.contains("169.254.169.254 for own.test"), "{}", outcome.stderr);
    // 60 addresses do not fit into a datagram: the answer is cut, and asked for over TCP.
    let outcome = stage.run("many", &allowed, Some(&resolver), &["look=many.test"]);
    let text = outcome.text();
    let found: Vec<&str> = text.trim().rsplit(" -> ").next().unwrap().split(' ').collect();
    assert_eq!(found.len(), 32, "as many as one look-up gives: {text}");
    assert!(found.iter().all(|found| many.contains(&found.parse().unwrap())), "{text}");
}

#[test]
fn a_lying_name_server_is_ignored_and_delays_no_caller() {
    let stage = Stage::new("liar");
    liar::start(&stage.network, LIAR.parse().unwrap());
    let expected = [
        ("look=wrong-id.test", "errno 78"),
        ("look=wrong-question.test", "errno 78"),
        ("look=another-name.test", "errno 83"),
        ("look=noise.test", "errno 78"),
        ("look=circle.test", "errno 83"),
        ("look=slow-stream.test", "errno 78"),
        // What it said in all of them.
        ("tcp=10.77.0.2:7000", "errno 2"),
        // It tells the truth once, and then that the name has moved to a special address.
        ("look=moving.test", "10.77.0.1"),
        ("look=moving.test", "errno 83"),
        ("tcp=169.254.169.254:7000", "errno 2"),
        ("tcp=10.77.0.1:7000", "tcp at 10.77.0.1:7000"),
    ];
    let resolver = format!("nameserver {LIAR}\noptions timeout:1 attempts:1\n");
    let outcome = stage.run("liar", "*.test:7000", Some(&resolver), &orders(&expected));
    assert_outcomes(&outcome, &expected);
}
