//! Clients that no library would be: slow, half gone, and on the edges of HTTP.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use cwasi_testbed::scene::wait_for;
use nix::sys::socket::{setsockopt, sockopt};

use crate::client::{ask, raw};
use crate::{Gateway, exposed, scene};

/// Pause between the bytes of a slow client.
const DRIP: Duration = Duration::from_millis(20);
/// Longest wait of a bare socket for the server.
const WAIT: Duration = Duration::from_secs(30);

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream
}

/// Reads until the text is complete.
fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "it ended after {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    text
}

/// Sends a byte now and then until the server ends the connection.
fn drips(mut stream: TcpStream, begin: &str) {
    stream.write_all(begin.as_bytes()).unwrap();
    stream.set_read_timeout(Some(DRIP)).unwrap();
    wait_for("the server to end a slow connection", || match stream.read(&mut [0; 512]) {
        Ok(0) => Some(()),
        Ok(_) => None,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            stream.write_all(b"a").err().map(|_ended| ())
        }
        Err(_reset) => Some(()),
    });
}

fn in_flight(to: SocketAddr) -> String {
    let text = ask(to, "GET", "/metrics", b"").text();
    let mut lines = text.lines();
    lines.find(|line| line.starts_with("cwasi_gateway_requests_in_flight ")).unwrap().to_owned()
}

#[test]
fn slow_and_vanished_clients_cost_only_themselves() {
    let scene = scene("gw-slow");
    let run = exposed(&scene, "svc", "server", &[]).annotation("cwasi.isolation", "instance");
    scene.start(run.annotation("cwasi.concurrency", "1"));
    let gateway = Gateway::start(&scene, &["--client-timeout", "2", "--idle-timeout", "2"]);
    let to = gateway.address;
    assert_eq!(ask(to, "POST", "/function/svc", b"!served").text(), "1");
    drips(connect(to), "GET /function/svc HTTP/1.1\r\nhost: x\r\nslow: ");
    let announced = "POST /function/svc HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
    assert!(raw(to, format!("{announced}half").as_bytes()).starts_with("HTTP/1.1 408 "));
    // Idle before its first byte, and after a response.
    assert_eq!(raw(to, b""), "");
    assert!(raw(to, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").ends_with("serving\n"));
    // Gone in the middle of a body.
    let mut vanished = connect(to);
    vanished.write_all(format!("{announced}half").as_bytes()).unwrap();
    setsockopt(&vanished, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    drop(vanished);
    // Gone while the function runs, and one that never reads its response.
    let mut gone = connect(to);
    gone.write_all(
        b"POST /function/svc HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n!sleep 500",
    )
    .unwrap();
    drop(gone);
    let mut deaf = connect(to);
    let large =
        "POST /function/svc HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n!size 50000000";
    deaf.write_all(large.as_bytes()).unwrap();
    let head = read_until(&mut deaf, "\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("content-length: 50000000"),
        "{head}"
    );
    wait_for("the connections to end", || (gateway.connections() == 0).then_some(()));
    assert_eq!(in_flight(to), "cwasi_gateway_requests_in_flight 0");
    // None of the half bodies was a call.
    let served: u32 = ask(to, "POST", "/function/svc", b"!served").text().parse().unwrap();
    assert!((3..=4).contains(&served), "{served}");
    gateway.stop();
}

/// Requests that two servers could read in two ways, or that are no HTTP, and their statuses.
fn ambiguous_requests(post: &str, chunks: &str) -> Vec<(&'static str, String)> {
    let many_headers: String = (0..300).map(|n| format!("h{n}: x\r\n")).collect();
    vec![
        ("400", format!("{post}content-length: 5\r\ncontent-length: 6\r\n\r\nhello!")),
        ("400", format!("{post}transfer-encoding: gzip\r\n\r\nhello")),
        ("501", format!("{post}transfer-encoding: gzip, chunked\r\n\r\n{chunks}")),
        ("501", format!("{post}connection: Upgrade\r\nupgrade: websocket\r\n\r\n")),
        ("400", format!("{post}host: y\r\n\r\n")),
        ("400", "GET /healthz HTTP/1.1\r\n\r\n".to_owned()),
        ("400", format!("{post}content-length: -5\r\n\r\n")),
        ("400", format!("{post}content-length: 99999999999999999999\r\n\r\n")),
        ("400", format!("{post}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n")),
        ("400", format!("{post}no colon\r\n\r\n")),
        ("400", format!("{post}nul: \0\r\n\r\n")),
        ("431", format!("{post}{many_headers}\r\n")),
        ("431", format!("{post}long: {}\r\n\r\n", "x".repeat(65 << 10))),
        ("417", format!("{post}expect: a-pony\r\n\r\n")),
        ("501", "CONNECT good:443 HTTP/1.1\r\nhost: good:443\r\n\r\n".to_owned()),
        ("400", "POST /function/svc HTTP/1.1\r\nhost: evil@good\r\n\r\n".to_owned()),
        (
            "400",
            format!(
                "{post}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"
            ),
        ),
        ("404", "GET /function/../healthz HTTP/1.1\r\nhost: x\r\n\r\n".to_owned()),
        ("400", "what is this\r\n\r\n".to_owned()),
    ]
}

#[test]
fn the_edges_of_http_are_served_or_refused() {
    let scene = scene("gw-edges");
    scene.start(exposed(&scene, "svc", "server", &[]).annotation("cwasi.max-payload", "64KiB"));
    let gateway = Gateway::start(&scene, &["--client-timeout", "2", "--idle-timeout", "2"]);
    let to = gateway.address;
    let post = "POST /function/svc HTTP/1.1\r\nhost: x\r\n";
    // 100-continue: asked for before the body, and not for a body that is refused.
    let mut careful = connect(to);
    let expecting = format!("{post}expect: 100-continue\r\ncontent-length: ");
    careful.write_all(format!("{expecting}5\r\n\r\n").as_bytes()).unwrap();
    assert!(read_until(&mut careful, "\r\n\r\n").starts_with("HTTP/1.1 100 "));
    careful.write_all(b"hello").unwrap();
    assert!(read_until(&mut careful, "hello").starts_with("HTTP/1.1 200 "));
    assert!(raw(to, format!("{expecting}65537\r\n\r\n").as_bytes()).starts_with("HTTP/1.1 413 "));
    // A client that has sent all of a refused body before it reads gets its response, and no reset.
    let mut eager = connect(to);
    let body = "x".repeat(1_000_000);
    eager.write_all(format!("{post}content-length: 1000000\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    eager.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    // Pipelined requests are answered in their order.
    let mut many = connect(to);
    let pipelined: String =
        (0..20).map(|n| format!("{post}content-length: 3\r\n\r\n{n:03}")).collect();
    many.write_all(pipelined.as_bytes()).unwrap();
    let answers = read_until(&mut many, "\r\n\r\n019");
    let bodies: Vec<_> = answers.split("\r\n\r\n").skip(1).map(|rest| &rest[..3]).collect();
    assert_eq!(bodies, (0..20).map(|n| format!("{n:03}")).collect::<Vec<_>>());
    // Chunks with an extension and a trailer; no body; HTTP/1.0; the absolute form of a URL.
    let chunks = "5;x=y\r\nhello\r\n1\r\n!\r\n0\r\ntrailer: t\r\n\r\n";
    let chunked = raw(to, format!("{post}transfer-encoding: chunked\r\n\r\n{chunks}").as_bytes());
    assert!(chunked.ends_with("\r\n\r\nhello!"), "{chunked}");
    let head = raw(to, b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    let head = raw(to, b"HEAD /function/svc HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello");
    assert!(head.contains("content-length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let old = raw(to, b"POST /function/svc HTTP/1.0\r\ncontent-length: 5\r\n\r\nhello");
    assert!(old.starts_with("HTTP/1.0 200 ") && old.ends_with("\r\n\r\nhello"), "{old}");
    let absolute = raw(to, b"GET http://x/healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(absolute.starts_with("HTTP/1.1 200 "), "{absolute}");
    // Chunks count, and nothing that follows is taken for another request (RFC 9112, 6.3).
    let both =
        format!("{post}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n{chunks}{post}\r\n");
    let both = raw(to, both.as_bytes());
    assert!(
        both.contains("connection: keep-alive, close\r\n") && both.ends_with("\r\n\r\nhello!"),
        "{both}"
    );
    let mut others = Vec::new();
    for (status, request) in ambiguous_requests(post, chunks) {
        let answer = raw(to, request.as_bytes());
        if !answer.starts_with(&format!("HTTP/1.1 {status} ")) {
            others.push((request.chars().take(100).collect::<String>(), answer));
        }
    }
    assert!(others.is_empty(), "{others:#?}");
    assert_eq!(
        raw(to, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        "",
        "HTTP/2 has no text to answer with"
    );
    assert_eq!(ask(to, "POST", "/function/svc", b"still here").text(), "still here");
    gateway.stop();
}
