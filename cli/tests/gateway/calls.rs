//! What a request becomes, and what its answer says.

use http_body_util::Full;
use hyper::Request;

use crate::client::{ask, run, send};
use crate::{Gateway, exposed, scene};

#[test]
fn functions_with_the_http_annotation_are_served() {
    let scene = scene("gw-calls");
    scene.start(exposed(&scene, "server", "server", &[]));
    scene.start(exposed(&scene, "filter", "filter", &[]));
    scene.secondary("hidden", "server");
    let gateway = Gateway::start(&scene, &[]);
    let ask =
        |method: &str, path: &str, body: &str| ask(gateway.address, method, path, body.as_bytes());
    let echoed = ask("POST", "/function/server", "hello");
    assert_eq!((echoed.status.as_u16(), echoed.text().as_str()), (200, "hello"));
    let named = format!("/function/server.{}/a/b?c=d", scene.namespace);
    assert_eq!(ask("POST", &named, "!context http.path").text(), "/a/b");
    assert_eq!(ask("PUT", &named, "!context http.query").text(), "c=d");
    assert_eq!(ask("PATCH", &named, "!context http.method").text(), "PATCH");
    assert_eq!(ask("POST", &named, "!context caller").text(), "gateway");
    for (path, body, status, errno) in [
        ("/function/nobody", "x", 404, "no such function"),
        ("/function/hidden", "x", 404, "no such function"),
        ("/function/server", "!fail a secret", 500, "failed"),
        ("/function/server", "!trap", 500, "trapped"),
        ("/function/filter", "!fail a secret", 500, "failed"),
        ("/async-function/server", "x", 501, "not available"),
        ("/function/na%20me", "x", 400, "invalid argument"),
    ] {
        let answer = ask("POST", path, body);
        assert_eq!(answer.status.as_u16(), status, "{path} {body}: {}", answer.text());
        assert_eq!(answer.header("cwasi-errno"), errno, "{path} {body}");
        assert_eq!(answer.header("x-call-id").len(), 32, "{path} {body}");
        // What only the operator may know is in the log.
        let told = ["cwasi.", "/", "instance", "annotation", "secret"];
        assert!(!told.iter().any(|word| answer.text().contains(word)), "{}", answer.text());
    }
    // A client that sends a trace reads that this node does not record it.
    let traced = Request::post("/function/server").header("host", "x");
    let traced = traced
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .body(Full::default());
    assert_eq!(run(send(gateway.address, traced.unwrap())).header("cwasi-trace"), "unrecorded");
    let echoed = ask("POST", "/function/server", "hello");
    assert_eq!(echoed.header("cwasi-trace"), "");
    assert_eq!(echoed.header("content-type"), "application/octet-stream");
    assert_eq!(echoed.header("x-content-type-options"), "nosniff");
    assert_eq!(echoed.header("x-call-id").len(), 32);
    let failed = ask("POST", "/function/server", "!fail a secret");
    let id = failed.header("x-call-id");
    let said = format!("the function failed: its log says why, under the id {id}\n");
    assert_eq!(failed.text(), said);
    assert_eq!(ask("GET", "/elsewhere", "").status.as_u16(), 404);
    assert_eq!(ask("GET", "/healthz", "").status.as_u16(), 200);
    let listed: serde_json::Value =
        serde_json::from_str(&ask("GET", "/system/functions", "").text()).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!((&listed[1]["name"], &listed[1]["replicas"]), (&"server".into(), &1.into()));
    let metrics = ask("GET", "/metrics", "").text();
    let line = "cwasi_gateway_requests_total{function=\"server\",status=\"500\"} 3";
    assert!(metrics.contains(line), "{metrics}");
    assert!(!metrics.contains("nobody") && !metrics.contains("hidden"), "{metrics}");
    gateway.stop();
}

#[test]
fn a_function_sets_status_and_headers_and_large_bodies_arrive_whole() {
    let scene = scene("gw-head");
    scene.start(exposed(&scene, "web", "actor", &["http"]));
    scene.start(exposed(&scene, "echo", "server", &[]));
    let gateway = Gateway::start(&scene, &[]);
    let request = Request::delete("/function/web/item?id=7").header("host", "x");
    let request = request.header("x-test", "yes").header("authorization", "the function's own");
    let answer = run(send(gateway.address, request.body(Full::from("four")).unwrap()));
    assert_eq!(answer.status.as_u16(), 201);
    assert_eq!(answer.header("x-length"), "4");
    assert_eq!(answer.text(), "DELETE|/item|id=7|yes|the function's own");
    for length in [0, 1, 65_536, 65_537, 5_000_003] {
        let sent: Vec<u8> =
            (0..length).map(|n: u32| n.to_le_bytes()[1] ^ n.to_le_bytes()[0]).collect();
        let answer = ask(gateway.address, "POST", "/function/echo", &sent);
        assert!(answer.status.is_success() && answer.body == sent, "{length}");
        assert_eq!(answer.header("content-length"), length.to_string());
    }
    gateway.stop();
}

#[test]
fn a_token_is_checked_and_not_passed_on() {
    let scene = scene("gw-token");
    scene.start(exposed(&scene, "web", "actor", &["http"]));
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "correct horse battery\n").unwrap();
    let gateway = Gateway::start(&scene, &["--token-file", token.to_str().unwrap()]);
    for path in ["/function/web", "/async-function/web", "/system/functions", "/metrics"] {
        let answer = ask(gateway.address, "GET", path, b"");
        assert_eq!(answer.status.as_u16(), 401, "{path}");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    assert_eq!(ask(gateway.address, "GET", "/healthz", b"").status.as_u16(), 200);
    let request = Request::get("/function/web").header("host", "x");
    let request = request.header("authorization", "Bearer correct horse battery");
    let answer = run(send(gateway.address, request.body(Full::default()).unwrap()));
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (201, "GET|/|||"));
    gateway.stop();
}
