//! Heads of requests and responses: their bounds, bytes and repeated headers, in modules and in components.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use hyper::header::HeaderValue;

use cwasi_testbed::paths::component_guest;
use cwasi_testbed::scene::Scene;

use crate::client::{Answer, run, send};
use crate::{Gateway, exposed, scene};

/// Starts a component as a secondary that the gateway may call.
fn start(scene: &Scene, name: &str) {
    let bytes = std::fs::read(component_guest(name)).unwrap();
    let image = scene.import_module(&format!("component-{name}"), &bytes);
    let run = scene.image(&image, name).args(["/m.wasm"]).annotation("cwasi.role", "secondary");
    scene.start(run.annotation("cwasi.function", name).annotation("cwasi.http", "gateway"));
}

/// Sends a request with these headers.
fn ask(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &[u8])], body: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "gateway");
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value).unwrap());
    }
    run(send(to, request.body(Full::from(body.to_owned())).unwrap()))
}

#[test]
fn a_modules_heads_have_64_kib_of_bytes() {
    let scene = scene("gw-heads");
    scene.start(exposed(&scene, "svc", "actor", &["head"]));
    let small = exposed(&scene, "small", "actor", &["head"]);
    scene.start(small.annotation("cwasi.http.max-head", "2KiB"));
    let gateway = Gateway::start(&scene, &[]);
    let ask = |path: &str, headers: &[(&str, &[u8])], length: usize| {
        ask(gateway.address, "POST", path, headers, &length.to_string())
    };
    let cookie = vec![b'c'; 30_000];
    let headers: [(&str, &[u8]); 4] =
        [("cookie", &cookie), ("x-a", b"1"), ("x-a", b"\xe9"), ("x-b", b"")];
    let answer = ask("/function/svc", &headers, 60_000);
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"x-a=1\nx-a=\xe9\nx-b=\n"[..]));
    assert!(answer.headers["x-long"].as_bytes() == [b'\xe9'; 60_000]);
    // Beyond the bound of any function, in both directions.
    let long = vec![b'c'; 66_000];
    assert_eq!(ask("/function/svc", &[("cookie", &long)], 0).status.as_u16(), 431);
    let refused = ask("/function/svc", &[], 66_000);
    assert_eq!((refused.status.as_u16(), refused.header("cwasi-errno")), (500, "failed"));
    // Beyond that of this one.
    assert_eq!(ask("/function/small", &[("cookie", &cookie[..1500])], 1500).status, 200);
    let refused = ask("/function/small", &[("cookie", &cookie[..2048])], 0);
    assert!(refused.text().contains("2048 is the most"), "{} {}", refused.status, refused.text());
    assert_eq!(
        (refused.status.as_u16(), ask("/function/small", &[], 2048).status.as_u16()),
        (431, 500)
    );
    gateway.stop();
}

#[test]
fn a_components_heads_have_64_kib_of_bytes() {
    let scene = scene("gw-comp-heads");
    start(&scene, "http");
    let gateway = Gateway::start(&scene, &[]);
    let ask = |method: &str, path: &str, headers: &[(&str, &[u8])]| {
        ask(gateway.address, method, path, headers, "")
    };
    let long = vec![b'y'; 60_000];
    let headers: [(&str, &[u8]); 3] = [("x-a", b"1"), ("x-a", b"\xe9"), ("x-b", &long)];
    let answer = ask("GET", "/function/http/head/seen", &headers);
    let expected = [b"GET /head/seen x-a=1\nx-a=\xe9\nx-b=", &long[..], b"\n"].concat();
    assert!(
        answer.status == 201 && answer.body == expected,
        "{} {:.99}",
        answer.status,
        answer.text()
    );
    let answer = ask("GET", "/function/http/head/long", &[]);
    assert_eq!(answer.header("content-security-policy").len(), 60_000);
    assert_eq!(ask("GET", "/function/http/head/bytes", &[]).headers["x-bytes"].as_bytes(), b"\xff");
    for (case, status) in [("longer", 502), ("many", 502), ("early", 502), ("several", 201)] {
        let answer = ask("GET", &format!("/function/http/head/{case}"), &[]);
        assert_eq!(answer.status.as_u16(), status, "{case}: {}", answer.text());
    }
    // Beside a body that travels in the same frame.
    let request = Request::post("/function/http/head/long").header("host", "gateway");
    let request = request.header("x-long", HeaderValue::from_bytes(&long).unwrap());
    let answer = run(send(gateway.address, request.body(Full::from(vec![b'z'; 65_000])).unwrap()));
    assert_eq!((answer.status.as_u16(), answer.body.len()), (201, 65_000 + 16));
    assert_eq!(answer.header("content-security-policy").len(), 60_000);
    let answer = ask("HEAD", "/function/http/head/length", &[]);
    assert_eq!((answer.status.as_u16(), answer.header("content-length")), (201, "12345"));
    gateway.stop();
}

#[test]
fn the_response_to_head_keeps_a_modules_length() {
    let scene = scene("gw-head");
    scene.start(exposed(&scene, "svc", "actor", &["head"]));
    let gateway = Gateway::start(&scene, &[]);
    let answer = ask(gateway.address, "HEAD", "/function/svc", &[], "");
    assert_eq!((answer.status.as_u16(), answer.header("content-length")), (200, "12345"));
    let answer = ask(gateway.address, "GET", "/function/svc", &[("x-a", b"1")], "");
    assert_eq!(answer.header("content-length"), "6");
    gateway.stop();
}

/// Reads a response to its last byte.
fn read_response(stream: &mut BufReader<TcpStream>) -> String {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    stream.read_exact(&mut vec![0; length]).unwrap();
    head
}

#[test]
fn connections_say_how_long_they_may_be_idle() {
    let scene = scene("gw-idle");
    let gateway = Gateway::configured(&scene, "[http]\nidle_seconds = 90\n", &[]);
    let request = "GET /healthz HTTP/1.1\r\nhost: x\r\n";
    let mut stream = BufReader::new(TcpStream::connect(gateway.address).unwrap());
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    for _ in 0..2 {
        write!(stream.get_mut(), "{request}\r\n").unwrap();
        let head = read_response(&mut stream);
        assert!(head.contains("keep-alive: timeout=90\r\n"), "{head}");
        assert!(head.contains("connection: keep-alive\r\n"), "{head}");
    }
    write!(stream.get_mut(), "{request}connection: close\r\n\r\n").unwrap();
    let head = read_response(&mut stream);
    assert!(!head.contains("keep-alive"), "{head}");
    gateway.stop();
    // The shortest time: the server ends the connection.
    let gateway = Gateway::start(&scene, &["--idle-timeout", "1"]);
    let mut stream = BufReader::new(TcpStream::connect(gateway.address).unwrap());
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream.get_mut(), "{request}\r\n").unwrap();
    assert!(read_response(&mut stream).contains("keep-alive: timeout=1\r\n"));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    gateway.stop();
}
