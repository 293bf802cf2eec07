//! A containerd namespace for one test, with its images imported, and a leak check at its end. Scenes of one test
//! process run one after another, so that a leak has an owner.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::containerd::Containerd;
use crate::image::{Rootfs, Start};
use crate::paths::{self, ContainerdVersion};
use crate::run::{Outcome, Run, output};
use crate::{guard, leaks, processes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Image with every test guest as `/<name>.wasm`.
pub const GUESTS: &str = "localhost/guests:test";
pub const BUSYBOX: &str = "localhost/busybox:test";
/// Longest wait for a condition or for leftovers to go.
const WAIT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

static TURN: Mutex<()> = Mutex::new(());
/// The containerds of this test process, in the order of [`ContainerdVersion::ALL`]; each starts when first needed and
/// is taken down by its guard when the process ends.
static SHARED: [OnceLock<Containerd>; 3] = [const { OnceLock::new() }; 3];

#[derive(Debug)]
pub struct Scene {
    /// The containerd of this test process.
    pub containerd: &'static Containerd,
    pub namespace: String,
    /// Leftovers that existed before this scene.
    before: Vec<String>,
    _turn: Option<Turn>,
}

/// Held by the current user of this test process's fixtures.
pub type Turn = MutexGuard<'static, ()>;

/// Waits for the turn.
pub fn take_turn() -> Turn {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
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

/// More settings in the node's configuration; dropped, the fixture's own are back, which other scenes use.
#[derive(Debug)]
pub struct Settings<'a>(&'a Path);

impl Drop for Settings<'_> {
    fn drop(&mut self) {
        write_settings(self.0, "");
    }
}

/// Writes the node's configuration of the fixture in `dir`, with more lines at its end.
fn write_settings(dir: &Path, more: &str) {
    let text = format!("{}\n{more}\n", guard::cwasi_config(dir));
    fs::write(dir.join("cwasi.toml"), text).expect("a fixture's directory is writable");
}

impl Scene {
    /// A stage on containerd 1.6, which is tested in full. `shim` is the runtime's program; `name` becomes
    /// the namespace together with our process id.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn new(shim: &str, name: &str) -> Self {
        Self::open(ContainerdVersion::V1_6, shim, &format!("{name}-{}", std::process::id()))
    }

    /// A stage on any containerd, in a namespace of exactly this name.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn open(version: ContainerdVersion, shim: &str, namespace: &str) -> Self {
        let programs = Path::new(shim).parent().expect("a program lies in a folder");
        let turn = take_turn();
        let containerd = SHARED[version as usize].get_or_init(|| {
            Containerd::start(version, programs).unwrap_or_else(|error| panic!("{error:#}"))
        });
        Self::on(containerd, programs, namespace, Some(turn))
    }

    /// A stage on this containerd; `turn` is kept until its end.
    ///
    /// # Panics
    /// When the guests are missing.
    #[must_use]
    pub fn on(
        containerd: &'static Containerd,
        programs: &Path,
        namespace: &str,
        turn: Option<Turn>,
    ) -> Self {
        let scene = Self {
            containerd,
            namespace: namespace.into(),
            before: leaks::find(containerd.ready(), containerd.guard_pid(), namespace),
            _turn: turn,
        };
        scene.import(&guests_archive(&guests_dir(programs), &containerd.ready().dir));
        scene
    }

    /// Adds lines to the node's configuration, for shims that start from now on.
    ///
    /// # Panics
    /// When the fixture's directory is not writable.
    #[must_use]
    pub fn settings(&self, more: &str) -> Settings<'_> {
        let dir = &self.containerd.ready().dir;
        write_settings(dir, more);
        Settings(dir)
    }

    /// `ctr` with these arguments, to its end.
    ///
    /// # Panics
    /// When it cannot be started or hangs.
    #[must_use]
    pub fn ctr<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Outcome {
        let mut command = self.containerd.ctr(&self.namespace);
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
        let archive = self.containerd.ready().dir.join(format!("{name}.tar"));
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
        let archive = self.containerd.ready().dir.join("busybox.tar");
        if !archive.exists() {
            write_busybox(&archive).unwrap_or_else(|error| panic!("{error:#}"));
        }
        self.import(&archive);
    }

    /// `ctr run` of a guest: container `id`, program `/<guest>.wasm`.
    #[must_use]
    pub fn guest(&self, id: &str, guest: &str) -> Run {
        Run::new(&self.namespace, GUESTS, id).args([format!("/{guest}.wasm")])
    }

    /// `ctr run` of any image.
    #[must_use]
    pub fn image(&self, image: &str, id: &str) -> Run {
        Run::new(&self.namespace, image, id)
    }

    /// Runs it attached to its end.
    ///
    /// # Panics
    /// When `ctr` cannot be started or hangs.
    #[must_use]
    pub fn run(&self, run: Run) -> Outcome {
        run.output(self.containerd).unwrap_or_else(|error| panic!("{error:#}"))
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
        let outcome = run.detach(self.containerd).unwrap_or_else(|error| panic!("{error:#}"));
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

    fn task(&self, id: &str) -> Option<(i32, String)> {
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
        loop {
            let (ready, guard_pid) = (self.containerd.ready(), self.containerd.guard_pid());
            let mut found = leaks::find(ready, guard_pid, &self.namespace);
            found.retain(|line| !self.before.contains(line) && !is_expected(line));
            if found.is_empty() || start.elapsed() > WAIT_MAX {
                return found;
            }
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
            leaks::remove_cgroups(&self.namespace);
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
        leaks::remove_cgroups(&self.namespace);
    }

    /// Kills every sandbox and shim: a failed test may have left them hanging.
    fn kill_everything(&self) {
        for process in processes::descendants(self.containerd.guard_pid()) {
            if process.pid != self.containerd.ready().containerd_pid() {
                // Gone in between is as good.
                let _gone = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
    }

    /// Logs of the containerd and of every group, for a failing test.
    fn print_logs(&self) {
        let ready = self.containerd.ready();
        eprintln!("--- {}\n{}", ready.log().display(), guard::log_tail(&ready.log()));
        for group in
            std::fs::read_dir(ready.cwasi_state().join("g")).into_iter().flatten().flatten()
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

fn guests_archive(guests: &Path, dir: &Path) -> PathBuf {
    let archive = dir.join("guests.tar");
    if !archive.exists() {
        write_guests(guests, &archive).unwrap_or_else(|error| panic!("{error:#}"));
    }
    archive
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
