//! `cwasi gateway` for the cases of HTTP clients.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use cwasi_testbed::scene::Scene;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What the gateway says before its address.
const LISTENING: &str = "cwasi gateway: listening on ";

/// A gateway before the scene's functions.
pub struct Gateway {
    pub address: String,
    process: Child,
    _directory: tempfile::TempDir,
}

impl Gateway {
    /// Starts one.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub fn start(programs: &Path, scene: &Scene) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let config = directory.path().join("node.toml");
        let state = scene.node.state();
        std::fs::write(&config, format!("state_dir = {state:?}\n"))?;
        let mut process = Command::new(programs.join("cwasi"))
            .args(["gateway", "--listen", "127.0.0.1:0", "--namespace", &scene.namespace])
            .arg("--config")
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .context("start the gateway: make bench builds it")?;
        let stderr = process.stderr.take().context("stderr is a pipe")?;
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix(LISTENING).map(str::to_owned));
        let address = address.context("the gateway's address")?;
        // Its log is read, or it would wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { address, process, _directory: directory })
    }
}

impl Gateway {
    /// Most memory that it had so far, in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn peak_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(kib.context("VmHWM of the gateway")?.trim().parse::<u64>()? << 10)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // As a user ends it, so that it leaves no counts behind.
        if let Ok(pid) = i32::try_from(self.process.id()) {
            let _ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _reaped = self.process.wait();
    }
}
