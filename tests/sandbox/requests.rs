//! HTTP requests of a component in its sandbox: whom it trusts, and who ends them.

use std::fs;
use std::path::{Path, PathBuf};

use cwasi_config::Engine;
use cwasi_testbed::authority::Authority;
use cwasi_testbed::engines;
use cwasi_testbed::http_server::HttpServer;
use cwasi_testbed::paths::component_guest;
use cwasi_wire::control::{Entry, Role, SandboxMessage};
use cwasi_wire::egress::Egress;
use serde_json::Value;

use crate::fixture::Fixture;
use crate::function::{Caller, Function, Outcome, launch};

/// Where a container's authorities are.
const AUTHORITIES: &str = "rootfs/etc/ssl/certs/ca-certificates.crt";
/// Where the node's may be.
const OF_NODE: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const TIMEOUT: i32 = 5;

/// Native code of the component; `None` with the other engine, which runs no components.
fn component() -> Option<PathBuf> {
    (engines::tested() == Engine::Wasmtime).then(|| {
        let folder = tempfile::tempdir().unwrap().keep();
        let wasm = folder.join("http.wasm");
        fs::copy(component_guest("http"), &wasm).unwrap();
        cwasi_engine_tests::compile(Engine::Wasmtime, &wasm)
    })
}

/// A container in the network of the test, or in one of its own.
fn start<'a>(
    fixture: &'a Fixture,
    artifact: &Path,
    authorities: Option<&str>,
    entries: &[&str],
    own_network: bool,
) -> Function<'a> {
    let id = "requests";
    let mut launch = launch(Role::Secondary, artifact, Entry::Reactor);
    let entries: Vec<_> = entries.iter().map(|entry| entry.parse().unwrap()).collect();
    launch.egress = (!entries.is_empty()).then(|| Egress { entries, ..Egress::default() });
    let bundle = fixture.bundle(id, &["/f.wasm"], |spec| {
        let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|one: &Value| own_network || one["type"] != "network");
    });
    if let Some(pem) = authorities {
        let file = bundle.join(AUTHORITIES);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, pem).unwrap();
    }
    let function = Function::create_in(fixture, id, bundle, launch).unwrap();
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    function
}

fn said(outcome: Outcome) -> String {
    String::from_utf8(outcome.unwrap()).unwrap()
}

fn fetch(caller: &mut Caller, url: &str) -> String {
    said(caller.call(format!("!fetch {url}\nabc").as_bytes()))
}

#[test]
fn https_trusts_the_authorities_of_the_container() {
    let Some(artifact) = component() else { return };
    let (ours, other) = (Authority::new("ours"), Authority::new("another"));
    let server = HttpServer::encrypted(&ours, "localhost");
    let by_address = HttpServer::encrypted(&ours, "127.0.0.1");
    let stranger = HttpServer::encrypted(&other, "localhost");
    let fixture = Fixture::new();
    let entries = ["localhost:*", "127.0.0.1:*"];
    let function = start(&fixture, &artifact, Some(&ours.pem()), &entries, false);
    let mut caller = function.caller();
    let url =
        |host: &str, server: &HttpServer| format!("https://{host}:{}/echo", server.address.port());
    for _ in 0..3 {
        let text = fetch(&mut caller, &url("localhost", &server));
        assert!(text.starts_with("200 localhost:") && text.ends_with("component: abc"), "{text}");
    }
    let text = fetch(&mut caller, &url("127.0.0.1", &by_address));
    assert!(text.starts_with("200 127.0.0.1:"), "{text}");
    for refused in [url("localhost", &stranger), url("127.0.0.1", &server)] {
        let text = fetch(&mut caller, &refused);
        assert!(text.contains("TlsCertificateError"), "{refused}: {text}");
    }
    function.end();
}

#[test]
fn https_without_authorities_in_the_container_trusts_those_of_the_node() {
    let Some(artifact) = component() else { return };
    let server = HttpServer::encrypted(&Authority::new("nobody's"), "localhost");
    let fixture = Fixture::new();
    let mut function = start(&fixture, &artifact, None, &["localhost:*"], false);
    let mut caller = function.caller();
    let url = format!("https://localhost:{}/echo", server.address.port());
    for _ in 0..2 {
        let text = fetch(&mut caller, &url);
        assert!(text.contains("TlsCertificateError"), "{text}");
    }
    function.end();
    let errors = function.container.errors();
    let told = errors.matches("neither the container nor the node has certificates").count();
    let node_has_some = OF_NODE.iter().any(|path| Path::new(path).is_file());
    assert_eq!(told, usize::from(!node_has_some), "{errors}");
}

#[test]
fn a_deadline_ends_a_request_that_is_not_answered() {
    let Some(artifact) = component() else { return };
    let server = HttpServer::start();
    let fixture = Fixture::new();
    let at = server.address.to_string();
    let function = start(&fixture, &artifact, None, &[&at], false);
    let mut caller = function.caller();
    let (code, text) =
        caller.call_within(format!("!fetch http://{at}/silent\n").as_bytes(), 500).unwrap_err();
    assert_eq!(code, TIMEOUT, "{text}");
    // The next worker sends requests, too.
    let text = fetch(&mut caller, &format!("http://{at}/echo"));
    assert!(text.ends_with("component: abc"), "{text}");
    function.end();
}

#[test]
fn requests_need_an_annotation() {
    let Some(artifact) = component() else { return };
    let server = HttpServer::start();
    let at = server.address.to_string();
    let fixture = Fixture::new();
    let mut function = start(&fixture, &artifact, None, &[], false);
    let mut caller = function.caller();
    for _ in 0..2 {
        let text = fetch(&mut caller, &format!("http://{at}/echo"));
        assert!(text.contains("HttpRequestDenied"), "{text}");
    }
    function.end();
    let errors = function.container.errors();
    assert_eq!(errors.matches("cwasi.network").count(), 1, "{errors}");
    assert_eq!(server.connections(), 0);
}

#[test]
fn requests_need_a_way_to_their_destination() {
    let Some(artifact) = component() else { return };
    let server = HttpServer::start();
    let at = server.address.to_string();
    let fixture = Fixture::new();
    let function = start(&fixture, &artifact, None, &[&at], true);
    let text = fetch(&mut function.caller(), &format!("http://{at}/echo"));
    assert!(text.contains("ConnectionRefused") || text.contains("Unroutable"), "{text}");
    function.end();
    assert_eq!(server.connections(), 0);
}
