//! Code that comes with `/init` and was compiled and signed elsewhere.

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use cwasi_testbed::engines;
use cwasi_testbed::scene::Scene;
use rcgen::{KeyPair, PKCS_ED25519};
use serde_json::json;

use super::fixture::{Action, base64, module, payload};
use crate::scene;

/// A node that never compiles, and an action that was compiled for it.
struct Fixture {
    scene: Scene,
    public: PathBuf,
    /// File names and contents: the module, its code, and the signature.
    files: [(String, Vec<u8>); 3],
}

impl Fixture {
    fn new(name: &str) -> Self {
        let scene = scene(name);
        let folder = scene.node.path().to_owned();
        let path = |name: &str| folder.join(name);
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        fs::write(path("key.pem"), pair.serialize_pem()).unwrap();
        fs::write(path("public.pem"), pair.public_key_pem()).unwrap();
        fs::write(path("a.wasm"), module()).unwrap();
        fs::write(path("maker.toml"), format!("cache_dir = {:?}", path("maker"))).unwrap();
        let engine = engines::tested();
        let mut compile = Command::new(engines::program("cwasi"));
        compile.env("CWASI_CONFIG", path("maker.toml")).args(["compile", "--sign"]);
        compile.arg(path("key.pem")).args(["--engine", engine.name()]).arg(path("a.wasm"));
        let made = compile.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let code = format!("a.{}", engine.native_extension());
        let files = ["a.wasm".to_owned(), code.clone(), format!("{code}.sig")]
            .map(|name| (name.clone(), fs::read(path(&name)).unwrap()));
        Self { public: path("public.pem"), scene, files }
    }

    fn configure(&self, keys: &[&Path], more: &str) {
        let cache = self.scene.node.path().join("cache");
        let engine = engines::tested();
        self.scene.node.write_config(&format!(
            "cache_dir = {cache:?}\nengine = \"{engine}\"\n[compile]\ntrusted_keys = {keys:?}\n{more}"
        ));
    }

    fn archive(&self) -> String {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in &self.files {
            zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        base64(&zip.finish().unwrap().into_inner())
    }

    /// What containerd's log has about a container.
    fn log(&self, id: &str) -> String {
        let log = fs::read_to_string(self.scene.containerd.ready().log()).unwrap();
        let lines = log.lines().filter(|line| line.contains(&format!("container={id} ")));
        lines.collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn signed_code_runs_on_a_node_that_never_compiles() {
    let fixture = Fixture::new("whisk-signed");
    fixture.configure(&[&fixture.public], "enabled = false");
    let action = Action::empty(&fixture.scene, "signed");
    let (status, body) = action.init(&payload(&base64(&module()), "main"));
    let text = body["error"].as_str().unwrap_or_default();
    assert!(status == 502 && text.contains("this node never compiles"), "{status} {body}");
    let ready = (200, json!({ "ok": true }));
    assert_eq!(action.init(&payload(&fixture.archive(), "main")), ready);
    let hello = json!({ "string": "hello" });
    assert_eq!(action.run(&hello), (200, hello));
    assert!(fixture.log("signed").contains("the code of /init has trusted native code: a."));
}

#[test]
fn what_is_damaged_or_of_nobody_is_compiled_anew_and_that_is_said() {
    let mut fixture = Fixture::new("whisk-unsigned");
    fixture.configure(&[], "");
    let ready = (200, json!({ "ok": true }));
    let action = Action::empty(&fixture.scene, "of-nobody");
    assert_eq!(action.init(&payload(&fixture.archive(), "main")), ready);
    assert_eq!(action.run(&json!({ "n": 1 })), (200, json!({ "n": 1 })));
    let log = fixture.log("of-nobody");
    assert!(log.contains("is not used: this node trusts no key"), "{log}");
    fixture.configure(&[&fixture.public], "");
    fs::remove_dir_all(fixture.scene.node.path().join("cache")).unwrap();
    let [_, (_, code), _] = &mut fixture.files;
    code.truncate(1000);
    let action = Action::empty(&fixture.scene, "cut");
    assert_eq!(action.init(&payload(&fixture.archive(), "main")), ready);
    assert_eq!(action.run(&json!({ "n": 1 })), (200, json!({ "n": 1 })));
    let log = fixture.log("cut");
    assert!(log.contains("is not used: it is damaged") && log.contains("compiling"), "{log}");
}
