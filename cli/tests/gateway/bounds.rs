//! Clients that send too much, too slowly or too many requests.

use http_body_util::Full;
use hyper::Request;

use crate::client::{ask, raw, run, send};
use crate::{Gateway, cwasi, exposed, scene};

#[test]
fn long_requests_and_stalled_clients_are_refused() {
    let scene = scene("gw-bounds");
    scene.start(
        exposed(&scene, "svc", "server", &[])
            .annotation("cwasi.max-payload", "64KiB")
            .annotation("cwasi.http.max-head", "7KiB"),
    );
    let gateway = Gateway::start(&scene, &["--timeout", "4"]);
    let to = gateway.address;
    assert_eq!(ask(to, "POST", "/function/svc", &[b'x'; 65_536]).status.as_u16(), 200);
    let announced = "POST /function/svc HTTP/1.1\r\nhost: x\r\ncontent-length: 65537\r\n\r\n";
    assert!(raw(to, announced.as_bytes()).starts_with("HTTP/1.1 413 "), "announced");
    let chunked = "POST /function/svc HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let piece = "x".repeat(65_000);
    let pieces = format!("{chunked}fde8\r\n{piece}\r\nfde8\r\n{piece}\r\n");
    assert!(raw(to, pieces.as_bytes()).starts_with("HTTP/1.1 413 "), "in chunks");
    let long = "x".repeat(8000);
    let request = Request::get("/function/svc").header("host", "x").header("long", &long);
    let answer = run(send(to, request.body(Full::default()).unwrap()));
    assert_eq!(answer.status.as_u16(), 431, "{}", answer.text());
    assert_eq!(ask(to, "GET", &format!("/function/svc?{long}"), b"").status.as_u16(), 414);
    let half = "POST /function/svc HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";
    assert!(raw(to, half.as_bytes()).starts_with("HTTP/1.1 408 "), "half a body");
    let late = ask(to, "POST", "/function/svc", b"!sleep 30000");
    assert_eq!((late.status.as_u16(), late.header("cwasi-errno")), (504, "timeout"));
    let served = ask(to, "POST", "/function/svc", b"still here");
    assert_eq!(served.text(), "still here");
    gateway.stop();
}

#[test]
fn overload_is_answered_with_429_and_no_request_is_lost() {
    let scene = scene("gw-overload");
    let run_ = exposed(&scene, "svc", "server", &[]).annotation("cwasi.concurrency", "1");
    scene.start(run_.annotation("cwasi.queue", "4"));
    let gateway = Gateway::start(&scene, &[]);
    let to = gateway.address;
    let answers = run(async move {
        let clients = (0..100).map(|_| {
            let request = Request::post("/function/svc").header("host", "x");
            tokio::spawn(send(to, request.body(Full::from("!sleep 20")).unwrap()))
        });
        let mut answers = Vec::new();
        for client in clients.collect::<Vec<_>>() {
            answers.push(client.await.unwrap());
        }
        answers
    });
    let (served, refused): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.status.is_success());
    assert!(served.iter().all(|answer| answer.text() == "slept") && !served.is_empty());
    for answer in &refused {
        assert_eq!(answer.status.as_u16(), 429, "{}", answer.text());
        assert_eq!(answer.header("retry-after"), "1");
        assert!(answer.text().contains("try again later"), "{}", answer.text());
    }
    assert!(!refused.is_empty() && served.len() + refused.len() == 100);
    gateway.stop();
}

#[test]
fn a_gateway_for_other_hosts_needs_to_know_its_clients() {
    let output = cwasi().args(["gateway", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--token-file") && error.contains("--allow-anonymous"), "{error}");
}
