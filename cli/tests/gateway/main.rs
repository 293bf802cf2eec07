//! `cwasi gateway` before real functions on a real containerd.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod bounds;
mod calls;
mod client;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cwasi_testbed::run::Run;
use cwasi_testbed::scene::Scene;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn scene(name: &str) -> Scene {
    let programs = Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap();
    let shim = programs.join("containerd-shim-cwasi-v1");
    Scene::new(shim.to_str().unwrap(), name)
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
    _directory: tempfile::TempDir,
}

impl Gateway {
    fn start(scene: &Scene, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("node.toml");
        let state = scene.containerd.ready().cwasi_state();
        std::fs::write(&config, format!("state_dir = {state:?}\n")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_cwasi"))
            .args(["gateway", "--listen", "127.0.0.1:0", "--namespace", &scene.namespace])
            .arg("--config")
            .arg(&config)
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("cwasi gateway: listening on ");
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        Self { process, address, _directory: directory }
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
