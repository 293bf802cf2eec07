//! End to end on a real containerd: `cwasi.http=PORT` serves one container on a port of its own network namespace.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};

use cwasi_host::metrics::node::NodeMetrics;
use cwasi_host::state::StateDir;
use cwasi_testbed::netns::{connect_in, connect_to};
use cwasi_testbed::scene::{Scene, wait_for};
use cwasi_wire::trace::{RecordedSpan, SpanKind, TraceContext};

use crate::scene;

const PORT: &str = "8080";
const PORT_NUMBER: u16 = 8080;

fn namespace(pid: i32) -> File {
    File::open(format!("/proc/{pid}/ns/net")).unwrap()
}

/// The response to a request with this path and body, head and all.
fn ask(pid: i32, path: &str, body: &str) -> String {
    ask_with(pid, path, "", body)
}

/// The same with more headers, each with its line's end.
fn ask_with(pid: i32, path: &str, headers: &str, body: &str) -> String {
    let mut stream = connect_to(pid, PORT_NUMBER);
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: pod\r\nconnection: close\r\ncontent-length: {length}"
    );
    write!(stream, "{head}\r\n{headers}\r\n{body}").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn each_container_answers_on_its_own_port_and_ends_with_it() {
    let scene = scene("http-port");
    for id in ["one", "two"] {
        let run = scene.guest(id, "actor").args(["name", id]).annotation("cwasi.role", "secondary");
        let run = run.annotation("cwasi.function", "svc").annotation("cwasi.http", PORT);
        scene.start(run);
    }
    for id in ["one", "two", "one"] {
        let response = ask(scene.pid(id), "/any/path", "x");
        assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with(id), "{response}");
    }
    // The shims count them as calls of the gateway.
    let state = StateDir::new(&scene.node.state());
    wait_for("the calls in the metrics", || {
        let edges = NodeMetrics::read(&state).edges;
        let (key, counts) = edges.iter().find(|(key, _)| key.namespace == scene.namespace)?;
        let edge = (key.caller.as_str(), key.callee.as_str(), key.mode.as_str());
        (edge == ("gateway", "svc", "local") && counts.calls == 3).then_some(())
    });
    let taken = scene
        .guest("three", "actor")
        .flag(format!("--with-ns=network:/proc/{}/ns/net", scene.pid("one")))
        .annotation("cwasi.role", "secondary")
        .annotation("cwasi.http", PORT);
    let refused = scene.run(taken);
    assert!(refused.code != 0 && refused.stderr.contains("cwasi.http=8080"), "{}", refused.stderr);
    // The descriptor keeps the namespace.
    let kept = namespace(scene.pid("one"));
    scene.kill("one", "KILL");
    scene.wait_stopped("one");
    wait_for("the port to close", || {
        connect_in(kept.try_clone().unwrap(), PORT_NUMBER).is_err().then_some(())
    });
    assert!(ask(scene.pid("two"), "/", "x").ends_with("two"));
}

#[test]
fn http_heads_pass_through_the_port() {
    let scene = scene("http-port-head");
    let run = scene.guest("web", "actor").args(["http"]).annotation("cwasi.role", "secondary");
    scene.start(run.annotation("cwasi.http", "gateway, 8080"));
    let response = ask(scene.pid("web"), "/a/b?c=d", "four");
    assert!(response.starts_with("HTTP/1.1 201 "), "{response}");
    assert!(response.contains("x-length: 4\r\n"), "{response}");
    assert!(response.ends_with("POST|/a/b|c=d||"), "{response}");
    let wrong = scene.guest("wrong", "actor").annotation("cwasi.role", "secondary");
    let refused = scene.run(wrong.annotation("cwasi.http", "70000"));
    assert!(refused.stderr.contains("a port from 1 to 65535"), "{}", refused.stderr);
}

#[test]
fn a_traced_request_to_the_port_has_a_span_of_each_side() {
    const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let scene = scene("http-port-trace");
    scene.settings("[traces]\nclients_decide = true");
    let run = scene.guest("web", "server").annotation("cwasi.role", "secondary");
    let run = run.annotation("cwasi.function", "web");
    scene.start(run.annotation("cwasi.http", PORT));
    let pid = scene.pid("web");
    let untraced = ask(pid, "/", "!context traceparent");
    assert!(untraced.ends_with("\r\n\r\n"), "{untraced}");
    // A list may come in several headers.
    let headers = format!("traceparent: {CLIENT}\r\ntracestate: a=1\r\ntracestate: b=2\r\n");
    let state = ask_with(pid, "/", &headers, "!context tracestate");
    assert!(state.ends_with("\r\n\r\na=1, b=2"), "{state}");
    let seen = ask_with(pid, "/", &headers, "!context traceparent");
    let seen = TraceContext::parse(seen.lines().last().unwrap()).unwrap();
    let client = TraceContext::parse(CLIENT).unwrap();
    let (port, function) = wait_for("the spans of both sides", || {
        let spans = spans(&scene);
        let function = spans.iter().find(|it| it.span.id == seen.span)?.clone();
        let port = spans.into_iter().find(|it| Some(it.span.id) == function.span.parent)?;
        Some((port, function))
    });
    assert_eq!((port.span.trace, port.span.parent), (client.trace, Some(client.span)));
    assert_eq!((port.service.as_str(), port.span.kind), ("gateway", SpanKind::Client));
    assert_eq!((port.span.peer.as_str(), port.span.mode.as_str()), ("web", "local"));
    assert_eq!((function.service.as_str(), function.span.kind), ("web", SpanKind::Server));
    assert_eq!(function.span.trace, client.trace);
}

/// The spans of the group of the only function.
fn spans(scene: &Scene) -> Vec<RecordedSpan> {
    let groups = fs::read_dir(scene.node.state().join("g")).unwrap();
    let files = groups.map(|group| group.unwrap().path().join("spans.jsonl"));
    let text: String = files.map(|file| fs::read_to_string(file).unwrap_or_default()).collect();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
