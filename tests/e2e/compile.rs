//! End to end on a real containerd: what compiling costs the node, who ends it, and what the user sees meanwhile. Each
//! scene's end checks that nothing is left ([`cwasi_testbed::scene`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::PathBuf;

use cwasi_config::Engine;
use cwasi_testbed::processes::Process;
use cwasi_testbed::run::{Outcome, Running};
use cwasi_testbed::scene::{Scene, unique, wait_for};
use cwasi_testbed::slow_module::slow_module;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::SHIM;

/// The engine whose compiler takes long: Cranelift is through before it can be watched.
const ENGINE: Engine = Engine::Wasmedge;
/// Functions of a module that takes it many seconds.
const SLOW: u32 = 200;
/// Nice value of a compiler.
const BACKGROUND_NICE: i32 = 10;
/// Settings under which such a module may be compiled.
const GENEROUS: &str = "locals = 100000000\nmemory = \"6GiB\"\nmemory_total = \"6GiB\"";

/// A scene with a cache and limits of its own.
struct Fixture {
    scene: Scene,
    cgroup: String,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let scene = Scene::new(SHIM, name);
        Self { scene, cgroup: unique("cwasi-test-compile") }
    }

    fn cache(&self) -> PathBuf {
        self.scene.node.path().join("compile-cache")
    }

    /// Sets `[compile]` for the groups that start from now on.
    fn limits(&self, settings: &str) {
        let (cache, cgroup) = (self.cache(), &self.cgroup);
        self.scene.node.write_config(&format!(
            "cache_dir = {cache:?}\nengine = \"{ENGINE}\"\n[compile]\ncgroup = {cgroup:?}\n{settings}"
        ));
    }

    fn run(&self, id: &str, module: &[u8]) -> Outcome {
        let image = self.scene.import_module(id, module);
        self.scene.run(self.scene.image(&image, id))
    }

    fn spawn(&self, id: &str, image: &str) -> Running {
        self.scene.image(image, id).spawn(&self.scene.containerd).unwrap()
    }

    fn compilers(&self) -> Vec<Process> {
        let program = [ENGINE.compiler_program()];
        let compiler = [&program[..], ENGINE.compiler_arguments()].concat().join(" ");
        let mut all = self.scene.processes();
        all.retain(|process| process.command.contains(&compiler) && process.state != 'Z');
        all
    }

    fn wait_for_compiler(&self) -> Process {
        wait_for("a compiler", || self.compilers().pop())
    }

    /// A compiler that has lowered its priority. It is stopped: it does not end before the test has looked at it.
    fn stopped_compiler(&self) -> Process {
        let compiler =
            wait_for("a compiler that yields", || self.compilers().into_iter().find(yields));
        kill(Pid::from_raw(compiler.pid), Signal::SIGSTOP).unwrap();
        compiler
    }

    /// What containerd's log has about a container of this scene.
    fn log(&self, id: &str) -> String {
        let log = fs::read_to_string(self.scene.containerd.ready().log()).unwrap();
        let lines = log.lines().filter(|line| line.contains(&format!("container={id} ")));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Drafts of the cache, and compilers' cgroups.
    fn leftovers(&self) -> Vec<PathBuf> {
        let paths = |dir: PathBuf| {
            fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
        };
        let is_draft =
            |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b".draft");
        let drafts = paths(self.cache().join("aot")).filter(is_draft);
        let hierarchies = paths("/sys/fs/cgroup".into()).chain([PathBuf::from("/sys/fs/cgroup")]);
        let cgroups = hierarchies.map(|at| at.join(&self.cgroup)).filter(|path| path.exists());
        drafts.chain(cgroups).collect()
    }

    fn wait_for_no_leftovers(&self) {
        wait_for("compilers, drafts and cgroups to go", || {
            (self.compilers().is_empty() && self.leftovers().is_empty()).then_some(())
        });
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A `ctr` that is killed leaves its own.
        self.scene.node.remove_fifos();
    }
}

/// Nice value of a process, while it is there: field 19 of its `stat`; the state is field 3.
fn nice(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()
}

/// A compiler yields if its priority is this, or its daemon's if that is lower still.
fn yields(compiler: &Process) -> bool {
    let daemons = nice(compiler.parent).unwrap_or_default();
    nice(compiler.pid) == Some(BACKGROUND_NICE.max(daemons))
}

#[test]
fn an_exceeded_limit_names_its_setting() {
    let fixture = Fixture::new("compile-limits");
    let file = fixture.scene.node.config().display().to_string();
    let cases = [
        ("static", SLOW, "", "local variables in all its functions: 10000000"),
        ("memory", SLOW, "locals = 100000000\nmemory = \"200MiB\"\njobs = 1", "raise memory,"),
        ("time", SLOW / 4, &format!("{GENEROUS}\ncpu_seconds = 1"), "raise cpu_seconds"),
    ];
    for (name, functions, limits, part) in cases {
        fixture.limits(limits);
        let outcome = fixture.run(name, &slow_module(functions));
        assert_ne!(outcome.code, 0, "{name}");
        for part in [part, "[compile]", &file] {
            assert!(outcome.stderr.contains(part), "{name}: {part} missing in {}", outcome.stderr);
        }
    }
    fixture.wait_for_no_leftovers();
    fixture.limits("cpus = 1");
    let refused = fixture.run("unknown", &slow_module(1));
    assert!(refused.stderr.contains("unknown field `cpus`"), "{}", refused.stderr);
}

#[test]
fn a_compiler_yields_has_a_cgroup_and_ends_with_its_container() {
    let fixture = Fixture::new("compile-cancel");
    fixture.limits(GENEROUS);
    let image = fixture.scene.import_module("slow", &slow_module(SLOW));
    let run = fixture.spawn("slow", &image);
    let compiler = fixture.stopped_compiler();
    // The kernel may take longer to move it than the program to start.
    wait_for("it to be in its cgroup", || {
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", compiler.pid)).unwrap();
        let is_memory = |line: &&str| line.contains(":memory:") || line.starts_with("0::/c");
        cgroups.lines().find(is_memory)?.contains(&fixture.cgroup).then_some(())
    });
    // containerd deletes the task whose creation its client does not wait for any more.
    drop(run);
    fixture.wait_for_no_leftovers();
    assert_eq!(fixture.scene.status("slow"), None);
}

#[test]
fn a_compiler_ends_with_its_daemon() {
    let fixture = Fixture::new("compile-daemon");
    fixture.limits(GENEROUS);
    let image = fixture.scene.import_module("slow", &slow_module(SLOW));
    let _run = fixture.spawn("slow", &image);
    let compiler = fixture.wait_for_compiler();
    kill(Pid::from_raw(compiler.parent), Signal::SIGKILL).unwrap();
    wait_for("the compiler to end", || fixture.compilers().is_empty().then_some(()));
    // What it left, the next compilation removes.
    let _compiled = fixture.run("next", &slow_module(1)).success();
    fixture.wait_for_no_leftovers();
}

#[test]
fn a_waiting_start_compiles_when_the_other_ends() {
    let fixture = Fixture::new("compile-shared");
    fixture.limits(GENEROUS);
    let image = fixture.scene.import_module("shared", &slow_module(SLOW / 4));
    let first = fixture.spawn("shared-first", &image);
    let compiler = fixture.stopped_compiler();
    let second = fixture.spawn("shared-second", &image);
    wait_for("the second to wait", || {
        let log = fixture.log("shared-second");
        log.contains("is being compiled for another container").then_some(())
    });
    let pids: Vec<i32> = fixture.compilers().iter().map(|one| one.pid).collect();
    assert_eq!(pids, [compiler.pid]);
    drop(first);
    let outcome = second.finish().unwrap().success();
    assert!(outcome.stderr.contains("cwasi: waiting: /m.wasm"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cwasi: compiled /m.wasm"), "{}", outcome.stderr);
    fixture.wait_for_no_leftovers();
}

#[test]
fn the_first_start_reports_its_compilation() {
    let fixture = Fixture::new("compile-reported");
    fixture.limits("");
    let module =
        wat::parse_str(r#"(module (memory (export "memory") 1) (func (export "_start")))"#);
    let image = fixture.scene.import_module("reported", &module.unwrap());
    let first = fixture.scene.run(fixture.scene.image(&image, "reported-first")).success();
    let begins = "cwasi: compiling /m.wasm in the root file system (";
    for part in [begins, "bytes), first time on this node\n", "cwasi: compiled /m.wasm"] {
        assert!(first.stderr.contains(part), "{part} missing in: {}", first.stderr);
    }
    wait_for("containerd's log", || {
        let log = fixture.log("reported-first");
        let is_there = |part: &str| {
            log.lines().any(|line| line.contains("runtime=cwasi") && line.contains(part))
        };
        (is_there("compiling /m.wasm") && is_there("compiled /m.wasm")).then_some(())
    });
    let again = fixture.scene.run(fixture.scene.image(&image, "again")).success();
    assert_eq!(again.stderr, "");
}

#[test]
fn a_module_that_is_command_and_reactor_is_warned_about() {
    let fixture = Fixture::new("compile-both");
    fixture.limits("");
    let module = wat::parse_str(
        r#"(module (memory (export "memory") 1) (func (export "_start"))
            (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 8))
            (func (export "cwasi_handle") (param i32 i32 i32) (result i32) (i32.const 0)))"#,
    );
    let image = fixture.scene.import_module("both", &module.unwrap());
    let primary = fixture.scene.run(fixture.scene.image(&image, "primary")).success();
    let part = "cwasi: warning: /m.wasm in the root file system exports both `_start` and `cwasi_handle`: as a primary";
    assert!(primary.stderr.contains(part), "{}", primary.stderr);
    let named =
        fixture.scene.run(fixture.scene.image(&image, "named").args(["/m.wasm#_start"])).success();
    assert_eq!(named.stderr, "");
    fixture
        .scene
        .start(fixture.scene.image(&image, "both-secondary").annotation("cwasi.role", "secondary"));
    wait_for("containerd's log", || {
        let log = fixture.log("both-secondary");
        let part = "as a secondary it is a reactor, `_start` does not run";
        let mut lines = log.lines().filter(|line| line.contains("level=warning runtime=cwasi"));
        lines.any(|line| line.contains(part)).then_some(())
    });
}
