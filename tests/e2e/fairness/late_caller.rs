//! A caller that starts calls and reads no answer.

use std::path::PathBuf;

use cwasi_testbed::scene::{Scene, wait_for};
use tempfile::TempDir;

pub struct LateCaller {
    gate: TempDir,
}

impl LateCaller {
    /// `count` calls of `server`, which answers each with its `size` bytes.
    pub fn start(scene: &Scene, id: &str, count: usize, size: usize) -> Self {
        let gate = tempfile::tempdir().unwrap();
        let shape = [count.to_string(), size.to_string()];
        let run = scene.guest(id, "fan").args(["late", "server", "/gate"]).args(shape);
        let run = run.mount(gate.path(), "/gate", "rw").annotation("cwasi.timeout", "300s");
        scene.start(run);
        Self { gate }
    }

    fn started(&self) -> PathBuf {
        self.gate.path().join("started-0")
    }

    /// Waits until all its calls are out.
    pub fn wait(&self) {
        wait_for("calls to be out", || self.started().exists().then_some(()));
    }
}
