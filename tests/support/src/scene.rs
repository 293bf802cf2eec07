//! A containerd namespace for one test, with its images imported, and a leak check at its end.
//!
//! Scenes of one test process share a containerd of each version and run at the same time: each has a containerd namespace
//! and a node's folder of its own, and its leak check and its end look at nothing else. A test that stops containerd,
//! fills its disk or damages its content has a containerd of its own ([`Scene::alone`]).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::containerd::Containerd;
use crate::guard;
use crate::image::{Rootfs, Start};
use crate::leaks::{self, Leak, Places};
use crate::node_dir::NodeDir;
use crate::paths::{self, ContainerdVersion};
use crate::processes::Process;
use crate::run::{Outcome, Run, output};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Image with every test guest as `/<name>.wasm`.
pub const GUESTS: &str = "localhost/guests:test";
pub const BUSYBOX: &str = "localhost/busybox:test";
/// Longest wait for a condition or for leftovers to go.
const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// The containerds of this test process, in the order of [`ContainerdVersion::ALL`]; each starts when first needed and
/// is taken down by its guard when the process ends.
static SHARED: [OnceLock<Arc<Containerd>>; 3] = [const { OnceLock::new() }; 3];
/// Of [`Scene::in_turn`].
static TURN: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Scene {
    pub containerd: Arc<Containerd>,
    pub namespace: String,
    /// Folder with the configuration and the state of this scene's shims.
    pub node: NodeDir,
    /// The folder goes with this scene.
    owns_node: bool,
    /// Other scenes use the containerd at the same time.
    is_shared: bool,
    /// Leftovers that existed before this scene.
    before: BTreeSet<String>,
    turn: Option<MutexGuard<'static, ()>>,
}

/// Polls until `condition` gives a value.
///
/// # Panics
/// When the bound passes; `what` names the awaited event.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < WAIT_MAX, "waited {WAIT_MAX:?} for {what}");
        std::thread::sleep(POLL);
    }
}

/// Folder of the guests that belong to the programs in `programs` (`target/debug`).
#[must_use]
pub fn guests_dir(programs: &Path) -> PathBuf {
    programs.parent().unwrap_or(programs).join("guests/wasm32-wasip1/release")
}

/// A name that no other process and no other call has: for a namespace, or a cgroup of the machine.
#[must_use]
pub fn unique(name: &str) -> String {
    format!("{name}-{}-{}", std::process::id(), next_number())
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The folder of the runtime's program.
fn programs_of(shim: &str) -> &Path {
    Path::new(shim).parent().expect("a program lies in a folder")
}

fn shared(version: ContainerdVersion, programs: &Path) -> Arc<Containerd> {
    let start = || {
        let started = Containerd::start(version, programs);
        Arc::new(started.unwrap_or_else(|error| panic!("{error:#}")))
    };
    Arc::clone(SHARED[version as usize].get_or_init(start))
}

impl Scene {
    /// A stage on containerd 1.6, which is tested in full. `shim` is the runtime's program; the namespace begins with
    /// `name`.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn new(shim: &str, name: &str) -> Self {
        Self::open(ContainerdVersion::V1_6, shim, &unique(name))
    }

    /// A stage on any containerd, in a namespace of exactly this name. Other scenes use the containerd, too.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn open(version: ContainerdVersion, shim: &str, namespace: &str) -> Self {
        let programs = programs_of(shim);
        let containerd = shared(version, programs);
        let folder = containerd.ready().scenes().join(next_number().to_string());
        let node = NodeDir::create(folder).unwrap_or_else(|error| panic!("{error:#}"));
        let mut scene = Self::begin(containerd, node, namespace, true);
        scene.owns_node = true;
        scene.with_guests(programs)
    }

    /// A stage on a containerd of its own, which ends with it.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn alone(version: ContainerdVersion, shim: &str, name: &str) -> Self {
        let programs = programs_of(shim);
        let started = Containerd::start(version, programs);
        let containerd = Arc::new(started.unwrap_or_else(|error| panic!("{error:#}")));
        Self::on(containerd, programs, &unique(name))
    }

    /// A stage on this containerd, whose own node it uses: no other scene may use that at the same time.
    ///
    /// # Panics
    /// When the guests are missing.
    #[must_use]
    pub fn on(containerd: Arc<Containerd>, programs: &Path, namespace: &str) -> Self {
        let node = containerd.ready().node();
        Self::begin(containerd, node, namespace, false).with_guests(programs)
    }

    /// A stage on the node of this process's containerd, for programs that find it by `CWASI_CONFIG` and not by options
    /// of the runtime. Such scenes take turns.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn in_turn(version: ContainerdVersion, shim: &str, namespace: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = programs_of(shim);
        let containerd = shared(version, programs);
        let node = containerd.ready().node();
        let mut scene = Self::begin(containerd, node, namespace, false);
        scene.turn = Some(turn);
        scene.with_guests(programs)
    }

    /// Another namespace on the same node.
    ///
    /// # Panics
    /// When the guests are missing.
    #[must_use]
    pub fn beside(&self, shim: &str, namespace: &str) -> Self {
        let (containerd, node) = (Arc::clone(&self.containerd), self.node.clone());
        Self::begin(containerd, node, namespace, true).with_guests(programs_of(shim))
    }

    fn begin(containerd: Arc<Containerd>, node: NodeDir, namespace: &str, is_shared: bool) -> Self {
        let mut scene = Self {
            containerd,
            namespace: namespace.to_owned(),
            node,
            owns_node: false,
            is_shared,
            before: BTreeSet::new(),
            turn: None,
        };
        scene.before = names(&scene.places().search());
        scene
    }

    fn with_guests(self, programs: &Path) -> Self {
        self.import(&guests_archive(&guests_dir(programs), &self.containerd.ready().dir));
        self
    }

    /// Where its containers may leave something.
    fn places(&self) -> Places<'_> {
        Places {
            ready: self.containerd.ready(),
            guard_pid: self.containerd.guard_pid(),
            namespace: &self.namespace,
            node: &self.node,
            is_shared: self.is_shared,
        }
    }

    /// Adds lines to the node's configuration, for shims that start from now on. They replace those that were added
    /// before.
    ///
    /// # Panics
    /// When the node's folder is not writable.
    pub fn settings(&self, more: &str) {
        self.node.configure(more);
    }

    /// Processes of its shims and containers.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let all = self.places().processes().into_iter();
        all.filter_map(|(process, is_own)| is_own.then_some(process)).collect()
    }

    /// `ctr` in the scene's namespace.
    #[must_use]
    pub fn ctr_command(&self) -> Command {
        self.containerd.ctr_for(&self.namespace, &self.node)
    }

    /// `ctr` with these arguments, to its end.
    ///
    /// # Panics
    /// When it cannot be started or hangs.
    #[must_use]
    pub fn ctr<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Outcome {
        let mut command = self.ctr_command();
        command.args(args);
        output(command).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Imports an image archive.
    ///
    /// # Panics
    /// When `ctr` refuses it.
    pub fn import(&self, archive: &Path) {
        let archive = archive.to_str().expect("our paths are UTF-8");
        let _imported = self.ctr(["images", "import", archive]).success();
    }

    /// Imports an image with one file, `/m.wasm`; returns the image's name.
    ///
    /// # Panics
    /// When `ctr` refuses it.
    #[must_use]
    pub fn import_module(&self, name: &str, module: &[u8]) -> String {
        let reference = format!("localhost/{name}:test");
        let archive = self.node.path().join(format!("{name}.tar"));
        let mut rootfs = Rootfs::default();
        let start = Start { entrypoint: vec!["/m.wasm".into()], ..Start::default() };
        rootfs
            .bytes(module, "/m.wasm")
            .and_then(|()| rootfs.write(&reference, &start, &archive))
            .unwrap_or_else(|error| panic!("{error:#}"));
        self.import(&archive);
        reference
    }

    /// Imports busybox as [`BUSYBOX`].
    ///
    /// # Panics
    /// When set-up has not unpacked it.
    pub fn import_busybox(&self) {
        let archive = archive_in(&self.containerd.ready().dir, "busybox", write_busybox);
        self.import(&archive);
    }

    /// `ctr run` of a guest: container `id`, program `/<guest>.wasm`.
    #[must_use]
    pub fn guest(&self, id: &str, guest: &str) -> Run {
        self.image(GUESTS, id).args([format!("/{guest}.wasm")])
    }

    /// `ctr run` of any image.
    #[must_use]
    pub fn image(&self, image: &str, id: &str) -> Run {
        let run = Run::new(&self.namespace, image, id);
        if self.node.path() == self.containerd.ready().dir { run } else { run.node(&self.node) }
    }

    /// Runs it attached to its end.
    ///
    /// # Panics
    /// When `ctr` cannot be started or hangs.
    #[must_use]
    pub fn run(&self, run: Run) -> Outcome {
        run.output(&self.containerd).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts a guest as secondary `name` (its container id as well) and returns once it is RUNNING.
    ///
    /// # Panics
    /// When it does not start.
    pub fn secondary(&self, name: &str, guest: &str) {
        self.start(
            self.guest(name, guest)
                .annotation("cwasi.role", "secondary")
                .annotation("cwasi.function", name),
        );
    }

    /// Starts it detached.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(&self, run: Run) {
        let outcome = run.detach(&self.containerd).unwrap_or_else(|error| panic!("{error:#}"));
        let _started = outcome.success();
    }

    /// Task status in capitals (`RUNNING`, `STOPPED`), `None` when there is no such task.
    #[must_use]
    pub fn status(&self, id: &str) -> Option<String> {
        self.task(id).map(|(_, status)| status)
    }

    /// Process id of a task.
    ///
    /// # Panics
    /// When there is no such task.
    #[must_use]
    pub fn pid(&self, id: &str) -> i32 {
        self.task(id).unwrap_or_else(|| panic!("no task {id}")).0
    }

    /// Process id and status of a task; `None` when there is no such task.
    #[must_use]
    pub fn task(&self, id: &str) -> Option<(i32, String)> {
        let list = self.ctr(["task", "ls"]).success().text();
        list.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            (fields.next()? == id).then_some(())?;
            Some((fields.next()?.parse().ok()?, fields.next()?.to_owned()))
        })
    }

    /// Signals a task.
    ///
    /// # Panics
    /// When `ctr` refuses.
    pub fn kill(&self, id: &str, signal: &str) {
        let _sent = self.ctr(["task", "kill", "--signal", signal, id]).success();
    }

    /// Waits until a task is STOPPED.
    pub fn wait_stopped(&self, id: &str) {
        wait_for(&format!("{id} to stop"), || {
            (self.status(id).as_deref() == Some("STOPPED")).then_some(())
        });
    }

    /// Kills, deletes and removes a container; exit code of its task.
    ///
    /// # Panics
    /// When something of it cannot be removed.
    pub fn remove(&self, id: &str) -> i32 {
        let mut code = 0;
        if let Some(status) = self.status(id) {
            if status != "STOPPED" {
                self.kill(id, "KILL");
                self.wait_stopped(id);
            }
            code = self.delete_task(id);
        }
        let _removed = self.ctr(["container", "rm", id]).success();
        code
    }

    /// Deletes a stopped task; its exit code.
    ///
    /// # Panics
    /// When `ctr` refuses.
    pub fn delete_task(&self, id: &str) -> i32 {
        let outcome = self.ctr(["task", "rm", id]);
        // 1.6 and 1.7 say the code in a warning, 2.x exits with it.
        let said = outcome
            .stderr
            .split("exit code ")
            .nth(1)
            .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
        match said.and_then(|digits| digits.parse().ok()) {
            Some(code) => code,
            None => {
                assert!(self.status(id).is_none(), "ctr task rm {id}: {}", outcome.stderr);
                outcome.code
            }
        }
    }

    /// Everything that the containers of this scene left, once that no longer changes for the better.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.leftovers_but(|_| false)
    }

    /// The same without what `is_expected`.
    pub fn leftovers_but(&self, is_expected: impl Fn(&str) -> bool) -> Vec<String> {
        let start = Instant::now();
        let mut suspects = None;
        loop {
            let mut found = self.places().search();
            found.retain(|leak| {
                !self.before.contains(&leak.name) && !is_expected(&leak.to_string())
            });
            // What names no scene may be this one's only if it is there all the time: others make such things and
            // remove them.
            if let Some(suspects) = &suspects {
                let is_suspect = |leak: &Leak| BTreeSet::contains(suspects, &leak.name);
                found.retain(|leak| leak.is_own || is_suspect(leak));
            }
            if found.is_empty() || start.elapsed() > WAIT_MAX {
                return found.iter().map(Leak::to_string).collect();
            }
            suspects = Some(names(&found));
            std::thread::sleep(POLL);
        }
    }

    fn containers(&self) -> Vec<String> {
        let list = self.ctr(["container", "ls", "--quiet"]).text();
        list.split_whitespace().map(str::to_owned).collect()
    }

    /// Removes every container.
    ///
    /// # Panics
    /// When one cannot be removed.
    pub fn remove_containers(&self) {
        for id in self.containers() {
            self.remove(&id);
        }
    }

    fn tear_down(&self) {
        self.remove_containers();
        let left = self.leftovers();
        if left.is_empty() {
            self.remove_folders();
            return;
        }
        self.print_logs();
        self.clear_away();
        panic!("{} left behind:\n  {}", self.namespace, left.join("\n  "));
    }

    /// After a failed test: whatever it takes, and no second failure that hides the first.
    fn clear_away(&self) {
        self.kill_everything();
        for id in self.containers() {
            let _task = self.ctr(["task", "rm", "--force", &id]);
            let _container = self.ctr(["container", "rm", &id]);
        }
        self.remove_folders();
    }

    fn remove_folders(&self) {
        leaks::remove_cgroups(&self.namespace);
        if self.owns_node {
            // The guard removes what stays.
            let _gone = std::fs::remove_dir_all(self.node.path());
        }
    }

    /// Kills every sandbox and shim of this scene: a failed test may have left them hanging.
    fn kill_everything(&self) {
        let start = Instant::now();
        loop {
            let mut left = self.processes();
            left.retain(|process| process.state != 'Z');
            if left.is_empty() || start.elapsed() > WAIT_MAX {
                return;
            }
            for process in left {
                // Gone in between is as good.
                let _gone = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Logs of the containerd and of every group, for a failing test.
    fn print_logs(&self) {
        let ready = self.containerd.ready();
        eprintln!("--- {}\n{}", ready.log().display(), guard::log_tail(&ready.log()));
        for group in std::fs::read_dir(self.node.state().join("g")).into_iter().flatten().flatten()
        {
            let log = group.path().join("daemon.log");
            eprintln!("--- {}\n{}", log.display(), guard::log_tail(&log));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
            self.clear_away();
        } else {
            self.tear_down();
        }
    }
}

fn names(leaks: &[Leak]) -> BTreeSet<String> {
    leaks.iter().map(|leak| leak.name.clone()).collect()
}

/// The archive `name` in `dir`, written if it is missing. Several scenes may write it: the last one's stays, and each
/// reads a whole one.
fn archive_in(dir: &Path, name: &str, write: impl FnOnce(&Path) -> anyhow::Result<()>) -> PathBuf {
    let archive = dir.join(format!("{name}.tar"));
    if !archive.exists() {
        let new = dir.join(format!("{}.tar", unique(name)));
        write(&new).unwrap_or_else(|error| panic!("{error:#}"));
        std::fs::rename(new, &archive)
            .unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
    }
    archive
}

fn guests_archive(guests: &Path, dir: &Path) -> PathBuf {
    archive_in(dir, "guests", |archive| write_guests(guests, archive))
}

fn write_guests(guests: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut rootfs = Rootfs::default();
    let mut names: Vec<PathBuf> = std::fs::read_dir(guests)
        .map_err(|error| anyhow::anyhow!("{}: {error}: make guests builds them", guests.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wasm"))
        .collect();
    names.sort();
    for path in names {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        rootfs.file(&path, &name)?;
    }
    rootfs.write(GUESTS, &Start::default(), archive)
}

fn write_busybox(archive: &Path) -> anyhow::Result<()> {
    let mut rootfs = Rootfs::default();
    rootfs.file(&paths::busybox()?, "bin/busybox")?;
    for name in ["sh", "echo", "cat", "sleep", "true", "false", "env", "id", "ls", "kill"] {
        rootfs.link("busybox", &format!("bin/{name}"))?;
    }
    let start = Start { cmd: vec!["sh".into()], ..Start::default() };
    rootfs.write(BUSYBOX, &start, archive)
}
