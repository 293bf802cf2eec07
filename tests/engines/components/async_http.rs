//! `wasi:http/handler` of WASI 0.3 on wasmtime.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod fixture;

use cwasi_engine_tests::assert_no_thread_is_left;
use cwasi_host_functions::{Context, Host};
use cwasi_modes::Payload;
use cwasi_testbed::http_server::HttpServer;
use cwasi_vm::engine::{EngineOptions, InstanceSpec, Module as _};
use cwasi_vm::reactor::{self, HandlerOutcome};
use cwasi_wasmtime::{WasmtimeInstance, WasmtimeModule};
use cwasi_wire::control::Entry;
use cwasi_wire::egress::Egress;
use cwasi_wire::envelope::Metadata;

use fixture::{Seen, begin, host, load_with};

fn load(options: EngineOptions) -> WasmtimeModule {
    let module = load_with("async_http", options);
    module.check(&Entry::Reactor).unwrap();
    module
}

fn instance(module: &WasmtimeModule, host: &mut Host) -> WasmtimeInstance {
    module.instantiate(&InstanceSpec::default(), host).unwrap()
}

/// What the instance answers to the payload of a call, or to the request that the context describes.
fn handle(
    instance: &mut WasmtimeInstance,
    host: &mut Host,
    payload: &[u8],
) -> Result<String, String> {
    match reactor::handle(instance, &Payload::Inline(payload.to_vec()), host) {
        HandlerOutcome::Returned(said) => Ok(String::from_utf8(said.into_vec().unwrap()).unwrap()),
        other => Err(format!("{other:?}")),
    }
}

/// Begins a request of the gateway for `path`.
fn begin_get(host: &mut Host, path: &str) {
    let pairs = [("http.method", "GET"), ("http.path", path), ("http.header.host", "example.org")];
    let metadata = pairs.map(|(key, value)| Metadata::of(key, value)).to_vec();
    host.begin(Context { metadata, ..Context::default() });
}

#[test]
fn it_gets_requests_and_calls_by_name() {
    let (module, mut host) = (load(EngineOptions::default()), host(&Seen::default()));
    for payload in ["payload", "", &"x".repeat(2 << 20)] {
        begin(&mut host);
        let said = handle(&mut instance(&module, &mut host), &mut host, payload.as_bytes());
        assert!(said.unwrap() == format!("POST / {payload}"), "{} bytes", payload.len());
    }
    host.take_metadata();
    let mut made = instance(&module, &mut host);
    begin_get(&mut host, "/a");
    assert_eq!(handle(&mut made, &mut host, b""), Ok("GET /a ".into()));
    let pair = |key: &str, value: &str| Metadata::of(key, value);
    let head = [pair("http.status", "201"), pair("http.header.x-by", "wasi 0.3")];
    assert_eq!(host.take_metadata(), head);
}

#[test]
fn errors_and_traps_end_the_request_only() {
    let (module, mut host) = (load(EngineOptions::default()), host(&Seen::default()));
    for (path, says) in [("/error", "as requested"), ("/trap", "unreachable")] {
        let mut made = instance(&module, &mut host);
        begin_get(&mut host, path);
        let ended = handle(&mut made, &mut host, b"").unwrap_err();
        assert!(ended.contains(says), "{ended}");
    }
    begin(&mut host);
    assert_eq!(handle(&mut instance(&module, &mut host), &mut host, b"on"), Ok("POST / on".into()));
}

#[test]
fn an_instance_is_fresh_unless_it_is_kept() {
    let (module, mut host) = (load(EngineOptions::default()), host(&Seen::default()));
    let mut kept = instance(&module, &mut host);
    for number in 1..=3 {
        begin_get(&mut host, "/served");
        assert_eq!(handle(&mut kept, &mut host, b""), Ok(number.to_string()));
        let mut fresh = instance(&module, &mut host);
        begin_get(&mut host, "/served");
        assert_eq!(handle(&mut fresh, &mut host, b""), Ok("1".into()));
    }
}

#[test]
fn a_body_passes_through_less_memory_than_it_has() {
    let options = EngineOptions { memory_max: Some(2 << 20), ..EngineOptions::default() };
    let (module, mut host) = (load(options), host(&Seen::default()));
    begin(&mut host);
    let body = "x".repeat(8 << 20);
    let said = handle(&mut instance(&module, &mut host), &mut host, body.as_bytes()).unwrap();
    assert!(said == format!("POST / {body}"), "{} bytes", said.len());
    let small = EngineOptions { memory_max: Some(64 << 10), ..EngineOptions::default() };
    let error = load(small).instantiate(&InstanceSpec::default(), &mut host).unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn its_requests_reach_allowed_destinations_only_and_start_no_thread() {
    let server = HttpServer::start();
    let at = server.address;
    let fetch = |allowed: Option<String>, path: &str| {
        let egress = allowed.map(|entry| Egress {
            entries: vec![entry.parse().unwrap()],
            trusts_hosts: false,
            trusts_resolver: false,
        });
        let options = EngineOptions { egress, ..EngineOptions::default() };
        let (module, mut host) = (load(options), host(&Seen::default()));
        begin(&mut host);
        let order = format!("!fetch http://{at}{path}");
        handle(&mut instance(&module, &mut host), &mut host, order.as_bytes()).unwrap()
    };
    assert_no_thread_is_left(|| {
        for refused in [None, Some("127.0.0.1:1".to_owned())] {
            let said = fetch(refused, "/echo");
            // The guest also asks whether the request was sent.
            assert_eq!(said.matches("HttpRequestDenied").count(), 2, "{said}");
        }
        for (path, asked) in [("/echo", "/echo "), ("", "/ ")] {
            let said = fetch(Some(at.to_string()), path);
            assert!(said.starts_with(&format!("200 POST {asked}")), "{said}");
        }
    });
}
