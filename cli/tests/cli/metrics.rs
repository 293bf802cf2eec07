//! `cwasi metrics`, `top` and the files behind them, before real functions; the format by Prometheus' own parser.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use cwasi_testbed::paths::state_dir;
use cwasi_testbed::scene::wait_for;
use serde_json::Value;

use super::scene::Stage;
use super::server::{Server, ask};

/// Reads OpenMetrics, and prints each sample as a line of JSON.
const PARSER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
for family in parse(sys.stdin.read()):
    for sample in family.samples:
        print(json.dumps({'name': sample.name, 'labels': sample.labels, 'value': sample.value}))
";

/// The samples of one namespace, as Prometheus' Python client reads them.
pub fn samples(text: &str, namespace: &str) -> Vec<Value> {
    let unpacked = state_dir();
    let python = unpacked.join("python/usr");
    let libraries = python.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
    let modules = unpacked.join("prometheus-client/usr/lib/python3/dist-packages");
    assert!(modules.is_dir(), "run scripts/setup.sh --languages (make test does)");
    let mut child = Command::new(python.join("bin/python3.11"))
        .args(["-c", PARSER])
        .env("PYTHONHOME", &python)
        .env("LD_LIBRARY_PATH", &libraries)
        .env("PYTHONPATH", &modules)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the parser refuses:\n{text}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let samples = lines.lines().map(|line| serde_json::from_str(line).unwrap());
    samples.filter(|sample: &Value| sample["labels"]["namespace"] == namespace).collect()
}

/// The value of the only sample with this name and label.
pub fn value(samples: &[Value], name: &str, label: (&str, &str)) -> Option<f64> {
    let is_it = |it: &&Value| it["name"] == name && it["labels"][label.0] == label.1;
    let mut found = samples.iter().filter(is_it);
    let value = found.next()?["value"].as_f64();
    assert!(found.next().is_none(), "{name} {label:?} is not the only one");
    value
}

#[test]
fn calls_and_queues_are_counted_and_stay_when_a_group_ends() {
    let stage = Stage::new("cli-metrics");
    let (server, probe) = (stage.guest("server"), stage.guest("probe"));
    let functions = format!(
        "    svc: {{module: {server}, role: secondary, concurrency: 1}}\n    \
         full: {{module: {server}, role: secondary, concurrency: 1, queue: 0}}\n    \
         one: {{module: {probe}, args: [calls, svc, hello, '!fail no', '!sleep 1']}}\n    \
         two: {{module: {probe}, args: [call, nobody, x]}}\n"
    );
    let file = stage.workflow("counted", &functions);
    stage.ok(&["deploy", &file]);
    let run = stage.cwasi().args(["run", &file]).output().unwrap();
    assert!(!run.status.success(), "a call of a function that is not there succeeded");
    let namespace = stage.scene.namespace.clone();
    let read = || samples(&stage.ok(&["metrics"]), &namespace);
    let calls = |of: &[Value]| value(of, "cwasi_calls_total", ("caller", "one"));
    let nobody = |of: &[Value]| value(of, "cwasi_calls_total", ("mode", "none"));
    let now = wait_for("the calls of both callers", || {
        Some(read()).filter(|it| calls(it) == Some(3.0) && nobody(it) == Some(1.0))
    });
    assert_eq!(value(&now, "cwasi_call_errors_total", ("kind", "failed")), Some(1.0));
    assert_eq!(value(&now, "cwasi_call_errors_total", ("kind", "no such function")), Some(1.0));
    assert_eq!(value(&now, "cwasi_call_duration_seconds_count", ("caller", "one")), Some(3.0));
    assert_eq!(value(&now, "cwasi_sent_bytes_total", ("caller", "one")), Some(5.0 + 8.0 + 8.0));
    let gauge = |of: &[Value], name| value(of, name, ("function", "full"));
    wait_for("the workers", || {
        let now = read();
        (gauge(&now, "cwasi_function_workers") == Some(1.0)
            && gauge(&now, "cwasi_function_workers_busy") == Some(0.0))
        .then_some(())
    });
    // A function that is busy refuses, and says so.
    let mut busy = stage.cwasi();
    let mut busy = busy.args(["invoke", "full", "--data", "!sleep 60000"]).spawn().unwrap();
    wait_for("the busy worker", || {
        (gauge(&read(), "cwasi_function_workers_busy") == Some(1.0)).then_some(())
    });
    assert!(stage.fails(75, &["invoke", "full", "--data", "x"]).contains("full is busy"));
    let now = wait_for("the refusal in the metrics", || {
        Some(read()).filter(|it| {
            gauge(it, "cwasi_function_refused_total") >= Some(1.0)
                && gauge(it, "cwasi_function_workers_busy") == Some(1.0)
        })
    });
    let top: Value =
        serde_json::from_str(&stage.ok(&["top", "--json", "-i", "10ms", "-c", "1"])).unwrap();
    let functions = top["functions"].as_array().unwrap();
    let full = functions.iter().find(|it| it["function"] == "full").unwrap();
    assert_eq!(full["busy"], 1);
    busy.kill().unwrap();
    busy.wait().unwrap();
    // It would finish its request first.
    stage.scene.kill("counted.full", "SIGKILL");
    // The group ends: gauges go, counts stay.
    stage.ok(&["rm", "--workflow", "counted"]);
    let after = wait_for("the end of the group", || {
        Some(read()).filter(|it| gauge(it, "cwasi_function_instances") == Some(0.0))
    });
    assert_eq!(calls(&after), Some(3.0));
    assert!(
        gauge(&after, "cwasi_function_refused_total")
            >= gauge(&now, "cwasi_function_refused_total")
    );
    stage.ok(&["deploy", &file]);
    let again = stage.cwasi().args(["run", &file]).output().unwrap();
    assert!(!again.status.success());
    wait_for("the calls of both groups", || (calls(&read()) == Some(6.0)).then_some(()));
    stage.ok(&["rm", "--workflow", "counted"]);
}

#[test]
fn a_scraper_reads_them_on_a_port_or_a_socket() {
    let stage = Stage::new("cli-scrape");
    let mut exporter = Server::start(&stage, &["metrics", "--listen", "127.0.0.1:0"]);
    let connect = || TcpStream::connect(&exporter.address).unwrap();
    let text = ask(connect(), "GET /metrics", "localhost");
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("# EOF\n"), "{text}");
    assert!(text.contains("content-type: application/openmetrics-text; version=1.0.0"), "{text}");
    assert!(ask(connect(), "POST /metrics", "localhost").starts_with("HTTP/1.1 405"));
    assert!(ask(connect(), "GET /else", "localhost").starts_with("HTTP/1.1 404"));
    exporter.stop();
    let socket = stage.folder.path().join("metrics.sock");
    let listen = format!("unix:{}", socket.display());
    let arguments = ["metrics", "--listen", &listen];
    drop(Server::start(&stage, &arguments));
    assert!(Path::new(&socket).exists());
    // What a killed one left is replaced; a living one is not.
    let _exporter = Server::start(&stage, &arguments);
    let text = ask(UnixStream::connect(&socket).unwrap(), "GET /metrics", "localhost");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(stage.fails(69, &arguments).contains("cannot listen on unix:"));
}
