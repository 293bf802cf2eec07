//! One containerd with the callees of the fault suite, and what an operator does with it: every command is repeated
//! while containerd is away, within a bound.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use cwasi_testbed::paths::{ContainerdVersion, checkout};
use cwasi_testbed::port::free_port;
use cwasi_testbed::run::{Outcome, Run, output};
use cwasi_testbed::scene::{Scene, wait_for};

use crate::SHIM;

/// Workflow of some callees and callers, whose functions share a shim.
const WORKFLOW: &str = "w";

/// The callee with a port.
const HTTP: &str = "web";

/// A container that is to run all the time.
#[derive(Debug)]
pub struct Callee {
    pub id: &'static str,
    function: &'static str,
    in_workflow: bool,
    annotations: &'static [(&'static str, &'static str)],
}

/// Two instances of a function in the workflow, one of them with elastic workers, one of another function with a shim of
/// its own, and one with elastic workers that HTTP clients call at its port.
pub const CALLEES: [Callee; 4] = [
    Callee {
        id: "a1",
        function: "a",
        in_workflow: true,
        annotations: &[("cwasi.concurrency", "2"), ("cwasi.queue", "16")],
    },
    Callee { id: "a2", function: "a", in_workflow: true, annotations: &[("cwasi.queue", "16")] },
    Callee {
        id: "b",
        function: "b",
        in_workflow: false,
        annotations: &[("cwasi.isolation", "instance"), ("cwasi.queue", "8")],
    },
    Callee { id: HTTP, function: HTTP, in_workflow: false, annotations: &[] },
];

pub struct Fixture {
    pub scene: Scene,
    notes: tempfile::TempDir,
    /// Callers that were killed: names of their accounts, which are their ids.
    killed: Mutex<BTreeSet<String>>,
    /// How often a shim was killed. A caller that came into its group a moment before is killed with it, unseen.
    shim_kills: AtomicU64,
    http_port: u16,
}

/// A task as `ctr task ls` has it.
#[derive(Clone, Debug)]
pub struct Task {
    pub id: String,
    pub pid: i32,
    /// It has not ended; it may be paused.
    pub is_running: bool,
}

impl Fixture {
    /// With the callees running.
    pub fn open(version: ContainerdVersion, seed: u64) -> Self {
        let scene = Scene::alone(version, SHIM, &format!("soak-{seed}"));
        let notes = tempfile::Builder::new().prefix("cwasi-soak-").tempdir().unwrap();
        std::fs::create_dir(notes.path().join("executed")).unwrap();
        let http_port = free_port(Ipv4Addr::LOCALHOST.into());
        let (killed, shim_kills) = (Mutex::default(), AtomicU64::new(0));
        let fixture = Self { scene, notes, killed, shim_kills, http_port };
        for callee in &CALLEES {
            fixture.run_again(callee);
        }
        fixture.compile_caller();
        fixture
    }

    /// On a busy machine, killed shims and containerds would not let its compilation come to an end later.
    fn compile_caller(&self) {
        wait_for("the callers' module to be compiled", || {
            // Without arguments it ends at once.
            let started = self.started(self.guest("compiled", "soak-caller", false));
            self.remove("compiled");
            started.map_err(|error| eprintln!("compiled: {error}")).ok()
        });
    }

    /// The port of the callee for HTTP clients.
    pub const fn http_port(&self) -> u16 {
        self.http_port
    }

    /// Where callers and callees leave their notes.
    pub fn notes(&self) -> &Path {
        self.notes.path()
    }

    pub fn killed(&self) -> BTreeSet<String> {
        self.killed.lock().unwrap().clone()
    }

    /// Says that this container is about to be killed.
    pub fn note_killed(&self, id: &str) {
        self.killed.lock().unwrap().insert(id.to_owned());
    }

    /// How often a shim was killed or is about to be.
    pub const fn shim_kills(&self) -> &AtomicU64 {
        &self.shim_kills
    }

    /// `ctr run --detach` of a guest with the notes mounted.
    pub fn guest(&self, id: &str, guest: &str, in_workflow: bool) -> Run {
        let run = self.scene.guest(id, guest).mount(self.notes(), "/soak", "rw");
        if in_workflow { run.annotation("cwasi.workflow", WORKFLOW) } else { run }
    }

    /// Runs `run` detached; false when it did not start, for example because containerd went away.
    pub fn started(&self, run: Run) -> Result<(), String> {
        let outcome = run.detach(&self.scene.containerd).map_err(|error| format!("{error:#}"))?;
        if outcome.code == 0 { Ok(()) } else { Err(outcome.stderr) }
    }

    /// Deletes what is there of a callee, and starts it.
    pub fn run_again(&self, callee: &Callee) {
        wait_for(&format!("{} to start", callee.id), || {
            self.remove(callee.id);
            let mut run = self.guest(callee.id, "soak_callee", callee.in_workflow);
            run = run.annotation("cwasi.role", "secondary");
            run = run.annotation("cwasi.function", callee.function);
            for (key, value) in callee.annotations {
                run = run.annotation(key, value);
            }
            if callee.id == HTTP {
                run = run.annotation("cwasi.http", &self.http_port.to_string()).flag("--net-host");
            }
            self.started(run).map_err(|error| eprintln!("{}: {error}", callee.id)).ok()
        });
    }

    /// Ends and deletes a container, its task first.
    pub fn remove(&self, id: &str) {
        wait_for(&format!("{id} to be removed"), || {
            let _killed = self.ctr(&["task", "kill", "--signal", "KILL", id]);
            let _deleted = self.ctr(&["task", "rm", id]);
            let _removed = self.ctr(&["container", "rm", id]);
            let list = self.ctr(&["container", "ls", "--quiet"]);
            if list.code != 0 || list.text().lines().any(|line| line == id) {
                return None;
            }
            if !self.tasks().iter().any(|task| task.id == id) {
                return Some(());
            }
            // containerd was killed while the task was created, and `ctr run` has deleted the container: with any
            // runtime. `ctr` finds a task by its container only.
            let rootfs = self.notes().to_str().unwrap();
            let _created = self.ctr(&["container", "create", "--rootfs", rootfs, id]);
            None
        });
    }

    /// Every task that containerd knows.
    pub fn tasks(&self) -> Vec<Task> {
        let list = wait_for("containerd to list its tasks", || {
            let list = self.ctr(&["task", "ls"]);
            (list.code == 0).then(|| list.text())
        });
        let task = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [id, pid, status] = fields.as_slice() else { return None };
            let is_running = ["RUNNING", "PAUSING", "PAUSED"].contains(status);
            Some(Task { id: (*id).to_owned(), pid: pid.parse().ok()?, is_running })
        };
        list.lines().skip(1).filter_map(task).collect()
    }

    fn ctr(&self, args: &[&str]) -> Outcome {
        let mut command = self.scene.ctr_command();
        command.args(args);
        output(command).unwrap()
    }

    /// Writes a table to `target/soak`.
    pub fn keep(&self, name: &str, table: &str) {
        let dir = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| checkout().join("target"), PathBuf::from)
            .join("soak");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(name), table).unwrap();
    }

    /// Deletes everything, so that what is left behind is a leak.
    pub fn clear(self) {
        for callee in &CALLEES {
            self.remove(callee.id);
        }
        for task in self.tasks() {
            self.remove(&task.id);
        }
        // `ctr` removes its own FIFOs with a task, not when the task went with its shim: with any runtime.
        self.scene.node.remove_fifos();
        // containerd hides a bundle before it removes it. Killed in between, 1.6 never looks at it again: with any
        // runtime. A mount in it would be ours, and an error here.
        let bundles = self.scene.containerd.ready().bundles(&self.scene.namespace);
        let hidden = std::fs::read_dir(bundles).into_iter().flatten();
        for bundle in hidden.flatten() {
            if bundle.file_name().to_string_lossy().starts_with('.') {
                std::fs::remove_dir_all(bundle.path()).unwrap();
            }
        }
    }
}
