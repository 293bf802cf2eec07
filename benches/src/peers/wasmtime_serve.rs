//! `wasmtime serve`, the HTTP server of the crate `wasmtime-cli`, if the machine has it.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

/// Variable with the path of the program.
const PROGRAM: &str = "CWASI_BENCH_WASMTIME";
/// The program in the folders of `PATH`.
const BY_NAME: &str = "wasmtime";
/// What it says before its address, on stderr.
const SERVING: &str = "Serving HTTP on http://";

/// A server in front of one component, which makes an instance for each request.
#[derive(Debug)]
pub struct WasmtimeServe {
    address: String,
    process: Child,
}

impl WasmtimeServe {
    /// Its name in the report.
    pub const NAME: &str = "wasmtime-serve";
    /// What the report says without it.
    pub const MISSING: &str = "wasmtime serve was not measured: install wasmtime-cli, or set CWASI_BENCH_WASMTIME to \
                               its program";

    /// True when the machine has it.
    #[must_use]
    pub fn is_installed() -> bool {
        is_there(&program())
    }

    /// Starts it; `None` when the machine does not have it.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub fn start(component: &Path) -> Result<Option<Self>> {
        Self::start_with(component, &[])
    }

    /// The same, with further options.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(component: &Path, options: &[String]) -> Result<Option<Self>> {
        let program = program();
        if !is_there(&program) {
            anyhow::ensure!(
                std::env::var_os(PROGRAM).is_none(),
                "{PROGRAM}: {program:?} does not run"
            );
            return Ok(None);
        }
        let mut command = Command::new(&program);
        command.args(["serve", "-Scli", "--addr", "127.0.0.1:0"]).args(options).arg(component);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("start {program:?}"))?;
        let stderr = process.stderr.take().context("stderr is a pipe")?;
        let mut server = Self { address: String::new(), process };
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix(SERVING).map(str::to_owned));
        let address = address.context("wasmtime serve does not say where it listens")?;
        address.trim_end_matches('/').clone_into(&mut server.address);
        // Its log is read, or it would wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Some(server))
    }

    /// Address and path of the component.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}/", self.address)
    }
}

fn program() -> OsString {
    std::env::var_os(PROGRAM).unwrap_or_else(|| BY_NAME.into())
}

fn is_there(program: &OsString) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

impl Drop for WasmtimeServe {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
