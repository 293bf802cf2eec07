//! The engine that tests run with, and the programs of each.

use std::path::{Path, PathBuf};

use cwasi_config::{DEFAULT_ENGINE, Engine};

/// Names the engine for tests that run with one; without it, the default's.
pub const VARIABLE: &str = "CWASI_TEST_ENGINE";

/// The engine for tests that run with one.
///
/// # Panics
/// When [`VARIABLE`] names none.
#[must_use]
pub fn tested() -> Engine {
    match std::env::var(VARIABLE) {
        Ok(name) => name.parse().unwrap_or_else(|error| panic!("{VARIABLE}: {error}")),
        Err(_unset) => DEFAULT_ENGINE,
    }
}

/// A program that was built beside the running one.
///
/// # Panics
/// When this process was not built by Cargo.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this process has a program");
    // Tests are in a folder below.
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|program| program.exists());
    found.unwrap_or_else(|| own.parent().unwrap_or(Path::new(".")).join(name))
}
