//! HTTP requests of components on wasmtime. `cargo test --test sandbox -- https` has a trusted server of HTTPS.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod fixture;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cwasi_engine_tests::assert_no_thread_is_left;
use cwasi_modes::Payload;
use cwasi_testbed::authority::Authority;
use cwasi_testbed::http_server::HttpServer;
use cwasi_testbed::port::free_port;
use cwasi_vm::engine::{EngineOptions, InstanceSpec, Module as _};
use cwasi_vm::reactor::{self, HandlerOutcome};
use cwasi_wire::egress::Egress;

use fixture::{Seen, begin, host, load_with};

/// Lines of the function's log.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn write(line: &str) {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
}

/// The lines that name `what`.
fn logged(what: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|line| line.contains(what)).cloned().collect()
}

/// What the component says about `payload`, with these destinations.
fn run(entries: Option<&[String]>, payload: &str) -> String {
    let egress = entries.map(|entries| {
        let entries = entries.iter().map(|entry| entry.parse().unwrap()).collect();
        Egress { entries, trusts_hosts: false, trusts_resolver: false }
    });
    let options = EngineOptions { egress, log: Some(write), ..EngineOptions::default() };
    let module = load_with("http", options);
    let mut host = host(&Seen::default());
    let mut instance = module.instantiate(&InstanceSpec::default(), &mut host).unwrap();
    begin(&mut host);
    let payload = Payload::Inline(payload.as_bytes().to_vec());
    match reactor::handle(&mut instance, &payload, &mut host) {
        HandlerOutcome::Returned(said) => String::from_utf8(said.into_vec().unwrap()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The same, with every destination.
fn run_anywhere(payload: &str) -> String {
    run(Some(&["*:*".to_owned()]), payload)
}

#[test]
fn a_request_reaches_an_allowed_destination() {
    let server = HttpServer::start();
    let at = server.address;
    let said = run(Some(&[at.to_string()]), &format!("!fetch http://{at}/echo\nabc"));
    assert_eq!(said, format!("200 {at} POST /echo by a component: abc"));
    let name = format!("localhost:{}", at.port());
    let said = run(Some(std::slice::from_ref(&name)), &format!("!fetch http://{name}/echo?a=b\n"));
    assert_eq!(said, format!("200 {name} POST /echo?a=b by a component: "));
}

#[test]
fn a_request_without_a_path_asks_for_the_root() {
    let server = HttpServer::start();
    let at = server.address;
    let said = run(Some(&[at.to_string()]), &format!("!fetch http://{at}\nabc"));
    assert_eq!(said, format!("200 {at} POST / by a component: abc"));
}

#[test]
fn other_destinations_are_refused_and_the_log_says_what_to_set() {
    let server = HttpServer::start();
    let (at, port) = (server.address, server.address.port());
    let other = ["127.0.0.1:1".to_owned(), "other.test:80".to_owned()];
    for entries in [None, Some(&other[..])] {
        for host in [at.to_string(), format!("localhost:{port}")] {
            let said = run(entries, &format!("!fetch http://{host}/echo\n"));
            assert!(said.contains("HttpRequestDenied"), "{host}: {said}");
            // A function each.
            let lines = logged(&format!("request to {host} "));
            assert_eq!(lines.len(), if entries.is_none() { 1 } else { 2 }, "{lines:?}");
            let advice = format!("Add `{host}` to this annotation");
            assert!(lines[0].contains("cwasi.network") && lines[0].contains(&advice), "{lines:?}");
        }
    }
    // The name is allowed on another port: it is looked up, and no address of it is reached.
    let said =
        run(Some(&["localhost:1".to_owned()]), &format!("!fetch http://localhost:{port}/echo\n"));
    assert!(said.contains("HttpRequestDenied"), "{said}");
    assert_eq!(server.connections(), 0);
}

#[test]
fn bodies_stream_in_both_directions_at_once() {
    let server = HttpServer::start();
    let said = run_anywhere(&format!("!duplex http://{}/duplex\nabc", server.address));
    assert_eq!(said, "a+b+c+");
    let large = "x".repeat(3 << 20);
    let said = run_anywhere(&format!("!fetch http://{}/echo\n{large}", server.address));
    assert!(said.len() > large.len() && said.ends_with(&large), "{} bytes", said.len());
}

#[test]
fn the_waits_of_a_request_end_it() {
    let server = HttpServer::start();
    let begun = Instant::now();
    let fetch = |path: &str, waits: &str| {
        run_anywhere(&format!("!fetch http://{}{path} {waits}\n", server.address))
    };
    let said = fetch("/silent", "600000 50 600000");
    assert!(said.contains("ConnectionReadTimeout"), "{said}");
    let said = fetch("/half", "600000 600000 50");
    assert!(said.contains("200  halfthen") && said.contains("timeout"), "{said}");
    // Nobody accepts from this queue, which is full.
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = full.local_addr().unwrap();
    let connect = |_| std::net::TcpStream::connect_timeout(&at, Duration::from_millis(100));
    let queue: Vec<_> = (0..1000).map(connect).take_while(Result::is_ok).collect();
    assert!(queue.len() < 1000);
    let said = run_anywhere(&format!("!fetch http://{at}/ 50 600000 600000\n"));
    assert!(said.contains("ConnectionTimeout"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(300), "none of the long waits was waited for");
}

#[test]
fn broken_connections_are_errors_of_the_request() {
    let server = HttpServer::start();
    let said = run_anywhere(&format!("!fetch http://{}/close\n", server.address));
    assert!(said.contains("HttpResponseIncomplete"), "{said}");
    let nobody = free_port(Ipv4Addr::LOCALHOST.into());
    let said = run_anywhere(&format!("!fetch http://127.0.0.1:{nobody}/\n"));
    assert!(said.contains("ConnectionRefused"), "{said}");
    let said = run_anywhere("!fetch http://name.test/\n");
    assert!(said.contains("DnsError"), "{said}");
    let said = run_anywhere(&format!("!fetch https://{}/echo\n", server.address));
    assert!(said.contains("Tls") || said.contains("ConnectionTerminated"), "{said}");
}

#[test]
fn a_server_of_an_unknown_authority_is_refused() {
    let server = HttpServer::encrypted(&Authority::new("nobody's"), "localhost");
    let said = run_anywhere(&format!("!fetch https://localhost:{}/echo\n", server.address.port()));
    assert!(said.contains("TlsCertificateError"), "{said}");
}

#[test]
fn an_instance_leaves_no_connection_and_no_thread() {
    let server = HttpServer::start();
    assert_no_thread_is_left(|| {
        for path in ["/half", "/duplex"] {
            let said = run_anywhere(&format!("!leave http://{}{path}\n", server.address));
            assert_eq!(said, "left");
        }
    });
    let end = Instant::now() + Duration::from_secs(30);
    while server.connections() > 0 {
        assert!(Instant::now() < end, "{} connections", server.connections());
        std::thread::sleep(Duration::from_millis(5));
    }
}
