//! What others wrote, as the command prints it: no terminal obeys it, and no Rust is in it.

use std::fs;

use super::home::Home;
use super::scene::workflow_text;
use super::{cwasi, stderr, stdout};

#[test]
fn a_hostile_file_moves_no_cursor() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.yaml");
    let hostile = "\\e]0;title\\a\\e[2J\\n\\x9b1m";
    for (functions, verb, code) in [
        // A finding of lint, and a fault of the file.
        (format!("    f: {{module: \"/{hostile}\", role: secondary}}\n"), "lint", 1),
        (format!("    f: {{module: /m, \"{hostile}\": 1}}\n"), "lint", 65),
        (format!("    f: {{module: /m, \"{hostile}\": 1}}\n"), "run", 65),
    ] {
        fs::write(&file, workflow_text("w", &functions)).unwrap();
        let output =
            cwasi().args(["--address", "/does/not/exist.sock", verb]).arg(&file).output().unwrap();
        let text = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text:?}");
        assert!(!text.chars().any(|it| it.is_control() && it != '\n'), "{text:?}");
        assert!(text.contains("\\x1b]0;title\\x07\\x1b[2J\\n\\x9b1m"), "{text:?}");
    }
}

#[test]
fn an_error_of_the_runtime_is_a_sentence() {
    let home = Home::new();
    let module = home.path("data").join("m.wasm");
    fs::write(
        &module,
        wat::parse_str("(module (import \"no\" \"such\" (func)) (func (export \"_start\")))")
            .unwrap(),
    )
    .unwrap();
    let file = home.workflow("w", &format!("    f: {{module: {}}}\n", module.display()));
    let text = stderr(&home.ends(70, &[&file]));
    assert!(
        text.contains("w.f cannot be started: ") && text.contains("cannot be satisfied"),
        "{text}"
    );
    assert!(!text.contains("rpc status") && !text.contains("Status {"), "{text}");
}
