//! `cwasi image build --push` into a real registry, with and without TLS and passwords.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::registry::{Registry, Setup, USER};

use super::scene::{Stage, guest};
use super::{cwasi, stderr, stdout};

/// A user's folder with Docker's configuration.
struct User(tempfile::TempDir);

impl User {
    /// Docker's configuration with this password for a registry; without one there is no configuration.
    fn new(login: Option<(&Registry, &str)>) -> Self {
        let home = tempfile::tempdir().unwrap();
        if let Some((registry, password)) = login {
            let credentials = serde_json::json!({ "username": USER.0, "password": password });
            let auths = serde_json::json!({ "auths": { registry.address(): credentials } });
            fs::write(home.path().join("config.json"), auths.to_string()).unwrap();
        }
        Self(home)
    }

    /// `cwasi image build --push` of the greeter. No containerd is needed.
    fn push(&self, tag: &str, more: &[&str]) -> Output {
        let mut command = self.command();
        command.args(["image", "build", "--push", "--tag", tag]).arg(guest("greeter")).args(more);
        command.output().unwrap()
    }

    fn command(&self) -> Command {
        let mut command = cwasi();
        command.env("DOCKER_CONFIG", self.0.path());
        command.env("CONTAINERD_ADDRESS", "/does/not/exist.sock");
        command
    }
}

fn fails(output: &Output, code: i32, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    assert_eq!(stdout(output), "");
}

#[test]
fn pushed_images_run_elsewhere() {
    // The oldest containerd that takes both kinds from a registry.
    let stage = Stage::on(ContainerdVersion::V1_7, "cli-push");
    let (registry, user) = (Registry::start(&Setup::default()), User::new(None));
    for kind in ["plain", "layer"] {
        let tag = format!("{}/team/{kind}:1", registry.address());
        let pushed = user.push(&tag, &["--kind", kind]);
        assert!(pushed.status.success(), "{}", stderr(&pushed));
        let said = stdout(&pushed);
        let (name, digest) = said.trim().split_once(' ').unwrap();
        assert_eq!(name, tag);
        // A second time nothing changes.
        assert_eq!(stdout(&user.push(&tag, &["--kind", kind])), said);
        let _pulled = stage.scene.ctr(["images", "pull", "--plain-http", &tag]).success();
        let images = stage.scene.ctr(["images", "ls"]).success().text();
        let pulled = images.lines().find(|line| line.starts_with(&tag)).unwrap();
        assert!(pulled.contains(digest), "{pulled} {digest}");
        let functions = format!("    greeter: {{image: '{tag}', role: secondary}}\n");
        stage.ok(&["deploy", &stage.workflow("pushed", &functions)]);
        assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!", "{kind}");
        stage.ok(&["rm", "greeter"]);
    }
}

#[test]
fn a_password_is_dockers_and_a_wrong_one_is_an_error_in_words() {
    let registry = Registry::start(&Setup { with_password: true, ..Setup::default() });
    let tag = format!("{}/greeter:1", registry.address());
    let pushed = User::new(Some((&registry, USER.1))).push(&tag, &[]);
    assert!(pushed.status.success(), "{}", stderr(&pushed));
    let login = format!("`docker login {}`", registry.address());
    let wrong = User::new(Some((&registry, "wrong"))).push(&tag, &[]);
    fails(&wrong, 77, &["refuses user ada: authentication required", &login, "config.json"]);
    let nobody = User::new(None).push(&tag, &[]);
    fails(&nobody, 77, &["refuses a user without credentials", &login]);
    let text = User::new(None);
    fs::write(text.0.path().join("config.json"), "auths:").unwrap();
    fails(&text.push(&tag, &[]), 65, &["config.json: it is not Docker's configuration in JSON"]);
}

#[test]
fn a_registry_with_tls_is_trusted_by_the_systems_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Some((certificate.clone(), key));
    let registry = Registry::start(&Setup { tls, ..Setup::default() });
    let (tag, user) = (format!("{}/greeter:1", registry.address()), User::new(None));
    let unknown = user.push(&tag, &["--plain-http=false"]);
    fails(&unknown, 69, &["does not answer: invalid peer certificate"]);
    let mut trusting = user.command();
    trusting.env("SSL_CERT_FILE", &certificate);
    trusting.args(["image", "build", "--push", "--plain-http=false", "-t", &tag]);
    let pushed = trusting.arg(guest("greeter")).output().unwrap();
    assert!(pushed.status.success(), "{}", stderr(&pushed));
    // This machine's registries have no TLS, unless the user says so.
    fails(&user.push(&tag, &[]), 70, &["HTTP request to an HTTPS server", "--plain-http=false"]);
}

#[test]
fn a_registry_that_does_not_answer_is_named() {
    let user = User::new(None);
    let registry = Registry::start(&Setup::default());
    let tag = format!("{}/greeter:1", registry.address());
    let parts = ["registry 127.0.0.1:", "does not answer: ", "--plain-http"];
    fails(&user.push(&tag, &["--plain-http=false"]), 69, &parts);
    drop(registry);
    fails(&user.push(&tag, &[]), 69, &["does not answer: Connection refused"]);
    // A name that no server knows, by its standard.
    let unknown = user.push("registry.invalid/greeter:1", &[]);
    fails(&unknown, 69, &["registry registry.invalid does not answer: "]);
}

/// Answers each request with a challenge that names this token server. Returns the address and the requests so far.
fn challenging(realm: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = String::new();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while let Some(Ok(line)) = lines.next()
                && !line.is_empty()
            {
                head.push_str(&line);
            }
            heard.lock().unwrap().push(head);
            let answer = format!(
                "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"{realm}\",service=\"r\"\r\n\
                 content-length: 0\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, requests)
}

#[test]
fn a_password_is_not_sent_to_a_token_server_without_tls() {
    // Nobody listens there; the command must not even try.
    let (address, requests) = challenging("http://192.0.2.1/token");
    let home = tempfile::tempdir().unwrap();
    let credentials = serde_json::json!({ "username": USER.0, "password": USER.1 });
    let auths = serde_json::json!({ "auths": { &address: credentials } });
    fs::write(home.path().join("config.json"), auths.to_string()).unwrap();
    let pushed = User(home).push(&format!("{address}/greeter:1"), &[]);
    fails(&pushed, 77, &["wants the password sent to http://192.0.2.1/token", "not sent"]);
    let requests = requests.lock().unwrap();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert!(!requests[0].to_lowercase().contains("authorization"), "{requests:?}");
}
