//! `cwasi openwhisk`: the API of WOW's executor, by an ordinary user.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cwasi_testbed::scene::wait_for;
use cwasi_testbed::slow_module::fresh_module;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::home::Home;
use super::stderr;

pub struct Executor {
    process: Child,
    address: String,
    /// With the actions' output.
    stderr: BufReader<ChildStderr>,
}

impl Executor {
    pub fn start(home: &Home, arguments: &[&str]) -> Self {
        Self::start_at(home, "127.0.0.1:0", arguments)
    }

    fn start_at(home: &Home, listen: &str, arguments: &[&str]) -> Self {
        let mut command = home.cwasi();
        command.args(["openwhisk", "--listen", listen]).args(arguments);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut all = String::new();
        while !all.contains("listening on ") {
            assert_ne!(stderr.read_line(&mut all).unwrap(), 0, "{all}");
        }
        let address = all.trim().rsplit("http://").next().unwrap().to_owned();
        Self { process, address, stderr }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).unwrap()
    }

    fn post(&self, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: e\r\nconnection: close");
        write!(stream, "{head}\r\n{headers}content-length: {length}\r\n\r\n{body}").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub fn init(&self, id: &str, value: &Value) -> (u16, String) {
        self.post(&format!("/{id}/init"), "", &json!({ "value": value }).to_string())
    }

    pub fn run(&self, id: &str, body: &Value) -> (u16, Value) {
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
fn a_folder_that_changes_after_the_start_is_not_the_actions() {
    let home = Home::new();
    // As the user that the executor runs as, whose folder it is.
    let (shared, secret) = (home.path("data").join("shared"), home.path("data").join("secret"));
    let (box_, link) = (shared.join("box"), shared.join("link"));
    for (folder, text) in [(&box_, "own"), (&secret, "secret")] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("file"), text).unwrap();
    }
    symlink("../secret", &link).unwrap();
    let dir = box_.display().to_string();
    let executor = Executor::start(&home, &["--allow-dir", &dir]);
    let code = BASE64_STANDARD.encode(fs::read(home.guest("action")).unwrap());
    let value = json!({ "code": code, "binary": true, "annotations": { "dir": dir } });
    let read = json!({ "value": { "do": "read", "path": format!("{dir}/file") } });
    let swap = || renameat2(AT_FDCWD, &box_, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE);
    let end = AtomicBool::new(false);
    let read_all = || {
        for _start in 0..40 {
            let (status, text) = executor.init("a", &value);
            // Refused, or the folder that was allowed.
            if status == 200 {
                assert_eq!(executor.run("a", &read).1["result"]["text"], "own");
            } else {
                assert!([403, 500].contains(&status), "{status}: {text}");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                swap().unwrap();
            }
        });
        let ended = scope.spawn(read_all).join();
        end.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
    fs::remove_dir_all(&shared).unwrap();
    fs::create_dir_all(&box_).unwrap();
    let (status, text) = executor.init("a", &value);
    assert!(status == 403 && text.contains("somebody has replaced it"), "{status}: {text}");
}

/// An action that connects to an address and prints its errno.
fn connecting(address: [u8; 4], port: u16) -> Vec<u8> {
    let bytes: String = address.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_open" (func $open (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "sock_connect" (func $connect (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "{bytes}")
  (data (i32.const 8) "\00\00\00\00\04\00\00\00")
  (data (i32.const 16) "\40\00\00\00\0e\00\00\00")
  (data (i32.const 64) "{{\22errno\22:\2200\22}}")
  (func (export "_start") (local $errno i32)
    (drop (call $open (i32.const 1) (i32.const 2) (i32.const 32)))
    (local.set $errno (call $connect (i32.load (i32.const 32)) (i32.const 8) (i32.const {port})))
    (i32.store8 (i32.const 74)
      (i32.add (i32.const 48) (i32.div_u (local.get $errno) (i32.const 10))))
    (i32.store8 (i32.const 75)
      (i32.add (i32.const 48) (i32.rem_u (local.get $errno) (i32.const 10))))
    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 40)))))"#
    );
    wat::parse_str(text).unwrap()
}

#[test]
fn an_action_with_a_network_does_not_reach_the_executor() {
    let home = Home::new();
    let executor = Executor::start(&home, &["--allow-network"]);
    let own: u16 = executor.address.rsplit(':').next().unwrap().parse().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let errno = |address, port| {
        let code = BASE64_STANDARD.encode(connecting(address, port));
        let annotations = json!({ "net_access": true });
        let value = json!({ "code": code, "binary": true, "annotations": annotations });
        assert_eq!(executor.init("a", &value), (200, String::new()));
        let (_, answer) = executor.run("a", &json!({ "value": {} }));
        answer["result"]["errno"].as_str().unwrap_or(&answer.to_string()).to_owned()
    };
    assert_eq!(errno([127, 0, 0, 1], other.local_addr().unwrap().port()), "00");
    for address in [[127, 0, 0, 1], [0, 0, 0, 0]] {
        assert_eq!(errno(address, own), "02", "ACCES of {address:?}");
    }
}

#[test]
fn clients_send_the_token_of_the_file() {
    let home = Home::new();
    let token = home.path("token");
    fs::write(&token, "0123456789abcdef\n").unwrap();
    // Every address, since clients know the token.
    let token = token.display().to_string();
    let executor = Executor::start_at(&home, "0.0.0.0:0", &["--token-file", &token]);
    for headers in ["", "authorization: Bearer 0123456789abcdeg\r\n"] {
        let mut stream = executor.connect();
        write!(stream, "POST /a/destroy HTTP/1.1\r\nhost: e\r\nconnection: close\r\n").unwrap();
        write!(stream, "{headers}content-length: 0\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 401"), "{response}");
        assert!(response.to_lowercase().contains("www-authenticate: bearer"), "{response}");
    }
    let known = "authorization: Bearer 0123456789abcdef\r\n";
    let (status, text) = executor.post("/a/destroy", known, "");
    assert!(status == 500 && text.contains("there is no action a"), "{status}: {text}");
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

/// An `/init` is interrupted by the executor's death, at a stage that the test sees from outside.
#[test]
fn an_executor_that_is_killed_in_an_init_leaves_nothing_to_the_next_one() {
    let home = Home::new();
    let action = BASE64_STANDARD.encode(fs::read(home.guest("action")).unwrap());
    let init = |code: &str| json!({ "value": { "code": code, "binary": true } }).to_string();
    let (slow, quick) = (init(&BASE64_STANDARD.encode(fresh_module(u8::MAX))), init(&action));
    // The process that is there at the stage, and how much of the request has been sent.
    let stages = [
        ("cwasi-shim", quick.as_str(), quick.len() / 2),
        ("cwasi-compiler", slow.as_str(), slow.len()),
        ("cwasi-init", quick.as_str(), quick.len()),
        ("cwasi-worker", quick.as_str(), quick.len()),
    ];
    for (process, body, sent) in stages {
        let mut executor = Executor::start(&home, &[]);
        let mut client = executor.connect();
        let head = "POST /a/init HTTP/1.1\r\nhost: e\r\ncontent-length";
        write!(client, "{head}: {}\r\n\r\n{}", body.len(), &body[..sent]).unwrap();
        wait_for(process, || home.processes().iter().any(|name| name == process).then_some(()));
        executor.process.kill().unwrap();
        executor.process.wait().unwrap();
        wait_for("the end of all processes", || home.processes().is_empty().then_some(()));
        let mut answer = Vec::new();
        let _reset = client.read_to_end(&mut answer);
        if sent < body.len() || process == "cwasi-compiler" {
            assert!(answer.is_empty(), "{process}: {}", String::from_utf8_lossy(&answer));
        }
        assert_eq!(home.state().len(), 1, "{process}: its folder is the next executor's to remove");
    }
    let mut executor = Executor::start(&home, &[]);
    assert_eq!(home.state().len(), 1);
    assert_eq!(executor.post("/a/init", "", &quick), (200, String::new()));
    let echo = json!({ "value": { "n": 1 } });
    assert_eq!(executor.run("a", &echo).1["result"], json!({ "n": 1 }));
    kill(Pid::from_raw(executor.process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(executor.process.wait().unwrap().success());
    home.nothing_is_left();
}
