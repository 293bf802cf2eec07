//! What the command says about itself: completions, manual, schema, the libraries that it links.

use std::process::Command;

use super::{cwasi, stderr, stdout};

#[test]
fn shells_are_told_all_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let output = cwasi().args(["completions", shell]).output().unwrap();
        let script = stdout(&output);
        assert!(output.status.success() && script.contains("completions"), "{}", stderr(&output));
    }
}

#[test]
fn every_verb_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let output = cwasi().arg("man").arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    for page in ["cwasi.1", "cwasi-man.1", "cwasi-schema.1"] {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}: {text}");
    }
    let output = cwasi().args(["man", "/does/not/exist"]).output().unwrap();
    assert_eq!(output.status.code(), Some(70));
    assert!(stderr(&output).contains("manual pages cannot be written to /does/not/exist"));
}

#[test]
fn a_wrong_verb_is_exit_code_2() {
    let output = cwasi().arg("deplyo").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_command_does_not_link_the_engine() {
    let program = env!("CARGO_BIN_EXE_cwasi");
    let output = Command::new("readelf").args(["--dynamic", "--wide", program]).output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("libc.so"), "{text}");
    assert!(!text.contains("wasmedge") && !text.contains("LLVM"), "{text}");
}
