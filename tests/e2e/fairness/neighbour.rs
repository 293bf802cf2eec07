//! The other tenant: a namespace of its own on the same node, whose calls have to go on.

use std::sync::atomic::{AtomicU32, Ordering};

use cwasi_testbed::run::{Outcome, Run, Running};
use cwasi_testbed::scene::Scene;

/// Bytes of a payload that no frame holds.
const LARGE: usize = 200_000;

/// A function of another namespace, and its callers.
pub struct Neighbour {
    scene: Scene,
    callers: AtomicU32,
}

impl Neighbour {
    /// Starts the neighbour's function `svc` on the containerd of `flooded`, before the flood.
    pub fn beside(flooded: &Scene) -> Self {
        Self::with(flooded, |run| run)
    }

    /// The same with more annotations of its function.
    pub fn with(flooded: &Scene, more: impl FnOnce(Run) -> Run) -> Self {
        let namespace = format!("{}-neighbour", flooded.namespace);
        let scene = flooded.beside(crate::SHIM, &namespace);
        let run = scene.guest("svc", "server");
        let run = run.annotation("cwasi.role", "secondary").annotation("cwasi.function", "svc");
        scene.start(more(run));
        Self { scene, callers: AtomicU32::new(0) }
    }

    /// A new primary starts, makes `count` calls, and ends. All of them are answered, or the test fails.
    pub fn calls(&self, count: u32) {
        let outcome = self.run(count).output(&self.scene.containerd).unwrap();
        Self::assert_answered(count, outcome);
    }

    /// The same in the background; [`Self::assert_answered`] takes its outcome.
    pub fn calls_in_background(&self, count: u32) -> Running {
        self.run(count).spawn(&self.scene.containerd).unwrap()
    }

    /// The same with payloads and answers that travel as descriptors.
    pub fn large_calls(&self, count: u32) {
        let (count, size) = (count.to_string(), LARGE.to_string());
        let run = self.scene.guest(&self.id(), "caller");
        let outcome = self.scene.run(run.args(["svc", &count, &size, "echo"])).success();
        assert_eq!(outcome.text(), format!("{count} calls with {size} bytes: as expected\n"));
    }

    /// Leaves a message for its function, and it is kept.
    pub fn emits(&self) {
        let run = self.scene.guest(&self.id(), "probe").args(["emit", "svc", "hello"]);
        assert_eq!(self.scene.run(run).success().text(), "kept\n");
    }

    pub fn namespace(&self) -> &str {
        &self.scene.namespace
    }

    fn run(&self, count: u32) -> Run {
        let count = count.to_string();
        self.scene.guest(&self.id(), "probe").args(["repeat", "svc", &count, "hello"])
    }

    fn id(&self) -> String {
        format!("caller-{}", self.callers.fetch_add(1, Ordering::Relaxed))
    }

    /// Each of these calls was answered.
    pub fn assert_answered(count: u32, outcome: Outcome) {
        assert_eq!(outcome.success().text(), format!("ok {count}\n"));
    }
}
