//! Web pages of other origins, and names that lead to the gateway.

use http_body_util::Full;
use hyper::Request;

use crate::client::{Answer, run, send};
use crate::{Gateway, exposed, scene};

const APP: &str = "https://app.example";
const TOKEN: &str = "correct horse battery";

fn asked(gateway: &Gateway, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "Gateway.example:8443");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    run(send(gateway.address, request.body(Full::default()).unwrap()))
}

fn origin(page: &'static str) -> (&'static str, &'static str) {
    ("origin", page)
}

#[test]
fn only_listed_origins_read_answers() {
    let scene = scene("gw-origins");
    scene.start(exposed(&scene, "web", "actor", &["http"]));
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let token = ["--token-file", token.to_str().unwrap()];
    let origins = ["--cors-origin", APP, "--cors-origin", "http://localhost:3000"];
    let hosts = ["--allowed-host", "gateway.example", "--allowed-host", "10.0.0.7"];
    let gateway = Gateway::start(&scene, &[&token[..], &origins, &hosts].concat());
    let authorization = ("authorization", "Bearer correct horse battery");
    let allowed = |answer: &Answer| answer.header("access-control-allow-origin").to_owned();
    // The gateway answers, without a token and without the function.
    for path in ["/function/web/x", "/async-function/web", "/function/nobody"] {
        let wanted = [
            origin(APP),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "authorization,x-test"),
        ];
        let answer = asked(&gateway, "OPTIONS", path, &wanted);
        assert_eq!((answer.status.as_u16(), allowed(&answer).as_str()), (200, APP), "{path}");
        assert_eq!(answer.header("access-control-allow-methods"), "PUT");
        assert_eq!(answer.header("access-control-allow-headers"), "authorization,x-test");
        assert!(!answer.header("access-control-max-age").is_empty() && answer.body.is_empty());
        assert!(answer.header("vary").contains("origin"), "{:?}", answer.headers);
    }
    let called = |method: &str, page: &'static str| {
        asked(&gateway, method, "/function/web", &[origin(page), authorization])
    };
    for page in [APP, "http://localhost:3000"] {
        let answer = called("POST", page);
        assert_eq!((answer.status.as_u16(), allowed(&answer).as_str()), (201, page));
        assert_eq!(answer.header("access-control-expose-headers"), "*");
        assert!(answer.header("vary").contains("origin"), "{:?}", answer.headers);
    }
    // A page may read why it is refused.
    let refused = asked(&gateway, "POST", "/function/web", &[origin(APP)]);
    assert_eq!((refused.status.as_u16(), allowed(&refused).as_str()), (401, APP));
    // An OPTIONS that asks for no method is the function's.
    assert_eq!(called("OPTIONS", APP).text(), "OPTIONS|/|||");
    for page in ["https://evil.example", "https://app.example.evil.example", "null"] {
        let preflight = [origin(page), ("access-control-request-method", "PUT")];
        assert_eq!(allowed(&asked(&gateway, "OPTIONS", "/function/web", &preflight)), "", "{page}");
        assert_eq!(allowed(&called("POST", page)), "", "{page}");
    }
    for path in ["/system/functions", "/metrics", "/healthz", "/elsewhere"] {
        let answer = asked(&gateway, "GET", path, &[origin(APP), authorization]);
        assert_eq!(allowed(&answer), "", "{path}");
    }
    // A name of someone else that leads to this address.
    for (path, host, status) in [
        ("/function/web", "evil.example", 421),
        ("/system/functions", "127.0.0.1", 421),
        ("/function/web", "10.0.0.7", 201),
        ("/healthz", "evil.example", 200),
    ] {
        let answer = asked(&gateway, "GET", path, &[("host", host), authorization]);
        assert_eq!(answer.status.as_u16(), status, "{path} {host}");
    }
    gateway.stop();
    let gateway = Gateway::start(&scene, &["--cors-origin", "*"]);
    let answer = asked(&gateway, "POST", "/function/web", &[origin("null")]);
    assert_eq!((answer.status.as_u16(), allowed(&answer).as_str()), (201, "*"));
    gateway.stop();
}

#[test]
fn without_a_token_other_pages_call_nothing() {
    let scene = scene("gw-pages");
    scene.start(exposed(&scene, "web", "actor", &["http"]));
    let gateway = Gateway::start(&scene, &[]);
    for (headers, status) in [
        (&[origin(APP), ("host", "any")][..], 403),
        (&[("host", "any"), ("sec-fetch-site", "cross-site")], 403),
        (&[origin(APP), ("host", "any"), ("access-control-request-method", "PUT")], 403),
        (&[origin("http://any"), ("host", "any"), ("sec-fetch-site", "same-origin")], 201),
        (&[("host", "any")], 201),
    ] {
        let answer = asked(&gateway, "POST", "/function/web", headers);
        assert_eq!(answer.status.as_u16(), status, "{headers:?}: {}", answer.text());
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
    gateway.stop();
}
