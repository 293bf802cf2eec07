//! The test guests: built, compiled ahead of time once per run, loaded.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cwasi_engine_tests::{AnyEngine, AnyModule, compile};
use cwasi_testbed::engines;
use cwasi_vm::{Engine as _, EngineOptions};
use tempfile::TempDir;
const TARGET: &str = "wasm32-wasip1";

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

/// Native code of a guest, compiled at its first use.
fn artifact(name: &str) -> PathBuf {
    compiled(name, &target_dir().join(TARGET).join(format!("release/{name}.wasm")))
}

/// Name and module of each function that is in `target/languages`, or in the folder that `CWASI_LANGUAGES` names.
pub fn built_languages() -> Vec<(String, PathBuf)> {
    let folder = std::env::var_os("CWASI_LANGUAGES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| target_dir().with_file_name("languages"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let built = entries.map(|entry| {
        (entry.file_name().to_string_lossy().into_owned(), entry.path().join("next.wasm"))
    });
    let mut built: Vec<_> = built.filter(|(_, module)| module.exists()).collect();
    built.sort();
    built
}

/// The guest in this file, loaded.
pub fn load_file(name: &str, wasm: &Path) -> AnyModule {
    AnyEngine::new(EngineOptions::default()).unwrap().load(&compiled(name, wasm)).unwrap()
}

/// Compiles, unless that was done.
fn compiled(name: &str, wasm: &Path) -> PathBuf {
    let copy = ARTIFACTS.get().unwrap().path().join(format!("{name}.wasm"));
    let artifact = copy.with_extension(engines::tested().native_extension());
    if !artifact.exists() {
        if wasm != copy {
            std::fs::copy(wasm, &copy).unwrap();
        }
        let _same = compile(engines::tested(), &copy);
    }
    artifact
}

/// A module from its text.
pub fn assembled(name: &str, text: &str) -> PathBuf {
    let wasm = ARTIFACTS.get().unwrap().path().join(format!("{name}.wasm"));
    std::fs::write(&wasm, wat::parse_str(text).unwrap()).unwrap();
    wasm
}

/// A guest, loaded with options.
pub fn load(name: &str) -> AnyModule {
    AnyEngine::new(EngineOptions::default()).unwrap().load(&artifact(name)).unwrap()
}

/// Removes this run's native code.
pub fn remove() {
    if let Some(directory) = ARTIFACTS.get() {
        std::fs::remove_dir_all(directory.path()).unwrap();
    }
}
