//! `cwasi run --local`: an ordinary user, without containerd.

use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use cwasi_testbed::scene::{guests_dir, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;

use super::scene::{Stage, workflow_text};
use super::{cwasi, stderr, stdout};

/// Debian's `nobody`.
const USER: u32 = 65534;
/// What the command starts, too.
const PROGRAMS: [&str; 3] = ["cwasi", "cwasi-shim", "cwasi-sandbox"];

/// A user's home, with the programs and files of the test in it: the checkout may be out of the user's reach.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(
            tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap(),
        );
        for folder in ["bin", "run", "data"] {
            fs::create_dir(home.path(folder)).unwrap();
        }
        let built = Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap();
        for program in PROGRAMS {
            link(&built.join(program), &home.path("bin").join(program));
        }
        if geteuid().is_root() {
            for folder in ["", "run", "data"] {
                chown(home.path(folder), Some(USER), Some(USER)).unwrap();
            }
        }
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Path of a guest's module.
    fn guest(&self, name: &str) -> String {
        let built = Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap();
        let (file, here) = (format!("{name}.wasm"), self.path(&format!("{name}.wasm")));
        if !here.exists() {
            fs::copy(guests_dir(built).join(file), &here).unwrap();
            fs::set_permissions(&here, Permissions::from_mode(0o644)).unwrap();
        }
        here.display().to_string()
    }

    fn workflow(&self, name: &str, functions: &str) -> String {
        let path = self.path(&format!("{name}.yaml"));
        fs::write(&path, workflow_text(name, functions)).unwrap();
        path.display().to_string()
    }

    /// `greeter`, and `hello` that calls it.
    fn hello(&self) -> String {
        let (greeter, hello) = (self.guest("greeter"), self.guest("hello-caller"));
        let functions = format!(
            "    greeter: {{module: {greeter}, role: secondary}}\n    hello: {{module: {hello}, args: [Ada, Grace]}}\n"
        );
        self.workflow("hello", &functions)
    }

    /// A workflow of `probe` with these arguments and more fields.
    fn probe(&self, args: &str, more: &str) -> String {
        let probe = self.guest("probe");
        self.workflow("w", &format!("    probe: {{module: {probe}, args: {args}, {more}}}\n"))
    }

    /// `cwasi run --local` of a user who is not root.
    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/cwasi"));
        command.env_clear().env("HOME", self.0.path()).env("XDG_RUNTIME_DIR", self.path("run"));
        command.current_dir(self.0.path()).args(["run", "--local"]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        command
    }

    /// Runs to its end, with success.
    fn ok(&self, arguments: &[&str]) -> Output {
        self.ends(0, arguments)
    }

    fn ends(&self, code: i32, arguments: &[&str]) -> Output {
        let output = self.run(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        self.nothing_is_left();
        output
    }

    /// Processes of this home's programs.
    fn processes(&self) -> Vec<String> {
        let of = |entry: fs::DirEntry| {
            let program = fs::read_link(entry.path().join("exe")).ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            program.starts_with(self.path("bin")).then(|| name.trim().to_owned())
        };
        fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
    }

    /// Names in the folder for state.
    fn state(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path("run")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn nothing_is_left(&self) {
        assert_eq!((self.processes(), self.state()), (Vec::new(), Vec::new()));
    }

    /// Names and times of the compiled modules.
    fn compiled(&self) -> Vec<(PathBuf, std::time::SystemTime)> {
        let entries = fs::read_dir(self.path(".cache/cwasi/aot")).unwrap().flatten();
        let native = entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "so"));
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

/// Runs a workflow on containerd; its stdout.
fn on_containerd(stage: &Stage, file: &str) -> String {
    stage.ok(&["run", file])
}

#[test]
fn an_ordinary_user_gets_the_bytes_of_containerd() {
    let (stage, home) = (Stage::new("cli-local"), Home::new());
    let hello = home.hello();
    let first = home.ok(&[&hello]);
    assert_eq!(stdout(&first), on_containerd(&stage, &hello));
    let text = stderr(&first);
    assert!(text.contains("without containers; their isolation is weaker"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("hello ") && line.contains(" 2 ")), "{text}");
    // The second run finds what the first one compiled.
    let compiled = home.compiled();
    assert_eq!(compiled.len(), 2, "{compiled:?}");
    assert_eq!(stdout(&home.ok(&[&hello])), stdout(&first));
    assert_eq!(home.compiled(), compiled);
    for arguments in ["[args, a, 'b c']", "[env]", "[context, function]", "[context, workflow]"] {
        let file = home.probe(arguments, "env: {KEY: value}");
        assert_eq!(stdout(&home.ok(&[&file])), on_containerd(&stage, &file), "{arguments}");
    }
    let (linker, texts) = (home.guest("linker"), home.guest("texts"));
    let file = home.workflow(
        "linked",
        &format!(
            "    linker: {{module: {linker}, args: [backwards, abc], embed: {{texts: texts, letters: letters}}}}\n    \
             texts: {{module: {texts}, role: library}}\n    letters: {{module: {}, role: library}}\n",
            home.guest("letters")
        ),
    );
    assert_eq!(stdout(&home.ok(&[&file])), on_containerd(&stage, &file));
}

/// Prints the time; a person judges it.
#[test]
fn a_second_start_is_quick() {
    let home = Home::new();
    let hello = home.hello();
    home.ok(&[&hello]);
    let began = Instant::now();
    let mut child = home.run(&[&hello]).spawn().unwrap();
    // The first function prints what its first call returned.
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    println!("second start: {} ms until the first call", began.elapsed().as_millis());
    assert!(child.wait_with_output().unwrap().status.success());
    println!("second start: {} ms in all", began.elapsed().as_millis());
}

#[test]
fn functions_open_their_mounts_and_nothing_else() {
    let home = Home::new();
    let data = home.path("data");
    fs::write(data.join("in.txt"), "input").unwrap();
    let source = data.display();
    let read_only = format!("mounts: [{{source: {source}, target: /in, readOnly: true}}]");
    let writable = format!("mounts: [{{source: {source}, target: /out}}]");
    let one = format!("mounts: [{{source: {source}/in.txt, target: /a/one.txt, readOnly: true}}]");
    let read = home.probe("[read, /in/in.txt]", &read_only);
    assert_eq!(stdout(&home.ok(&[&read])), "input");
    assert_eq!(stdout(&home.ok(&[&home.probe("[read, /a/one.txt]", &one)])), "input");
    home.ok(&[&home.probe("[write, /out/new.txt, text]", &writable)]);
    assert_eq!(fs::read_to_string(data.join("new.txt")).unwrap(), "text");
    for (arguments, more) in [
        ("[write, /in/other.txt, text]", read_only.as_str()),
        ("[write, /other.txt, text]", &read_only),
        ("[read, /etc/passwd]", &read_only),
        ("[read, /in/../../etc/passwd]", &read_only),
    ] {
        let output = home.run(&[&home.probe(arguments, more)]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", stderr(&output));
    }
    assert!(!data.join("other.txt").exists());
    home.nothing_is_left();
}

#[test]
fn what_needs_containerd_is_refused_with_its_field() {
    let home = Home::new();
    let probe = home.guest("probe");
    let nodes = "  nodes: {n: {address: /n.sock}}\n";
    let file = home.data("[args]");
    for (functions, field) in [
        ("    f: {image: 'localhost/f:1'}\n".to_owned(), "image"),
        (format!("    f: {{module: {probe}, node: n}}\n{nodes}"), "node"),
        (format!("    f: {{module: {probe}, embed: {{a: 'localhost/a:1'}}}}\n"), "embed"),
    ] {
        let text = stderr(&home.ends(65, &[&home.workflow("w", &functions)]));
        assert!(text.contains(&format!("function f: field `{field}` needs containerd")), "{text}");
    }
    let file_mount = format!("mounts: [{{source: {file}, target: /in.txt}}]");
    let text = stderr(&home.ends(70, &[&home.probe("[args]", &file_mount)]));
    assert!(text.contains("a single file can only be mounted with readOnly"), "{text}");
    let text =
        stderr(&home.ends(66, &[&home.probe("[args]", "mounts: [{source: /no, target: /a}]")]));
    assert!(text.contains("function probe: /no does not exist"), "{text}");
    home.ends(2, &["--keep", &home.hello()]);
}

impl Home {
    /// A file with this text.
    fn data(&self, text: &str) -> String {
        let path = self.path("data").join("file.txt");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// An endless workflow, which runs.
    fn endless(&self, file: &str) -> std::process::Child {
        let child = self.run(&[file]).spawn().unwrap();
        wait_for("the workers of both functions", || {
            let workers = self.processes().iter().filter(|name| *name == "cwasi-worker").count();
            (workers == 2).then_some(())
        });
        child
    }

    fn endless_file(&self) -> String {
        let (greeter, probe) = (self.guest("greeter"), self.guest("probe"));
        let functions = format!(
            "    greeter: {{module: {greeter}, role: secondary}}\n    probe: {{module: {probe}, args: [loop]}}\n"
        );
        self.workflow("endless", &functions)
    }
}

fn signal(child: &std::process::Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}

#[test]
fn no_end_of_the_command_leaves_a_process() {
    let home = Home::new();
    let file = home.endless_file();
    // While it compiles.
    let child = home.run(&[&file]).spawn().unwrap();
    wait_for("the compiler", || home.processes().iter().any(|it| it == "cwasi-shim").then_some(()));
    signal(&child, Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    home.nothing_is_left();
    // While it runs.
    let child = home.endless(&file);
    signal(&child, Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted, taking down"), "{}", stderr(&output));
    home.nothing_is_left();
    // No chance to take down: the kernel ends the processes, and the next run removes the folder.
    let child = home.endless(&file);
    signal(&child, Signal::SIGKILL);
    child.wait_with_output().unwrap();
    wait_for("the end of all processes", || home.processes().is_empty().then_some(()));
    assert_eq!(home.state().len(), 1);
    home.ok(&[&home.hello()]);
}

#[test]
fn results_are_json_when_asked_for() {
    let home = Home::new();
    let output = home.ok(&["--json", &home.hello()]);
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(json["exit"], 0);
    let hop = &json["hops"][0];
    assert_eq!((&hop["callee"], &hop["mode"]), (&"greeter".into(), &"local".into()));
    // The other verbs need containerd, and say so.
    let ps = cwasi().args(["--address", "/no.sock", "ps"]).output().unwrap();
    assert_eq!(ps.status.code(), Some(69));
}
