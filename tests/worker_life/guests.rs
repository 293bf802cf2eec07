//! The test guests: built, compiled ahead of time once per run, loaded.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use cwasi::vm::compile::Limits;
use cwasi::vm::{Engine as _, EngineOptions, WasmEdge, wasmedge::WasmEdgeModule};
use nix::sys::wait::WaitStatus;
use tempfile::TempDir;

use crate::harness::in_child;

/// The guest that is written in text.
pub const DEEP: &str = "deep";
const TARGET: &str = "wasm32-wasip1";
/// Longest compilation of a guest.
const COMPILE: Duration = Duration::from_secs(120);

/// Native code of this run.
static ARTIFACTS: OnceLock<TempDir> = OnceLock::new();

/// Where `make guests` puts them: `target/guests`, beside `target/debug/deps/<this test>`.
fn target_dir() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.ancestors().nth(3).unwrap().join("guests")
}

/// Builds what is out of date.
pub fn build() {
    for workspace in ["tests/guests/raw", "tests/guests/sdk"] {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--target", TARGET, "--target-dir"])
            .arg(target_dir())
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(workspace))
            .status()
            .unwrap();
        assert!(status.success(), "{workspace} does not build");
    }
    ARTIFACTS.set(tempfile::tempdir().unwrap()).unwrap();
}

/// Native code of a guest, compiled at its first use, as the sandbox binary does it.
fn artifact(name: &str) -> PathBuf {
    let artifact = ARTIFACTS.get().unwrap().path().join(format!("{name}.so"));
    if !artifact.exists() {
        let wasm = match name {
            DEEP => assembled(name, include_str!("deep.wat")),
            _ => target_dir().join(TARGET).join(format!("release/{name}.wasm")),
        };
        let output = tempfile::tempfile().unwrap();
        let end =
            in_child(&output, || cwasi::vm::compile(&wasm, &artifact, Limits::default()).unwrap())
                .wait(COMPILE);
        assert!(matches!(end, Some(WaitStatus::Exited(_, 0))), "{name}: {end:?}");
    }
    artifact
}

/// A module from its text.
fn assembled(name: &str, text: &str) -> PathBuf {
    let wasm = ARTIFACTS.get().unwrap().path().join(format!("{name}.wasm"));
    std::fs::write(&wasm, wat::parse_str(text).unwrap()).unwrap();
    wasm
}

/// A guest, loaded.
pub fn load(name: &str) -> WasmEdgeModule {
    load_with(name, EngineOptions::default())
}

/// A guest, loaded with options.
pub fn load_with(name: &str, options: EngineOptions) -> WasmEdgeModule {
    WasmEdge::new(options).unwrap().load(&artifact(name)).unwrap()
}

/// Removes this run's native code.
pub fn remove() {
    if let Some(directory) = ARTIFACTS.get() {
        std::fs::remove_dir_all(directory.path()).unwrap();
    }
}

/// An empty file for a child's output.
pub fn output() -> File {
    tempfile::tempfile().unwrap()
}
