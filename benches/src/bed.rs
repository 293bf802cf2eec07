//! Real containers for our side: one private containerd, callees that wait, drivers that take orders.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cwasi_testbed::scene::Scene;

use crate::placement::{Placement, pin_function};
use crate::side::Side;

/// The runtime's program, beside ours.
const SHIM: &str = "containerd-shim-cwasi-v1";
/// Workflow of all functions here: they share a shim daemon, as functions of one workflow do.
pub const WORKFLOW: &str = "bench";
/// Guest that takes orders.
const DRIVER: &str = "bench-driver";

/// Where our programs are.
///
/// # Errors
/// When the runtime was not built beside this program.
pub fn shim(programs: &Path) -> Result<PathBuf> {
    let shim = programs.join(SHIM);
    anyhow::ensure!(
        shim.exists(),
        "{} is missing: build the runtime with this program's profile (make bench does)",
        shim.display()
    );
    Ok(shim)
}

/// A containerd namespace for one group of cases; removed, and searched for leftovers, when it is dropped.
pub struct Bed {
    /// The test bed's stage.
    pub scene: Scene,
    drivers: Cell<usize>,
}

impl Bed {
    /// A namespace of its own, with all guests.
    ///
    /// # Errors
    /// When the runtime is missing.
    pub fn open(programs: &Path, name: &str) -> Result<Self> {
        let shim = shim(programs)?;
        let shim = shim.to_str().context("paths are UTF-8")?;
        Ok(Self::on(Scene::new(shim, name)))
    }

    /// On a stage that is there.
    #[must_use]
    pub const fn on(scene: Scene) -> Self {
        Self { scene, drivers: Cell::new(0) }
    }

    /// Starts the guest as a secondary of this name, with these annotations.
    pub fn callee(&self, name: &str, guest: &str, annotations: &[(&str, &str)]) {
        let mut run = self
            .scene
            .guest(name, guest)
            .annotation("cwasi.role", "secondary")
            .annotation("cwasi.function", name)
            .annotation("cwasi.workflow", WORKFLOW);
        for (key, value) in annotations {
            run = run.annotation(key, value);
        }
        self.scene.start(run);
    }

    /// Starts a driver with these annotations.
    ///
    /// # Errors
    /// When it does not start.
    pub fn driver(&self, annotations: &[(&str, &str)]) -> Result<Driver> {
        let number = self.drivers.get();
        self.drivers.set(number + 1);
        let id = format!("driver-{number}");
        let mut run = self.scene.guest(&id, DRIVER).annotation("cwasi.workflow", WORKFLOW);
        for (key, value) in annotations {
            run = run.annotation(key, value);
        }
        let side = Side::start("ours", run.command(self.scene.containerd, false))?;
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

/// A running driver.
#[derive(Debug)]
pub struct Driver {
    /// Takes orders.
    pub side: Side,
    /// Its container.
    pub id: String,
}
