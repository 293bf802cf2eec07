//! `cwasi openwhisk`: the API of WOW's executor, by an ordinary user.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::home::Home;
use super::stderr;

struct Executor {
    process: Child,
    address: String,
    /// With the actions' output.
    stderr: BufReader<ChildStderr>,
}

impl Executor {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let mut command = home.cwasi();
        command.args(["openwhisk", "--listen", "127.0.0.1:0"]).args(arguments);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut all = String::new();
        while !all.contains("listening on ") {
            assert_ne!(stderr.read_line(&mut all).unwrap(), 0, "{all}");
        }
        let address = all.trim().rsplit("http://").next().unwrap().to_owned();
        Self { process, address, stderr }
    }

    fn post(&self, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: e\r\nconnection: close");
        write!(stream, "{head}\r\n{headers}content-length: {length}\r\n\r\n{body}").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn init(&self, id: &str, value: &Value) -> (u16, String) {
        self.post(&format!("/{id}/init"), "", &json!({ "value": value }).to_string())
    }

    fn run(&self, id: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.post(&format!("/{id}/run"), "", &body.to_string());
        (status, serde_json::from_str(&body).unwrap())
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Has ended already, if the test stopped it.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

#[test]
fn the_executor_runs_actions_with_the_capabilities_that_are_allowed() {
    let home = Home::new();
    let data = home.path("data");
    fs::write(data.join("in.txt"), "input").unwrap();
    let dir = data.display().to_string();
    let mut executor = Executor::start(&home, &["--allow-dir", &dir]);
    let code = BASE64_STANDARD.encode(fs::read(home.guest("action")).unwrap());
    let value = |annotations: Value| {
        json!({
            "name": "a", "main": "main", "code": code, "binary": true, "env": { "STRING": "xyz" },
            "annotations": annotations
        })
    };
    for id in ["one", "two"] {
        assert_eq!(executor.init(id, &value(json!({ "dir": dir }))), (200, String::new()));
    }
    let success = |result: Value| {
        (200, json!({ "status": "success", "status_code": 0, "success": true, "result": result }))
    };
    let echo = json!({ "value": { "n": 1 }, "activation_id": "i", "deadline": "9999999999999" });
    assert_eq!(executor.run("one", &echo), success(json!({ "n": 1 })));
    let read = json!({ "value": { "do": "read", "path": format!("{dir}/in.txt") } });
    assert_eq!(executor.run("two", &read), success(json!({ "text": "input" })));
    let variables = json!({ "value": { "do": "variables" } });
    assert_eq!(executor.run("one", &variables).1["result"]["STRING"], "xyz");
    let mut properties = echo.clone();
    properties["value"] = json!({ "do": "properties" });
    assert_eq!(executor.run("one", &properties).1["result"]["activation_id"], "i");
    let failed = executor.run("one", &json!({ "value": { "do": "fail" } }));
    let expected = json!({
        "status": "application error", "status_code": 1, "success": false,
        "result": { "error": "the action failed" }
    });
    assert_eq!(failed, (200, expected));
    let trapped = executor.run("one", &json!({ "value": { "do": "trap" } }));
    assert_eq!((trapped.0, &trapped.1["status"]), (200, &json!("action developer error")));
    // A repeated id replaces the action, here by one without the directory.
    assert_eq!(executor.init("two", &value(Value::Null)).0, 200);
    assert_eq!(executor.run("two", &read).1["success"], false);
    for (id, body, status, part) in [
        ("x", value(json!({ "dir": "/etc" })), 403, "dir /etc"),
        ("x", value(json!({ "net_access": true })), 403, "net_access"),
        ("no name", value(Value::Null), 404, ""),
        ("-x", value(Value::Null), 400, "the id `-x`"),
        ("x", json!({ "code": "!" }), 500, "no base64"),
        ("x", json!({}), 500, "Missing main/no code to execute."),
    ] {
        let answer = executor.init(&id.replace(' ', "/"), &body);
        assert!(answer.0 == status && answer.1.contains(part), "{id}: {answer:?}");
    }
    assert_eq!(executor.run("x", &echo).0, 500);
    let page = executor.post("/one/run", "origin: http://evil.example\r\n", &echo.to_string());
    assert_eq!(page.0, 403);
    assert_eq!(executor.post("/one/destroy", "", ""), (200, String::new()));
    assert_eq!(executor.run("one", &echo).0, 500);
    assert_eq!(executor.post("/one/destroy", "", "").0, 500);
    kill(Pid::from_raw(executor.process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(executor.process.wait().unwrap().success());
    let mut output = String::new();
    executor.stderr.read_to_string(&mut output).unwrap();
    assert!(output.contains("hello stdout\n") && output.contains("hello stderr\n"), "{output}");
    let refused = home.cwasi().args(["openwhisk", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(77));
    assert!(stderr(&refused).contains("listen on a loopback address"), "{}", stderr(&refused));
}

#[test]
fn bodies_that_never_arrive_delay_no_client_and_nothing_is_left() {
    /// More than one server would hold in memory at a time.
    const SILENT: usize = 40;
    let home = Home::new();
    let mut executor = Executor::start(&home, &[]);
    let connect = || {
        let stream = TcpStream::connect(&executor.address).unwrap();
        // Much more than a request takes, and less than the executor's own bound of a body.
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        stream
    };
    let silent: Vec<_> = (0..SILENT)
        .map(|_| {
            let mut stream = connect();
            stream
                .write_all(b"POST /a/init HTTP/1.1\r\nhost: e\r\ncontent-length: 9\r\n\r\nhalf")
                .unwrap();
            stream
        })
        .collect();
    let mut idle = connect();
    idle.write_all(b"POST /a/run HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n{}").unwrap();
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 500");
    let code = BASE64_STANDARD.encode(fs::read(home.guest("action")).unwrap());
    let value = json!({ "name": "a", "main": "main", "code": code, "binary": true });
    assert_eq!(executor.init("a", &value), (200, String::new()));
    drop(silent);
    // Clients that stay connected keep nothing of it.
    kill(Pid::from_raw(executor.process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(executor.process.wait().unwrap().success());
    home.nothing_is_left();
    drop(idle);
}
