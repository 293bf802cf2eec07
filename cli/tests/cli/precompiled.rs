//! Native code that one machine signs and another one takes: files, archives of actions, and artifacts of images.

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::process::Output;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cwasi_testbed::registry::{Registry, Setup};
use rcgen::{KeyPair, PKCS_ED25519};
use serde_json::{Value, json};

use super::home::Home;
use super::openwhisk::Executor;
use super::scene::{Stage, guest};
use super::{stderr, stdout};

/// A level of processors that every machine of the tests has.
const LEVEL: &str = if cfg!(target_arch = "x86_64") { "x86-64-v2" } else { "armv8-a" };
const NEVER: &str = "because this node never compiles";

/// Files of a new private key and of its public one.
fn keys(folder: &Path) -> [PathBuf; 2] {
    let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let files = ["key.pem", "public.pem"].map(|name| folder.join(name));
    fs::write(&files[0], pair.serialize_pem()).unwrap();
    fs::write(&files[1], pair.public_key_pem()).unwrap();
    files
}

/// Writes the configuration of a node again as it was: other stages have the same node.
struct Restored {
    file: PathBuf,
    text: String,
}

impl Restored {
    fn of(file: PathBuf) -> Self {
        Self { text: fs::read_to_string(&file).unwrap(), file }
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        fs::write(&self.file, &self.text).unwrap();
    }
}

fn zip(files: &[(&str, &[u8])]) -> String {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    BASE64_STANDARD.encode(zip.finish().unwrap().into_inner())
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

#[test]
fn an_executor_that_never_compiles_runs_signed_actions() {
    let home = Home::new();
    let data = home.path("data");
    let [key, public] = keys(&data);
    let (maker, made) = (data.join("maker.toml"), data.join("made"));
    fs::write(&maker, format!("cache_dir = {:?}\n", data.join("cache"))).unwrap();
    let mut compile = home.cwasi();
    compile.env("CWASI_CONFIG", &maker).args(["compile", "--engine=wasmtime", "--sign"]).arg(&key);
    compile.args(["--processor", "native", "--processor", LEVEL, "--output"]).arg(&made);
    let said = succeeds(&compile.arg(home.guest("action")).output().unwrap());
    let level = format!("action.{LEVEL}.cwasm");
    for file in ["action.cwasm", &level] {
        assert!(said.contains(&format!("{} signed\n", made.join(file).display())), "{said}");
    }
    let mut twice = home.cwasi();
    twice.env("CWASI_CONFIG", &maker).args(["compile", "--engine=wasmtime", "--sign"]).arg(&key);
    twice.arg("--output").arg(&made).args([home.guest("action"), home.guest("action")]);
    let text = stderr(&twice.output().unwrap());
    assert!(text.contains("action.cwasm is of a module before"), "{text}");
    let folder = home.path(".config/cwasi");
    fs::create_dir_all(&folder).unwrap();
    let config = format!("[compile]\nenabled = false\ntrusted_keys = [{public:?}]\n");
    fs::write(folder.join("config.toml"), config).unwrap();
    let executor = Executor::start(&home, &[]);
    let init = |id: &str, code: &str| executor.init(id, &json!({ "code": code, "binary": true }));
    let module = fs::read(home.guest("action")).unwrap();
    let (code, signature) = (
        fs::read(made.join(&level)).unwrap(),
        fs::read(made.join(format!("{level}.sig"))).unwrap(),
    );
    let mut damaged = code.clone();
    damaged[code.len() / 2] ^= 1;
    let with =
        |code: &[u8]| zip(&[("a.wasm", &module), ("a.cwasm", code), ("a.cwasm.sig", &signature)]);
    for refused in [BASE64_STANDARD.encode(&module), with(&damaged), with(&code[1..])] {
        let (status, text) = init("a", &refused);
        assert!(status == 500 && text.contains(NEVER), "{status} {text}");
    }
    assert_eq!(init("a", &with(&code)), (200, String::new()));
    let echo = json!({ "value": { "n": 1 } });
    assert_eq!(executor.run("a", &echo).1["result"], json!({ "n": 1 }));
    // From now on the node has it.
    assert_eq!(init("b", &BASE64_STANDARD.encode(&module)), (200, String::new()));
    assert_eq!(home.compiled().len(), 1);
}

#[test]
fn an_image_runs_by_the_artifact_that_refers_to_it() {
    let stage = Stage::new("cli-referrer");
    let _restored = Restored::of(stage.scene.node.config());
    let folder = stage.folder.path();
    let [key, public] = keys(folder);
    let (key, maker) = (key.display().to_string(), folder.join("maker.toml"));
    fs::write(&maker, format!("cache_dir = {:?}\n", folder.join("maker"))).unwrap();
    let registry = Registry::start(&Setup::default());
    let image = format!("{}/team/greeter:1", registry.address());
    stage.ok(&["image", "build", "-t", &image, &guest("greeter")]);
    let sign = |more: &[&str]| {
        let mut compile = stage.cwasi();
        compile.env("CWASI_CONFIG", &maker).args(["compile", "--sign", &key, "--image", &image]);
        succeeds(&compile.args(more).output().unwrap())
    };
    let pushed = sign(&["--push"]);
    let (name, digest) = pushed.trim().split_once(' ').unwrap();
    assert!(name.starts_with(&format!("{}/team/greeter:sha256-", registry.address())), "{name}");
    let file =
        stage.workflow("signed", &format!("    greeter: {{image: '{image}', role: secondary}}\n"));
    let (cache, node) = (folder.join("cache"), &stage.scene.node);
    let never = format!("cache_dir = {cache:?}\n[compile]\nenabled = false\n");
    let refused = || {
        let output = stage.cwasi().args(["deploy", &file]).output().unwrap();
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(said.contains(NEVER), "{said}");
    };
    // Neither without the artifact nor without the key.
    node.write_config(&format!("{never}trusted_keys = [{public:?}]"));
    refused();
    let _fetched = stage.scene.ctr(["content", "fetch", "--plain-http", name]).success();
    node.write_config(&never);
    refused();
    node.write_config(&format!("{never}trusted_keys = [{public:?}]"));
    stage.ok(&["deploy", &file]);
    assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!");
    stage.ok(&["rm", "greeter"]);
    // An image that has the code in it needs no artifact.
    let module = guest("greeter");
    let mut compile = stage.cwasi();
    compile.env("CWASI_CONFIG", &maker).args(["compile", "--sign", &key, "--output"]).arg(folder);
    succeeds(&compile.arg(&module).output().unwrap());
    let code = folder.join("greeter.cwasm").display().to_string();
    stage.ok(&["image", "build", "-t", "localhost/whole:1", "--code", &code, &module]);
    let file =
        stage.workflow("whole", "    greeter: {image: 'localhost/whole:1', role: secondary}\n");
    let cache = folder.join("other-cache");
    node.write_config(&format!(
        "cache_dir = {cache:?}\n[compile]\nenabled = false\ntrusted_keys = [{public:?}]"
    ));
    stage.ok(&["deploy", &file]);
    assert_eq!(stage.ok(&["invoke", "greeter", "--data", "Ada"]), "Hello, Ada!");
    stage.ok(&["rm", "greeter"]);
    // Written into containerd it is the same, and needs no registry.
    drop(registry);
    assert_eq!(sign(&[]), format!("{name} {digest}\n"));
    let json: Value = serde_json::from_str(&sign(&["--json"])).unwrap();
    assert_eq!((&json["name"], &json["image"]), (&json!(name), &json!(image)));
}
