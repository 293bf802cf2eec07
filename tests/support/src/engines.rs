//! The engine that tests run with, and the programs of each.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cwasi_config::{DEFAULT_ENGINE, Engine};

use crate::paths::checkout;

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

/// Names the folder of the runtime's programs that tests run, absolute or from the checkout; without it, Cargo's.
pub const PROGRAMS_VARIABLE: &str = "CWASI_TEST_PROGRAMS";

/// The folder of the runtime's programs that tests run; `built` is Cargo's.
#[must_use]
pub fn programs(built: &Path) -> PathBuf {
    match std::env::var_os(PROGRAMS_VARIABLE) {
        Some(folder) => checkout().join(folder),
        None => built.to_owned(),
    }
}

/// The program that tests run in place of `built`, which Cargo built.
#[must_use]
pub fn tested_program(built: &str) -> PathBuf {
    let built = Path::new(built);
    programs(built.parent().unwrap_or(built)).join(built.file_name().unwrap_or(OsStr::new("")))
}

/// A program of the folder that [`PROGRAMS_VARIABLE`] names, or else one that was built beside the running one.
///
/// # Panics
/// When this process was not built by Cargo.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this process has a program");
    if let Some(folder) = std::env::var_os(PROGRAMS_VARIABLE) {
        let named = checkout().join(folder).join(name);
        if named.exists() {
            return named;
        }
    }
    // Tests are in a folder below.
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|program| program.exists());
    found.unwrap_or_else(|| own.parent().unwrap_or(Path::new(".")).join(name))
}
