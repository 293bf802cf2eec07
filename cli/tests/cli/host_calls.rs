//! The gateway's calls, and those of `cwasi invoke`, wherever calls are shown.

use std::fs;
use std::net::TcpStream;

use cwasi_testbed::scene::wait_for;
use serde_json::{Value, json};

use super::metrics::{samples, value};
use super::scene::Stage;
use super::server::{Server, ask};

/// Requests for functions that are not there.
const STRANGERS: usize = 40;

struct Calls<'a> {
    stage: &'a Stage,
    exporter: Server,
}

impl Calls<'_> {
    fn connect(address: &str) -> TcpStream {
        TcpStream::connect(address).unwrap()
    }

    fn scraped(&self) -> Vec<Value> {
        let text = ask(Self::connect(&self.exporter.address), "GET /metrics", "localhost");
        let text = text.split_once("\r\n\r\n").unwrap().1;
        samples(text, &self.stage.scene.namespace)
    }

    fn wait(&self, calls: f64) -> Vec<Value> {
        wait_for("the calls in the metrics", || {
            let now = self.scraped();
            (value(&now, "cwasi_calls_total", ("callee", "page")) == Some(calls)).then_some(now)
        })
    }

    /// The groups of the host's processes.
    fn groups(&self) -> usize {
        let groups = self.stage.scene.node.state().join("g");
        let names = fs::read_dir(groups).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("host-")).count()
    }
}

fn body(text: &str) -> Value {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{text}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn the_gateway_is_a_caller_like_any_other_wherever_calls_are_shown() {
    let stage = Stage::new("cli-host-calls");
    let server = stage.guest("server");
    let page = format!("    page: {{module: {server}, role: secondary, http: gateway}}\n");
    stage.ok(&["deploy", &stage.workflow("shown", &page)]);
    let arguments = ["metrics", "--listen", "127.0.0.1:0"];
    let calls = Calls { stage: &stage, exporter: Server::start(&stage, &arguments) };
    let start = || Server::start(&stage, &["gateway", "--listen", "127.0.0.1:0"]);
    let gateway = start();
    let get = |path: &str| ask(Calls::connect(&gateway.address), &format!("GET {path}"), "x");
    let named = format!("/function/page.{}", stage.scene.namespace);
    for path in ["/function/page", &named, "/function/page.openfaas-fn/path"] {
        assert!(get(path).starts_with("HTTP/1.1 200"), "{path}");
    }
    for number in 0..STRANGERS {
        assert!(get(&format!("/function/nobody-{number}")).starts_with("HTTP/1.1 404"));
    }
    let counted = calls.wait(3.0);
    let labels = &counted.iter().find(|it| it["labels"]["callee"] == "page").unwrap()["labels"];
    assert_eq!((&labels["caller"], &labels["mode"]), (&"gateway".into(), &"local".into()));
    let strange = |it: &&Value| it["labels"]["callee"].as_str().is_some_and(|it| it != "page");
    assert_eq!(counted.iter().find(strange), None);
    // On the command line, on the page, and for faas-cli.
    let top = |arguments: &[&str]| {
        let all = ["top", "--interval", "10ms", "--count", "1"];
        let shown = stage.ok(&[&all, arguments].concat());
        let line = shown.lines().find(|line| line.starts_with("gateway "))?;
        Some(line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    for arguments in [&[][..], &["--workflow", "shown"]] {
        let row = top(arguments).unwrap();
        let (edge, all_calls) = (&row[..3], &row[6]);
        assert_eq!(
            (edge, all_calls.as_str()),
            (&["gateway", "page", "local"].map(Into::into)[..], "3")
        );
    }
    assert_eq!(top(&["--workflow", "other"]), None);
    let dashboard = Server::start(&stage, &["dashboard", "--listen", "127.0.0.1:0"]);
    let state = body(&dashboard.ask("GET /api/state", "localhost"));
    let edge = &state["edges"][0];
    assert_eq!((&edge["caller"], &edge["callee"]), (&"gateway".into(), &"page".into()));
    assert_eq!((&edge["calls"], &state["host_callers"]), (&3.into(), &json!(["gateway"])));
    assert_eq!(body(&get("/system/functions"))[0]["invocationCount"], 3);
    // A process that is over in a moment counts, too, and a failed call as one.
    let qualified = format!("{}/page", stage.scene.namespace);
    assert!(!stage.cwasi().args(["invoke", &qualified, "-d", "!trap"]).status().unwrap().success());
    let counted = calls.wait(4.0);
    assert_eq!(value(&counted, "cwasi_call_errors_total", ("kind", "trapped")), Some(1.0));
    assert_eq!(calls.groups(), 1);
    // The counts of a killed gateway stay; the next one moves them.
    drop(gateway);
    calls.wait(4.0);
    let mut next = start();
    assert_eq!(calls.groups(), 1);
    assert!(ask(Calls::connect(&next.address), "GET /function/page", "x").contains(" 200 "));
    next.stop();
    assert_eq!(calls.groups(), 0);
    calls.wait(5.0);
    stage.ok(&["rm", "--workflow", "shown"]);
    calls.wait(5.0);
}
