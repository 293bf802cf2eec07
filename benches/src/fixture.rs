//! Real containers for our side: one private containerd, waiting callees, drivers that take jobs.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::redis::{Redis, RedisVersion, Setup};
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, guests_dir, unique};

use crate::placement::{Placement, pin_function};
use crate::side::Side;

/// The runtime's program, beside ours.
const SHIM: &str = "containerd-shim-cwasi-v1";
/// Workflow of all functions here: they share a shim daemon, as functions of one workflow do.
pub const WORKFLOW: &str = "bench";
/// Guest that takes jobs.
const DRIVER: &str = "bench-driver";
/// Variable with one more annotation for every callee, `key=value`: shows what the annotation costs.
const CALLEE_ANNOTATION: &str = "CWASI_BENCH_CALLEE";
/// Callee that reads nothing of its payload, and its guest.
pub const TOUCH_NONE: (&str, &str) = ("touch-none", "bench_touch_none");
/// Callee that reads all of its payload, and its guest.
pub const TOUCH_ALL: (&str, &str) = ("touch-all", "bench_touch_all");

/// Name of the runtime's program in `programs`.
///
/// # Errors
/// When the runtime was not built there.
pub fn shim(programs: &Path) -> Result<String> {
    let shim = programs.join(SHIM);
    anyhow::ensure!(
        shim.exists(),
        "{} is missing: build the runtime with this program's profile (make bench does)",
        shim.display()
    );
    Ok(shim.to_str().context("paths are UTF-8")?.to_owned())
}

/// A containerd namespace for one group of cases, with all guests; removed, and searched for leftovers, when it is
/// dropped.
///
/// # Errors
/// When the runtime is missing.
pub fn stage(programs: &Path, name: &str) -> Result<Scene> {
    Ok(Scene::in_turn(ContainerdVersion::V1_6, &shim(programs)?, &unique(name)))
}

/// Bytes of a guest.
///
/// # Errors
/// When it was not built.
pub fn guest(programs: &Path, name: &str) -> Result<Vec<u8>> {
    let path: PathBuf = guests_dir(programs).join(format!("{name}.wasm"));
    fs::read(&path).with_context(|| format!("{}: make guests builds it", path.display()))
}

/// A server that takes messages of any length: its default limits cut off subscribers of large ones.
///
/// # Panics
/// When set-up has not unpacked it.
#[must_use]
pub fn unlimited_redis() -> Redis {
    let args = ["--client-output-buffer-limit", "pubsub 0 0 0"].map(str::to_owned).to_vec();
    Redis::start(Setup { args, ..Setup::from(RedisVersion::Redis7) })
}

/// Containers on one stage.
pub struct Fixture<'a> {
    /// The test bed's stage.
    pub scene: &'a Scene,
    drivers: Cell<usize>,
}

impl<'a> Fixture<'a> {
    /// On a stage that is there.
    #[must_use]
    pub const fn on(scene: &'a Scene) -> Self {
        Self { scene, drivers: Cell::new(0) }
    }

    /// Starts a secondary: name and guest, with these annotations.
    pub fn callee(&self, (name, guest): (&str, &str), annotations: &[(&str, &str)]) {
        let run = self.scene.guest(name, guest);
        let mut run = run
            .annotation("cwasi.role", "secondary")
            .annotation("cwasi.function", name)
            .annotation("cwasi.workflow", WORKFLOW);
        let more = std::env::var(CALLEE_ANNOTATION).unwrap_or_default();
        for (key, value) in annotations.iter().copied().chain(more.split_once('=')) {
            run = run.annotation(key, value);
        }
        self.scene.start(run);
    }

    /// Starts a driver with these annotations.
    ///
    /// # Errors
    /// When it does not start.
    pub fn driver(&self, annotations: &[(&str, &str)]) -> Result<Driver> {
        self.driver_of(annotations, |id| self.scene.guest(id, DRIVER))
    }

    /// As [`Self::driver`], of a container that takes jobs; `run` has its id.
    ///
    /// # Errors
    /// When it does not start.
    pub fn driver_of(
        &self,
        annotations: &[(&str, &str)],
        run: impl FnOnce(&str) -> Run,
    ) -> Result<Driver> {
        let number = self.drivers.get();
        self.drivers.set(number + 1);
        let id = format!("driver-{number}");
        let mut run = run(&id).annotation("cwasi.workflow", WORKFLOW);
        for (key, value) in annotations {
            run = run.annotation(key, value);
        }
        let side = Side::start("ours", run.command(&self.scene.containerd, false))?;
        Ok(Driver { side, id })
    }

    /// Puts a driver and callees where a case wants them.
    ///
    /// # Errors
    /// When one of them is gone.
    pub fn place(&self, driver: &Driver, callees: &[&str], placement: Placement) -> Result<()> {
        pin_function(self.scene.pid(&driver.id), placement.caller())?;
        for callee in callees {
            pin_function(self.scene.pid(callee), placement.callee())?;
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Driver {
    pub side: Side,
    pub id: String,
}
