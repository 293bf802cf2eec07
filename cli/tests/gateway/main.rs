//! `cwasi gateway` before real functions on a real containerd.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod asynchronous;
mod bounds;
mod callbacks;
mod calls;
mod client;
mod compromised;
mod faas_cli;
mod heads;
mod origins;
mod receiver;
mod tls;
mod unit;
mod unusual;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use cwasi_testbed::engines::tested_program;
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, unique};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The runtime's program, built with this one.
fn shim() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_cwasi")).with_file_name("containerd-shim-cwasi-v1")
}

fn cwasi() -> Command {
    Command::new(tested_program(env!("CARGO_BIN_EXE_cwasi")))
}

fn scene(name: &str) -> Scene {
    Scene::in_turn(ContainerdVersion::V1_6, shim().to_str().unwrap(), &unique(name))
}

/// A secondary that the gateway may call.
fn exposed(scene: &Scene, id: &str, guest: &str, args: &[&str]) -> Run {
    scene
        .guest(id, guest)
        .args(args.iter().copied())
        .annotation("cwasi.role", "secondary")
        .annotation("cwasi.function", id)
        .annotation("cwasi.http", "gateway")
}

/// A gateway of the scene's node, on a port of its own.
struct Gateway {
    process: Child,
    address: SocketAddr,
    _log: JoinHandle<()>,
    _directory: tempfile::TempDir,
}

impl Gateway {
    fn start(scene: &Scene, arguments: &[&str]) -> Self {
        Self::configured(scene, "", arguments)
    }

    /// With more of its node's configuration.
    fn configured(scene: &Scene, more: &str, arguments: &[&str]) -> Self {
        Self::launch(scene, more, None, arguments)
    }

    /// With a variable of its environment.
    fn with_environment(scene: &Scene, variable: (&str, &Path), arguments: &[&str]) -> Self {
        Self::launch(scene, "", Some(variable), arguments)
    }

    fn launch(
        scene: &Scene,
        more: &str,
        variable: Option<(&str, &Path)>,
        arguments: &[&str],
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("node.toml");
        let state = scene.node.state();
        let cache = directory.path().join("cache");
        let text = format!("state_dir = {state:?}\ncache_dir = {cache:?}\n{more}");
        std::fs::write(&config, text).unwrap();
        let mut process = cwasi()
            .args(["gateway", "--listen", "127.0.0.1:0", "--namespace", &scene.namespace])
            .arg("--config")
            .arg(&config)
            .args(arguments)
            .envs(variable)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut before = String::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {before}")).unwrap();
            if let Some(address) = line.strip_prefix("cwasi gateway: listening on ") {
                break address.parse().unwrap();
            }
            before = line;
        };
        // Its log is shown if the test fails.
        let log = std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| println!("{line}"))
        });
        Self { process, address, _log: log, _directory: directory }
    }

    /// Number of clients' connections that it has not ended.
    fn connections(&self) -> usize {
        let here = format!(":{:04X}", self.address.port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        // Established, or ended by the client alone.
        rows.filter(|row| row[1].ends_with(&here) && ["01", "08"].contains(&row[3])).count()
    }

    /// Ends it without notice.
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Ends it as an operator does.
    fn stop(mut self) {
        let pid = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Has ended already, unless the test failed.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
