//! An ordinary user, for `cwasi run --local`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cwasi_config::{DEFAULT_ENGINE, Engine};
use cwasi_testbed::engines;
use cwasi_testbed::scene::{guests_dir, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use super::scene::workflow_text;
use super::stderr;

/// Debian's `nobody`.
const USER: u32 = 65534;
/// The command and its daemon, which start the engines' programs.
const PROGRAMS: [&str; 2] = ["cwasi", "cwasi-shim"];

/// A user's home, with the programs and files of the test in it: the checkout may be out of the user's reach.
pub struct Home(tempfile::TempDir);

impl Home {
    pub fn new() -> Self {
        let home = Self(
            tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap(),
        );
        for folder in ["bin", "run", "data"] {
            fs::create_dir(home.path(folder)).unwrap();
        }
        let needed = PROGRAMS.into_iter().chain(DEFAULT_ENGINE.programs());
        let others = Engine::ALL.into_iter().filter(|engine| *engine != DEFAULT_ENGINE);
        let others = others.flat_map(Engine::programs).filter(|it| engines::program(it).exists());
        for program in needed.chain(others) {
            link(&engines::program(program), &home.path("bin").join(program));
        }
        if geteuid().is_root() {
            for folder in ["", "run", "data"] {
                chown(home.path(folder), Some(USER), Some(USER)).unwrap();
            }
        }
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Path of a guest's module.
    pub fn guest(&self, name: &str) -> String {
        let built = Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap();
        let (file, here) = (format!("{name}.wasm"), self.path(&format!("{name}.wasm")));
        if !here.exists() {
            fs::copy(guests_dir(built).join(file), &here).unwrap();
            fs::set_permissions(&here, Permissions::from_mode(0o644)).unwrap();
        }
        here.display().to_string()
    }

    pub fn workflow(&self, name: &str, functions: &str) -> String {
        let path = self.path(&format!("{name}.yaml"));
        fs::write(&path, workflow_text(name, functions)).unwrap();
        path.display().to_string()
    }

    /// `greeter`, and `hello` that calls it.
    pub fn hello(&self) -> String {
        let (greeter, hello) = (self.guest("greeter"), self.guest("hello-caller"));
        let functions = format!(
            "    greeter: {{module: {greeter}, role: secondary}}\n    hello: {{module: {hello}, args: [Ada, Grace]}}\n"
        );
        self.workflow("hello", &functions)
    }

    /// A workflow of `probe` with these arguments and more fields.
    pub fn probe(&self, args: &str, more: &str) -> String {
        let probe = self.guest("probe");
        self.workflow("w", &format!("    probe: {{module: {probe}, args: {args}, {more}}}\n"))
    }

    /// `cwasi run --local` of a user who is not root.
    pub fn run(&self, arguments: &[&str]) -> Command {
        let mut command = self.cwasi();
        command.args(["run", "--local"]).args(arguments);
        command
    }

    /// `cwasi` of that user.
    pub fn cwasi(&self) -> Command {
        let mut command = Command::new(self.path("bin/cwasi"));
        command.env_clear().env("HOME", self.0.path()).env("XDG_RUNTIME_DIR", self.path("run"));
        command.current_dir(self.0.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        command
    }

    /// Runs to its end, with success.
    pub fn ok(&self, arguments: &[&str]) -> Output {
        self.ends(0, arguments)
    }

    pub fn ends(&self, code: i32, arguments: &[&str]) -> Output {
        let output = self.run(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        self.nothing_is_left();
        output
    }

    /// Processes of this home's programs.
    pub fn processes(&self) -> Vec<String> {
        let of = |entry: fs::DirEntry| {
            let program = fs::read_link(entry.path().join("exe")).ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            program.starts_with(self.path("bin")).then(|| name.trim().to_owned())
        };
        fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
    }

    /// Names in the folder for state.
    pub fn state(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path("run")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    pub fn nothing_is_left(&self) {
        assert_eq!((self.processes(), self.state()), (Vec::new(), Vec::new()));
    }

    /// Names and times of the compiled modules.
    pub fn compiled(&self) -> Vec<(PathBuf, std::time::SystemTime)> {
        let entries = fs::read_dir(self.path(".cache/cwasi/aot")).unwrap().flatten();
        let of_engine = |path: PathBuf| {
            let extension = path.extension()?.to_str()?.to_owned();
            Engine::ALL.into_iter().find(|engine| engine.native_extension() == extension)
        };
        let native = entries.filter(|entry| of_engine(entry.path()).is_some());
        let mut found: Vec<_> = native
            .map(|entry| (entry.path(), entry.metadata().unwrap().modified().unwrap()))
            .collect();
        found.sort();
        found
    }
}

fn link(from: &Path, to: &Path) {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop)).unwrap();
}

impl Home {
    /// A file with this text.
    pub fn data(&self, text: &str) -> String {
        let path = self.path("data").join("file.txt");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// An endless workflow, which runs.
    pub fn endless(&self, file: &str) -> std::process::Child {
        let child = self.run(&[file]).spawn().unwrap();
        wait_for("the workers of both functions", || {
            let workers = self.processes().iter().filter(|name| *name == "cwasi-worker").count();
            (workers == 2).then_some(())
        });
        child
    }

    pub fn endless_file(&self) -> String {
        let (greeter, probe) = (self.guest("greeter"), self.guest("probe"));
        let functions = format!(
            "    greeter: {{module: {greeter}, role: secondary}}\n    probe: {{module: {probe}, args: [loop]}}\n"
        );
        self.workflow("endless", &functions)
    }
}

/// Sends a signal to a command.
pub fn signal(child: &std::process::Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}
