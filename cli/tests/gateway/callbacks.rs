//! `X-Callback-Url`: the function's answer arrives at the client's URL, once it is allowed and whatever ends meanwhile.

use std::net::SocketAddr;
use std::path::Path;

use cwasi_testbed::scene::wait_for;
use http_body_util::Full;
use hyper::Request;

use crate::client::{Answer, ask, run, send};
use crate::receiver::{Receiver, closed};
use crate::{Gateway, cwasi, exposed, scene};

/// Asks for a callback.
fn defer(to: SocketAddr, function: &str, url: &str, body: &str) -> Answer {
    let request = Request::post(format!("/async-function/{function}")).header("host", "x");
    let request = request.header("x-callback-url", url);
    run(send(to, request.body(Full::from(body.to_owned())).unwrap()))
}

/// Files of calls in a gateway's directory.
fn files(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    entries.filter(|name| name != "lock").count()
}

fn metric(gateway: &Gateway, line: &str) {
    wait_for(line, || {
        ask(gateway.address, "GET", "/metrics", b"").text().contains(line).then_some(())
    });
}

#[test]
fn answers_are_posted_until_they_are_taken() {
    let scene = scene("gw-callback");
    scene.start(exposed(&scene, "svc", "server", &[]));
    scene.start(exposed(&scene, "web", "actor", &["http"]));
    let kept = tempfile::tempdir().unwrap();
    let directory = kept.path().join("calls");
    let arguments =
        ["--callback-allow", "127.0.0.0/8", "--callback-dir", directory.to_str().unwrap()];
    let gateway = Gateway::start(&scene, &arguments);
    let to = gateway.address;
    let receiver = Receiver::start(&["500 Internal Server Error", "429 Too Many Requests"]);
    let url = receiver.url("/hook?secret=7");
    let accepted = defer(to, "svc", &url, "!context invocation_id");
    assert_eq!(accepted.status.as_u16(), 202, "{}", accepted.text());
    let id = accepted.header("x-call-id").to_owned();
    let tries = receiver.wait(3);
    for callback in &tries {
        assert!(callback.head.starts_with("POST /hook?secret=7 HTTP/1.1\r\n"), "{}", callback.head);
        assert_eq!(callback.text(), id, "the function's own id");
        assert_eq!(callback.header("x-call-id"), id);
        assert_eq!(callback.header("x-function-name"), "svc");
        assert_eq!(callback.header("x-function-status"), "200");
        assert!(callback.header("x-duration-seconds").parse::<f64>().unwrap() > 0.0);
    }
    metric(&gateway, "cwasi_gateway_callbacks_total{end=\"Delivered\"} 1");
    let named = format!("svc.{}", scene.namespace);
    for (function, body, status, errno, text) in [
        (named.as_str(), "!fail no wheels", "500", "failed", "the function failed: its log"),
        ("svc", "!trap", "500", "trapped", "the function failed: its log"),
        ("svc", "!size 1048577", "502", "payload too large", "larger than"),
        ("web", "four", "201", "", "POST|/|||"),
    ] {
        let before = receiver.received().len();
        assert_eq!(defer(to, function, &url, body).status.as_u16(), 202, "{body}");
        let callback = receiver.wait(before + 1).pop().unwrap();
        assert_eq!(callback.header("x-function-status"), status, "{body}");
        // A function of the gateway's own namespace has one name.
        assert_eq!(callback.header("x-function-name"), function.split('.').next().unwrap());
        assert_eq!(callback.header("cwasi-errno"), errno, "{body}");
        assert!(callback.text().contains(text), "{}", callback.text());
    }
    metric(&gateway, "cwasi_gateway_callbacks_total{end=\"Delivered\"} 5");
    assert_eq!(files(&directory), 0);
    gateway.stop();
}

#[test]
fn a_gateway_that_ended_loses_no_callback() {
    let scene = scene("gw-kept");
    scene.start(exposed(&scene, "svc", "server", &[]).annotation("cwasi.concurrency", "2"));
    let parent = tempfile::tempdir().unwrap();
    // Made by the gateway: for its user alone.
    let kept = parent.path().join("calls");
    let nobody = closed();
    let arguments = ["--callback-allow", "127.0.0.0/8", "--callback-dir", kept.to_str().unwrap()];
    let first = Gateway::start(&scene, &arguments);
    let receiver = Receiver::start(&[]);
    // One ends while it runs, one while its answer cannot be delivered.
    let running = defer(first.address, "svc", &receiver.url("/a"), "!sleep 50000");
    let undelivered = defer(first.address, "svc", &format!("http://{nobody}/b"), "answer of b");
    assert_eq!((running.status.as_u16(), undelivered.status.as_u16()), (202, 202));
    let file = |kind| kept.join(format!("{}.{kind}", undelivered.header("x-call-id")));
    wait_for("the answer to be stored", || {
        (file("answer").exists() && !file("call").exists()).then_some(())
    });
    let second = cwasi()
        .args(["gateway", "--listen", "127.0.0.1:0"])
        .args(arguments)
        .env("CWASI_CONFIG", scene.node.config())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(69) && said.contains("another gateway uses it"), "{said}");
    first.kill();
    assert_eq!(files(&kept), 2);
    // The function must not run again for an answer that is there.
    scene.remove("svc");
    scene.start(exposed(&scene, "svc", "actor", &["name", "another"]));
    let listener = std::net::TcpListener::bind(nobody).unwrap();
    let gateway = Gateway::start(&scene, &arguments);
    let callbacks = receiver.wait(1);
    assert_eq!(callbacks[0].header("x-call-id"), running.header("x-call-id"));
    assert_eq!(callbacks[0].text(), "another", "called again");
    let (mut stream, _) = listener.accept().unwrap();
    let mut text = String::new();
    while !text.ends_with("answer of b") {
        let mut piece = [0; 512];
        let length = std::io::Read::read(&mut stream, &mut piece).unwrap();
        assert!(length > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    metric(&gateway, "cwasi_gateway_callbacks_total{end=\"Delivered\"} 2");
    assert_eq!(files(&kept), 0);
    gateway.stop();
}

#[test]
fn urls_lead_only_where_the_operator_allows() {
    let scene = scene("gw-ssrf");
    scene.start(exposed(&scene, "svc", "server", &[]));
    scene.secondary("hidden", "server");
    let receiver =
        Receiver::start(&["302 Found\r\nlocation: http://127.0.0.1:1/", "404 Not Found"]);
    let closed_gateway = Gateway::start(&scene, &[]);
    let refused = defer(closed_gateway.address, "svc", &receiver.url("/"), "x");
    assert_eq!(refused.status.as_u16(), 501, "denied by default: {}", refused.text());
    closed_gateway.stop();
    // A name that resolves to this host does not reach it, as the operator names no address of it.
    let port = receiver.address.port();
    let allowed = format!("127.0.0.1:{port},localhost:*,*.invalid:80");
    let gateway = Gateway::start(&scene, &["--callback-allow", &allowed]);
    let to = gateway.address;
    for (url, status, text) in [
        ("http://127.0.0.1:1/".to_owned(), 403, "--callback-allow"),
        ("http://localhost:1/".to_owned(), 403, "localhost:1"),
        ("http://169.254.169.254/latest".to_owned(), 403, "169.254.169.254:80"),
        ("http://[::1]/".to_owned(), 403, "::1"),
        ("http://no-such-name.invalid/".to_owned(), 503, "no-such-name.invalid"),
        ("ftp://127.0.0.1/".to_owned(), 400, "http://"),
        (format!("http://user@127.0.0.1:{port}/"), 400, "user name"),
        (format!("http://2130706433:{port}/"), 400, "no host"),
    ] {
        let answer = defer(to, "svc", &url, "x");
        assert_eq!(answer.status.as_u16(), status, "{url}: {}", answer.text());
        assert!(answer.text().contains(text), "{url}: {}", answer.text());
    }
    assert_eq!(defer(to, "hidden", &receiver.url("/"), "x").status.as_u16(), 404);
    let long = "x".repeat((1 << 20) + 1);
    assert_eq!(defer(to, "svc", &receiver.url("/"), &long).status.as_u16(), 413);
    assert!(receiver.received().is_empty(), "{:?}", receiver.received());
    // Neither a redirect nor a refusal is tried again.
    for count in 1..=2 {
        assert_eq!(defer(to, "svc", &receiver.url("/"), "x").status.as_u16(), 202);
        metric(&gateway, &format!("cwasi_gateway_callbacks_total{{end=\"Undelivered\"}} {count}"));
        assert_eq!(receiver.received().len(), count);
    }
    gateway.stop();
}
