//! A container that is an action, and a client of its port.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cwasi_testbed::netns::connect_to;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::run::{Outcome, Run, Running};
use cwasi_testbed::scene::{Scene, guests_dir, unique, wait_for};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::SHIM;

pub const PORT: u16 = 8080;
/// The line that ends an activation.
pub const END: &str = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX";

pub fn scene_on(version: ContainerdVersion, name: &str) -> Scene {
    Scene::open(version, SHIM, &unique(name))
}

/// Bytes of the guest `action`.
pub fn module() -> Vec<u8> {
    guest("wasm32-wasip1", "action.wasm")
}

/// Bytes of a guest that was built for `target`.
pub fn guest(target: &str, name: &str) -> Vec<u8> {
    let release = guests_dir(Path::new(SHIM).parent().unwrap());
    let guests = release.ancestors().nth(2).unwrap();
    fs::read(guests.join(target).join("release").join(name)).unwrap()
}

pub fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// A started action.
pub struct Action<'a> {
    scene: &'a Scene,
    id: &'a str,
    pub running: Running,
    pub pid: i32,
}

/// What an action has written, without the runtime's lines and the ends of activations.
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    /// Lines of the runtime.
    pub runtime: String,
    /// Ends of activations in stdout and stderr.
    pub ends: (usize, usize),
}

impl<'a> Action<'a> {
    /// An action whose code comes with `/init`.
    pub fn empty(scene: &'a Scene, id: &'a str) -> Self {
        Self::start(scene, id, scene.image(cwasi_testbed::scene::GUESTS, id).args(["none"]))
    }

    /// An action whose image has the module.
    pub fn of_image(scene: &'a Scene, id: &'a str) -> Self {
        Self::start(scene, id, scene.guest(id, "action"))
    }

    pub fn start(scene: &'a Scene, id: &'a str, run: Run) -> Self {
        let run = run.annotation("cwasi.role", "secondary").annotation("cwasi.http", "8080");
        let run =
            run.annotation("cwasi.protocol", "openwhisk").annotation("cwasi.allow", "gateway");
        let mut running = run.spawn(&scene.containerd).unwrap();
        let is_running = wait_for("the action", || {
            let is_running = scene.status(id).is_some_and(|status| status == "RUNNING");
            (is_running || running.has_ended()).then_some(is_running)
        });
        if !is_running {
            panic!("{}", running.finish().unwrap().stderr);
        }
        let pid = scene.pid(id);
        Self { scene, id, running, pid }
    }

    /// The response to a request: its status and its body, which is a JSON object of known length.
    pub fn post(&self, path: &str, body: impl Into<Bytes>) -> (u16, Value) {
        post(self.pid, PORT, path, body.into())
    }

    /// The response to a request that announces so many bytes and sends none.
    pub fn announce(&self, path: &str, bytes: u64) -> (u16, Value) {
        let mut stream = connect_to(self.pid, PORT);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: action\r\ncontent-length: {bytes}\r\nconnection: close"
        );
        write!(stream, "{head}\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    pub fn init(&self, value: &Value) -> (u16, Value) {
        self.post("/init", json!({ "value": value }).to_string())
    }

    /// Initializes it with code, which has to work.
    pub fn init_code(&self, code: &[u8], main: &str) {
        let (status, body) = self.init(&payload(&base64(code), main));
        assert_eq!((status, &body), (200, &json!({ "ok": true })));
    }

    pub fn run(&self, value: &Value) -> (u16, Value) {
        self.post("/run", json!({ "value": value }).to_string())
    }

    /// Ends it.
    pub fn output(self) -> Output {
        self.scene.kill(self.id, "KILL");
        let Outcome { stdout, stderr, .. } = self.running.finish().unwrap();
        let stdout = String::from_utf8(stdout).unwrap();
        let ends = |text: &str| text.lines().filter(|line| *line == END).count();
        let lines = |text: &str, is_wanted: &dyn Fn(&str) -> bool| {
            let lines = text.lines().filter(|line| *line != END && is_wanted(line));
            lines.flat_map(|line| [line, "\n"]).collect::<String>()
        };
        let is_runtimes = |line: &str| line.starts_with("cwasi: ");
        Output {
            ends: (ends(&stdout), ends(&stderr)),
            stdout: lines(&stdout, &|_| true),
            runtime: lines(&stderr, &is_runtimes),
            stderr: lines(&stderr, &|line| !is_runtimes(line)),
        }
    }
}

/// The value of an `/init`, as OpenWhisk's tests make it.
pub fn payload(code: &str, main: &str) -> Value {
    json!({ "name": "dummyAction", "main": main, "code": code, "binary": true })
}

pub fn post(pid: i32, port: u16, path: &str, body: Bytes) -> (u16, Value) {
    let stream = connect_to(pid, port);
    stream.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answered = async {
        let stream = TokioIo::new(tokio::net::TcpStream::from_std(stream).unwrap());
        let (mut client, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(path).header("host", "action");
        let request = request.header(CONTENT_TYPE, "application/json");
        client.send_request(request.body(Full::new(body)).unwrap()).await.unwrap()
    };
    runtime.block_on(async {
        let (head, body) = answered.await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        assert_eq!(head.headers[CONTENT_LENGTH], body.len().to_string().as_str());
        assert_eq!(head.headers[CONTENT_TYPE], "application/json");
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert!(body.is_object(), "{body}");
        assert!(head.status == 200 || body["error"].is_string(), "{body}");
        (head.status.as_u16(), body)
    })
}
