//! What `faas-cli` asks for, as it asks.

use http_body_util::Full;
use hyper::Request;
use hyper::header::AUTHORIZATION;
use serde_json::{Value, json};

use crate::client::{Answer, ask, run, send};
use crate::{Gateway, exposed, scene};

/// Token of the gateway, and `admin:TOKEN` as basic authentication.
const TOKEN: &str = "0123456789abcdef";
const BASIC: &str = "Basic YWRtaW46MDEyMzQ1Njc4OWFiY2RlZg==";
const LOG: &str =
    "printed\n2026-11-23T04:00:00.000000Z INFO f: one\nof one\n2026-11-23T05:00:00.000000Z two\n";

fn asked(gateway: &Gateway, method: &str, path: &str, authorization: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "gateway");
    let request = request.header(AUTHORIZATION, authorization);
    run(send(gateway.address, request.body(Full::default()).unwrap()))
}

/// An answer of several JSON values, or of one.
fn values(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text());
    serde_json::Deserializer::from_slice(&answer.body).into_iter().map(Result::unwrap).collect()
}

#[test]
fn faas_cli_reads_and_calls_but_changes_nothing() {
    let scene = scene("gw-faas-cli");
    scene.start(exposed(&scene, "page", "server", &[]));
    scene.secondary("hidden", "server");
    let gateway = Gateway::start(&scene, &[]);
    let own = &scene.namespace;
    // Without a login, every request has an empty token.
    let get = |path: &str| asked(&gateway, "GET", path, "Bearer ");
    for namespace in ["openfaas-fn", own] {
        let path = format!("/function/page.{namespace}");
        assert_eq!(ask(gateway.address, "POST", &path, b"hello").text(), "hello", "{path}");
    }
    let expected = json!({
        "name": "page", "namespace": own, "image": "", "invocationCount": 2, "replicas": 1, "availableReplicas": 1,
    });
    for path in ["/system/functions", "/system/functions?namespace=openfaas-fn"] {
        assert_eq!(values(&get(path)), [json!([expected])], "{path}");
    }
    for path in
        ["/system/function/page?usage=1", "/system/function/page?namespace=openfaas-fn&usage=1"]
    {
        assert_eq!(values(&get(path)), std::slice::from_ref(&expected), "{path}");
    }
    // The function has one name, whatever name clients use.
    let metrics = get("/metrics").text();
    let line = "cwasi_gateway_requests_total{function=\"page\",status=\"200\"} 2";
    assert!(metrics.contains(line), "{metrics}");
    assert_eq!(values(&get("/system/functions?namespace=elsewhere")), [json!([])]);
    assert_eq!(values(&get("/system/namespaces")), [json!([own])]);
    assert_eq!(values(&get("/system/secrets")), [json!([])]);
    let info = &values(&get("/system/info"))[0];
    assert!(info["provider"]["provider"] == "cwasi" && info["version"]["release"].is_string());
    for name in ["hidden", "nobody"] {
        assert_eq!(get(&format!("/system/function/{name}?usage=1")).status.as_u16(), 404, "{name}");
    }
    for (method, path) in [
        ("POST", "/system/functions"),
        ("PUT", "/system/functions"),
        ("DELETE", "/system/functions"),
        ("POST", "/system/secrets"),
        ("POST", "/system/scale-function/page"),
        ("POST", "/system/namespace/"),
        ("POST", "/oauth/token"),
        ("GET", "/system/logs?name=page&follow=true"),
    ] {
        let answer = asked(&gateway, method, path, "Bearer ");
        let is_sentence = answer.text().starts_with("this gateway ");
        assert!(answer.status.as_u16() == 501 && is_sentence, "{method} {path}: {}", answer.text());
    }
    gateway.stop();
}

#[test]
fn a_login_has_any_user_and_logs_are_for_those_who_are_known() {
    let scene = scene("gw-faas-login");
    scene.start(exposed(&scene, "page", "server", &[]));
    scene.start(exposed(&scene, "silent", "server", &[]));
    let logs = scene.node.state().join("logs").join(&scene.namespace);
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("page.log"), LOG).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let gateway = Gateway::start(&scene, &["--token-file", token.to_str().unwrap()]);
    let refused = asked(&gateway, "GET", "/system/functions", "Bearer ");
    assert_eq!(refused.status.as_u16(), 401);
    let challenges: Vec<_> = refused.headers.get_all("www-authenticate").iter().collect();
    assert_eq!(challenges, ["Bearer", "Basic realm=\"cwasi\""]);
    let wrong = asked(&gateway, "GET", "/system/functions", "Basic YWRtaW46d3Jvbmc=");
    assert_eq!(wrong.status.as_u16(), 401);
    let bearer = format!("Bearer {TOKEN}");
    for authorization in [BASIC, &bearer] {
        let listed = values(&asked(&gateway, "GET", "/system/functions", authorization));
        assert_eq!(listed[0].as_array().map(Vec::len), Some(2), "{authorization}");
    }
    let texts = |query: &str| {
        let path = format!("/system/logs?name=page&namespace=openfaas-fn{query}");
        let lines = values(&asked(&gateway, "GET", &path, BASIC));
        lines.iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts("&follow=false&tail=-1"), ["printed", "INFO f: one", "of one", "two"]);
    assert_eq!(texts("&tail=1"), ["two"]);
    assert_eq!(texts("&since=2026-11-23T05:30:00%2B01:00"), ["printed", "two"]);
    let last = values(&asked(&gateway, "GET", "/system/logs?name=page&tail=1", BASIC));
    let expected = json!({
        "name": "page", "namespace": scene.namespace, "instance": "page",
        "timestamp": "2026-11-23T05:00:00.000000Z", "text": "two",
    });
    assert_eq!(last, [expected]);
    for (name, status) in [("silent", 501), ("nobody", 404), ("..%2Fpage", 404)] {
        let answer = asked(&gateway, "GET", &format!("/system/logs?name={name}"), BASIC);
        assert_eq!(answer.status.as_u16(), status, "{name}: {}", answer.text());
    }
    gateway.stop();
}
