//! End to end on a real containerd: the nine functions of `workflows/functions` answer what their native servers
//! answer. `scripts/functions.sh` builds both from one source.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use cwasi_testbed::paths::checkout;
use cwasi_testbed::port::free_port;
use cwasi_testbed::scene::{Scene, wait_for};

use crate::SHIM;

/// Lines of a text, and one that is similar to a phrase.
const TEXT: &str =
    "Who's there?\nGood night, sweet prince Hamlet\nThe rest is silence\nEnter Hamlet\n";

/// Of a person of user-manager, in alphabetical order.
const FIELDS: [&str; 9] = [
    "building_number",
    "city",
    "country",
    "ip_address",
    "name",
    "street_name",
    "user_agent",
    "username",
    "zip_code",
];

fn built(name: &str) -> PathBuf {
    let path = checkout().join("target/functions").join(name);
    assert!(path.exists(), "there is no {}: scripts/functions.sh", path.display());
    path
}

/// A native server of a function, until it is dropped.
struct Native {
    process: Child,
    port: u16,
}

impl Native {
    fn start(name: &str, env: &[(&str, String)]) -> Self {
        let mut command = Command::new(built(name));
        command.env("PORT", "0").envs(env.iter().cloned()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Status and body of the answer to a query.
fn ask(port: u16, query: &str) -> (u16, String) {
    let mut stream = wait_for("the port", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    write!(stream, "GET /?{query} HTTP/1.1\r\nhost: function\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Serves one answer to each request, and keeps the requests.
struct Web {
    port: u16,
    requests: std::sync::mpsc::Receiver<String>,
}

impl Web {
    fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = read_request(&stream);
                let length = answer.len();
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/plain";
                // Who has the answer may look for its request.
                if sender.send(request).is_err() {
                    return;
                }
                write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{answer}").unwrap();
            }
        });
        Self { port, requests }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/path", self.port)
    }
}

/// The first line and the body.
fn read_request(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    format!("{} {}", first.trim(), String::from_utf8(body).unwrap())
}

/// Starts a function with a port in the machine's network, which it may also use for `env`'s address.
fn start(scene: &Scene, name: &str, env: &[(&str, String)], allowed: Option<u16>) -> u16 {
    let module = std::fs::read(built(&format!("{name}.wasm"))).unwrap();
    let image = scene.import_module(name, &module);
    let port = free_port(Ipv4Addr::LOCALHOST.into());
    let mut run = scene
        .image(&image, name)
        .args(["/m.wasm"])
        .annotation("cwasi.role", "secondary")
        .annotation("cwasi.http", &port.to_string())
        .flag("--net-host");
    for (key, value) in env {
        run = run.env(key, value);
    }
    if let Some(allowed) = allowed {
        run = run.annotation("cwasi.network", &format!("127.0.0.1:{allowed}"));
    }
    scene.start(run);
    port
}

/// Container and native server answer equally: the answers to these queries.
fn both(
    scene: &Scene,
    name: &str,
    queries: &[&str],
    env: &[(&str, String)],
    allowed: Option<u16>,
) -> Vec<(u16, String)> {
    let port = start(scene, name, env, allowed);
    let native = Native::start(name, env);
    let answers = queries.iter().map(|query| {
        let (ours, native) = (ask(port, query), ask(native.port, query));
        assert!(ours == native, "{name}?{query}: {:.200}\n{:.200}", ours.1, native.1);
        ours
    });
    answers.collect()
}

fn ok(body: &str) -> (u16, String) {
    (200, body.to_owned())
}

#[test]
fn functions_in_rust_answer_as_native() {
    let scene = Scene::new(SHIM, "functions-rust");
    let answers = both(&scene, "n-body", &[""], &[], None);
    assert_eq!(answers, [ok("-0.169075164\n-0.169087605")]);
    let answers = both(&scene, "prime-numbers", &["n=7", "n=100000", "n=no", ""], &[], None);
    assert_eq!(answers[0], ok("The value is: [2, 3, 5, 7]"));
    assert_eq!(answers[3], (500, "the query has no `n`".to_owned()));
    let queries = ["text=The%20quick%20brown+fox%20jumps", "text=123"];
    let answers = both(&scene, "whatlang", &queries, &[], None);
    assert_eq!(answers[0], ok("<i>The quick brown fox jumps</i> = <b>English</b>"));
    assert_eq!(answers[1].0, 500);
}

#[test]
fn functions_in_go_answer_as_native() {
    let scene = Scene::new(SHIM, "functions-go");
    let queries = ["length=1000&iterations=100&seed=1", "length=0", "iterations=1&length=4&seed=x"];
    let answers = both(&scene, "aes", &queries, &[], None);
    assert_eq!((answers[0].0, answers[0].1.lines().count()), (200, 101));
    assert_eq!(answers[1].1, "`length` must be a number from 1 to 1048576, not `0`");
    let answers = both(&scene, "float-operation", &["n=10000000", "n=1e9"], &[], None);
    let numbers = "Number: 10000000.000000\nSin: 0.420548\nCos: -0.907270\nSqrt: 3162.277660";
    assert_eq!(answers[0], ok(numbers));
    let answers = both(&scene, "linear-equations", &["unknowns=128&seed=2"], &[], None);
    assert_eq!((answers[0].0, answers[0].1.lines().count()), (200, 128));
    let answers = both(&scene, "matmul", &["dimensions=50&seed=3"], &[], None);
    assert_eq!((answers[0].0, answers[0].1.lines().count()), (200, 50));
}

#[test]
fn functions_that_send_requests_answer_as_native() {
    let scene = Scene::new(SHIM, "functions-http");
    let text = Web::start(TEXT);
    let env = [("TEXT_URL", text.url())];
    let answers = both(&scene, "fuzzysearch", &["search=Hamlet", "x=1"], &env, Some(text.port));
    assert_eq!(answers[0], ok("[2, 4]"));
    let users = Web::start("");
    let env = [("USERS_URL", users.url())];
    let answers =
        both(&scene, "user-manager", &["entries=2", "entries=-1"], &env, Some(users.port));
    assert_eq!(answers[0], ok("Iterated 2 times"));
    let requests: Vec<String> = users.requests.try_iter().collect();
    assert_eq!(requests.len(), 4, "{requests:?}");
    for request in requests {
        let (line, body) = request.split_at(request.find('{').unwrap());
        assert_eq!(line, "POST /path HTTP/1.1 ");
        let person: BTreeMap<String, String> = serde_json::from_str(body).unwrap();
        assert!(person.keys().eq(FIELDS), "{person:?}");
        assert!(person.values().all(|value| !value.is_empty()), "{person:?}");
    }
}
