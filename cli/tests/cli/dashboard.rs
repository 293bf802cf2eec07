//! `cwasi dashboard` without a browser, and the stages of starts in `cwasi ps`. `make screenshots` has the browser.

use std::net::TcpStream;

use cwasi_testbed::scene::wait_for;
use serde_json::Value;

use super::scene::Stage;
use super::server::{Server, ask};

#[test]
fn the_page_shows_calls_and_functions_and_answers_this_host_only() {
    let stage = Stage::new("cli-dashboard");
    let file = stage.hello();
    stage.ok(&["deploy", &file]);
    stage.ok(&["run", &file]);
    let mut server = Server::start(&stage, &["dashboard", "--listen", "127.0.0.1:0"]);
    let get = |path: &str| server.ask(&format!("GET {path}"), &server.address);
    for (path, kind) in [
        ("/", "text/html"),
        ("/style.css", "text/css"),
        ("/app.js", "text/javascript"),
        ("/traces.js", "text/javascript"),
    ] {
        let text = get(path);
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(kind), "{path}: {text}");
        assert!(text.contains("content-security-policy: default-src 'none'"), "{text}");
    }
    let state = || -> Value {
        let text = get("/api/state");
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let state =
        wait_for("the calls", || Some(state()).filter(|state| state["edges"][0]["calls"] == 2));
    let edge = &state["edges"][0];
    assert_eq!(
        (&edge["caller"], &edge["callee"], &edge["mode"]),
        (&"hello".into(), &"greeter".into(), &"local".into())
    );
    let [greeter] = &state["functions"].as_array().unwrap()[..] else { panic!("{state}") };
    assert_eq!(
        (&greeter["function"], &greeter["containers"][0]["status"]),
        (&"greeter".into(), &"RUNNING".into())
    );
    assert!(greeter["containers"][0]["stages"]["container_us"].as_u64() > Some(0), "{state}");
    assert_eq!(state["notes"], Value::Array(Vec::new()));
    assert!(server.ask("GET /api/state", "evil.example").starts_with("HTTP/1.1 403"));
    assert!(server.ask("POST /api/state", "localhost").starts_with("HTTP/1.1 405"));
    // Another user of the machine knows the port, and not the token.
    for path in ["/api/state", "/api/traces", "/api/traces/x"] {
        let stranger = TcpStream::connect(&server.address).unwrap();
        let text = ask(stranger, &format!("GET {path}"), "localhost");
        assert!(text.starts_with("HTTP/1.1 401") && text.contains("the address that"), "{text}");
        assert!(text.contains("www-authenticate: Bearer\r\n"), "{text}");
    }
    assert!(get("/else").starts_with("HTTP/1.1 404"));
    server.stop();
    let text = stage.fails(2, &["dashboard", "--listen", "0.0.0.0:0"]);
    assert!(text.contains("reachable from other hosts") && text.contains("ssh -L"), "{text}");
    stage.ok(&["rm", "greeter"]);
}

#[test]
fn without_containerd_the_page_says_what_is_missing() {
    let stage = Stage::new("cli-dash-away");
    let arguments = ["--address", "/does/not/exist.sock", "dashboard", "--listen", "127.0.0.1:0"];
    let server = Server::start(&stage, &arguments);
    let text = server.ask("GET /api/state", "localhost");
    assert!(
        text.contains("the states of containers are missing: ") && text.contains("exist.sock"),
        "{text}"
    );
}

#[test]
fn ps_shows_the_stages_of_a_start_and_the_run() {
    let stage = Stage::new("cli-stages");
    let (greeter, probe) = (stage.guest("greeter"), stage.guest("probe"));
    let file = stage.workflow(
        "staged",
        &format!(
            "    greeter: {{module: {greeter}, role: secondary}}\n    \
             main: {{module: {probe}, args: [args]}}\n"
        ),
    );
    stage.ok(&["run", "--keep", &file]);
    let starts = || -> Vec<Value> {
        let rows: Vec<Value> = serde_json::from_str(&stage.ok(&["ps", "--json"])).unwrap();
        rows.into_iter().map(|row| row["start"].clone()).collect()
    };
    let starts = wait_for("the stages", || {
        Some(starts()).filter(|starts| starts.len() == 2 && starts.iter().all(Value::is_object))
    });
    for start in &starts {
        for stage in ["container_us", "ready_us"] {
            assert!(start[stage].as_u64() > Some(0), "{stage}: {start}");
        }
        assert!(start["code"] == "cached" || start["code"] == "compiled", "{start}");
    }
    let primary = starts.iter().find(|start| start["container"] == "staged.main").unwrap();
    let ended = wait_for("the end of the run", || {
        let text = stage.ok(&["ps", "-v"]);
        text.contains("; run ").then_some(text)
    });
    assert!(
        ended.contains("init ") && ended.contains(", container ") && ended.contains(", ready "),
        "{ended}"
    );
    assert!(primary["began_unix_ms"].as_u64() > Some(1_700_000_000_000), "{primary}");
    stage.ok(&["rm", "--workflow", "staged"]);
}
