//! A callee whose process is compromised: this test speaks the callee's side, without the worker that filters what a
//! guest sets. Its answers must not become two responses.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cwasi_abi::{METADATA_ENTRIES_MAX, METADATA_MAX, PAYLOAD_MAX};
use cwasi_coordinator::registry::{Record, Registry};
use cwasi_modes::Payload;
use cwasi_modes::local::incoming::ParsedMessage;
use cwasi_modes::local::receiver::ConnectionEvent;
use cwasi_modes::local::{Receiver, send_as_is};
use cwasi_sys::seqpacket;
use cwasi_testbed::scene::wait_for;
use cwasi_wire::envelope::{CallStatus, Metadata, Response};
use cwasi_wire::ids::Identity;

use crate::client::raw;
use crate::{Gateway, scene};

/// What a client would take for the answer to its second request.
const STOLEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen";
/// More than a guest may set, and few enough for a frame.
const PAIRS: usize = 300;

/// What the callee sends along.
fn hostile(case: &str) -> (Vec<Metadata>, String) {
    let chunked = format!("0\r\n\r\n{STOLEN}");
    let header = |name: &str, value: &str| vec![Metadata::of(format!("http.header.{name}"), value)];
    let status = |value: &str| vec![Metadata::of("http.status", value)];
    match case {
        "length" => (header("content-length", "0"), STOLEN.to_owned()),
        "length-in-capitals" => (header("Content-Length", "0"), STOLEN.to_owned()),
        "coding" => (header("transfer-encoding", "chunked"), chunked),
        "line" => (header("x", &format!("y\r\ncontent-length: 0\r\n\r\n{STOLEN}")), String::new()),
        "name" => (header("x: y\r\ncontent-length: 0\r\n\r\nx", "y"), STOLEN.to_owned()),
        "continue" => (status("100"), STOLEN.to_owned()),
        "switch" => (status("101"), STOLEN.to_owned()),
        "no-content" => (status("204"), STOLEN.to_owned()),
        "not-modified" => (status("304"), STOLEN.to_owned()),
        "upgrade" => {
            ([header("connection", "upgrade"), header("upgrade", "x")].concat(), STOLEN.to_owned())
        }
        "many" => {
            let pair = |number| Metadata::of(format!("http.header.x-{number}"), "v");
            ((0..PAIRS).map(pair).collect(), STOLEN.to_owned())
        }
        "long" => (header("x-0", &"v".repeat(METADATA_MAX)), STOLEN.to_owned()),
        other => panic!("no case {other}"),
    }
}

/// Answers each request with what its body names, until the test ends.
fn serve(socket: &Path, is_over: &AtomicBool) {
    let listener = seqpacket::listener(socket).unwrap();
    let mut receiver = Receiver::new(listener, PAYLOAD_MAX).unwrap();
    wait_for("the end of the test", || {
        receiver.accept().unwrap();
        for id in receiver.ready().collect::<Vec<_>>() {
            let ConnectionEvent::Message(ParsedMessage::Request(request)) = receiver.next_event(id)
            else {
                continue;
            };
            let case = String::from_utf8(request.payload.into_vec().unwrap()).unwrap();
            let (metadata, body) = hostile(&case);
            let response = Response::of(request.id, CallStatus::answered_with(metadata));
            let body = Payload::Inline(body.into_bytes());
            let caller = request.connection.fd.as_fd();
            send_as_is(caller, &response, body.outgoing(), &[], None).unwrap();
        }
        is_over.load(Ordering::Relaxed).then_some(())
    });
}

/// The head of the first response, and all that follows it.
fn first_response(bytes: &str) -> (&str, &str) {
    let (head, rest) = bytes.split_once("\r\n\r\n").unwrap();
    let lengths = head.lines().filter_map(|line| line.strip_prefix("content-length: "));
    let has_body = !["204", "304"].contains(&&head[9..12]);
    let length: usize = lengths.map(|it| it.parse::<usize>().unwrap()).sum();
    (head, &rest[if has_body { length } else { 0 }..])
}

/// What the callee sets in its response.
const CASES: [&str; 12] = [
    "length",
    "length-in-capitals",
    "coding",
    "line",
    "name",
    "continue",
    "switch",
    "no-content",
    "not-modified",
    "upgrade",
    "many",
    "long",
];

/// A request for `case` has one response, and the next request on its connection another one.
fn is_answered_whole(gateway: SocketAddr, case: &str) {
    let length = case.len();
    let two = format!(
        "POST /function/evil HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{case}\
         GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    );
    let answers = raw(gateway, two.as_bytes());
    let (head, rest) = first_response(&answers);
    let status = match case {
        "no-content" => "204",
        "not-modified" => "304",
        _ => "200",
    };
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{case}: {answers}");
    let set = head.lines().filter(|line| line.starts_with("x-") && line.ends_with(": v"));
    assert!(set.count() <= METADATA_ENTRIES_MAX && head.len() < METADATA_MAX, "{case}: {head}");
    // The second response is the gateway's own, and the last one.
    let (head, body) = rest.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{case}: {answers}"));
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("x-content-type"), "{case}: {head}");
    assert_eq!(body.trim_end(), "serving", "{case}: {answers}");
}

#[test]
fn a_compromised_callee_splits_no_response() {
    let scene = scene("gw-compromised");
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("r.sock");
    let registry = Registry::new(&scene.node.state());
    let identity = Identity {
        namespace: scene.namespace.clone(),
        pod_namespace: String::new(),
        function: "evil".to_owned(),
    };
    let record = Record {
        identity: identity.clone(),
        instance: "1".to_owned(),
        group: String::new(),
        workflow: String::new(),
        trust: String::new(),
        allow: Vec::new(),
        socket: socket.clone(),
        max_payload: PAYLOAD_MAX,
        max_head: 65_536,
        container: "evil".to_owned(),
        http: true,
        http_port: None,
        http_idle_ms: 0,
        timeout_ms: None,
        triggers: Vec::new(),
        workers: None,
        link: String::new(),
    };
    registry.add(&record).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callee = scope.spawn(|| serve(&socket, &is_over));
        wait_for("the callee", || socket.exists().then_some(()));
        let gateway = Gateway::start(&scene, &[]);
        CASES.iter().for_each(|case| is_answered_whole(gateway.address, case));
        gateway.stop();
        is_over.store(true, Ordering::Relaxed);
        callee.join().unwrap();
    });
    registry.remove(&identity, "1").unwrap();
}
