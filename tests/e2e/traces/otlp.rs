//! Export as OTLP, to a receiver of the test's own. `make test-collector` puts an OpenTelemetry Collector between.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::mpsc;

use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::scene::{Scene, wait_for};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use tempfile::TempDir;

use super::{SHIM, secondary, wait_spans};

/// Most bytes of a request to the receiver.
const REQUEST_MAX: usize = 1 << 20;
const CONFIG: &str = include_str!("../../collector/collector.yaml");

/// Answers requests of one connection after the other, and passes their bodies on. The first one is told to come back.
fn receive(listener: &TcpListener, bodies: &mpsc::Sender<ExportTraceServiceRequest>) {
    let mut refused = false;
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let Some((head, body)) = request(&mut stream) else { continue };
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        let status = if refused { "200 OK" } else { "503 Service Unavailable" };
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .unwrap();
        let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
        if std::mem::replace(&mut refused, true) && bodies.send(request).is_err() {
            return;
        }
    }
}

/// Head of a request in lower case, and its body.
fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
        assert!(bytes.len() < REQUEST_MAX);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
        let length: usize = length.parse().ok()?;
        if bytes.len() >= end + 4 + length {
            return Some((head, bytes[end + 4..].to_vec()));
        }
    }
}

/// An OpenTelemetry Collector, which ends with the test.
struct Collector {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl Collector {
    /// The one of `make test-collector`, which passes spans on to a port of this machine; `None` in other runs.
    fn start(to: u16) -> Option<Self> {
        let program = env::var_os("CWASI_COLLECTOR")?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("collector.yaml");
        let port = TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let config = CONFIG.replace("RECEIVES", &port.to_string());
        let config = config.replace("SENDS", &to.to_string());
        fs::write(&file, config).unwrap();
        let process = Command::new(program).arg("--config").arg(&file).spawn().unwrap();
        let collector = Self { process, port, _folder: folder };
        wait_for("the collector", || TcpStream::connect(("127.0.0.1", port)).ok());
        Some(collector)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Adds the URL of a receiver to the node's configuration.
fn export_to(scene: &Scene, port: u16) {
    let ready = scene.containerd.ready();
    let gateway = ready.link.as_ref().unwrap().gateway;
    let file = ready.dir.join("cwasi.toml");
    let before = fs::read_to_string(&file).unwrap();
    let traces = format!("[traces]\notlp = \"http://{gateway}:{port}\"\n");
    fs::write(file, format!("{before}\n{traces}")).unwrap();
}

#[test]
fn a_receiver_of_otlp_gets_the_spans_and_its_absence_costs_no_call() {
    let nodes = Nodes::new(SHIM, "otlp");
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let collector = Collector::start(port);
    export_to(&nodes.edge, collector.as_ref().map_or(port, |collector| collector.port));
    // Nobody listens on port 9 at the machine's end of the cloud's cable.
    export_to(&nodes.cloud, 9);
    nodes.edge.start(secondary(&nodes.edge, "near-c", "near"));
    nodes.cloud.start(secondary(&nodes.cloud, "far-c", "far"));
    let (bodies, received) = mpsc::channel();
    let _receiver = std::thread::spawn(move || receive(&listener, &bodies));
    let order = ["repeat", "near", "5", "x"];
    let run = nodes.edge.guest("sender", "probe").args(order).annotation("cwasi.trace", "always");
    assert_eq!(nodes.edge.run(run).success().text(), "ok 5\n");
    let calls = nodes.edge.guest("across", "probe").args(["call", "near", "!call far hello"]);
    let calls = calls.annotation("cwasi.trace", "always");
    assert_eq!(nodes.edge.run(calls).success().text(), "hello");
    let mut ids = BTreeSet::new();
    let mut services = BTreeSet::new();
    // Run, clients and servers of both runs on the edge; the far one's span waits for its receiver.
    wait_for("all spans of the edge", || {
        for batch in received.try_iter().flat_map(|request| request.resource_spans) {
            let attributes = batch.resource.unwrap().attributes;
            let name = attributes.into_iter().find(|it| it.key == "service.name").unwrap();
            services.insert(format!("{:?}", name.value.unwrap().value.unwrap()));
            let spans = batch.scope_spans.into_iter().flat_map(|scope| scope.spans);
            ids.extend(spans.map(|span| (span.trace_id, span.span_id)));
        }
        (ids.len() >= 11 + 4).then_some(())
    });
    let kept: BTreeSet<_> = wait_spans(&[&nodes.edge], ids.len())
        .iter()
        .map(|span| (span.span.trace.bytes().to_vec(), span.span.id.bytes().to_vec()))
        .collect();
    assert_eq!(ids, kept, "{services:?}");
    assert_eq!(wait_spans(&[&nodes.cloud], 1).len(), 1);
}
