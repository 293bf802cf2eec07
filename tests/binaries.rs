//! What the built programs link: the engine costs every process that loads it 12 ms and 7.5 MB, and
//! containerd starts the shim program three times per container.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::process::Command;

fn needed(program: &str) -> String {
    let output = Command::new("readelf").args(["--dynamic", "--wide", program]).output();
    let output = output.expect("readelf is there where a compiler is");
    assert!(output.status.success(), "readelf {program}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| line.contains("(NEEDED)")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shim_does_not_link_the_engine() {
    let shim = needed(env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1"));
    assert!(shim.contains("libc.so"), "{shim}");
    assert!(!shim.contains("wasmedge") && !shim.contains("LLVM"), "{shim}");
    assert!(!shim.contains("seccomp"), "the shim builds no container: {shim}");
}

#[test]
fn the_sandbox_does() {
    let sandbox = needed(env!("CARGO_BIN_EXE_cwasi-sandbox"));
    assert!(sandbox.contains("libwasmedge"), "{sandbox}");
}
