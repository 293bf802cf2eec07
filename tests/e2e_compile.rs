//! End to end on a real containerd: what compiling costs the node, who ends it, and what the user hears meanwhile. Each
//! scene's end checks that nothing is left ([`cwasi_testbed::scene`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::PathBuf;

use cwasi_testbed::processes::{Process, descendants};
use cwasi_testbed::run::{Outcome, Running};
use cwasi_testbed::scene::{Scene, wait_for};
use cwasi_testbed::slow_module::slow_module;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Functions of a module that takes a compiler many seconds.
const SLOW: u32 = 200;
/// Settings under which such a module may be compiled.
const GENEROUS: &str = "locals = 100000000\nmemory = \"6GiB\"\nmemory_total = \"6GiB\"";

/// A scene with a cache and limits of its own.
struct Bench {
    scene: Scene,
    cgroup: String,
}

impl Bench {
    fn new(name: &str) -> Self {
        let scene = Scene::new(env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1"), name);
        let cgroup = format!("cwasi-test-{name}-{}", std::process::id());
        Self { scene, cgroup }
    }

    fn cache(&self) -> PathBuf {
        self.scene.containerd.ready().dir.join("compile-cache").join(&self.cgroup)
    }

    /// Sets `[compile]` for the groups that start from now on.
    fn limits(&self, settings: &str) {
        let fixture = &self.scene.containerd.ready().dir;
        let (state, cache, cgroup) = (fixture.join("cwasi"), self.cache(), &self.cgroup);
        let config = format!(
            "state_dir = {state:?}\ncache_dir = {cache:?}\n[compile]\ncgroup = {cgroup:?}\n{settings}\n"
        );
        fs::write(fixture.join("cwasi.toml"), config).unwrap();
    }

    fn run(&self, id: &str, module: &[u8]) -> Outcome {
        let image = self.scene.import_module(id, module);
        self.scene.run(self.scene.image(&image, id))
    }

    fn spawn(&self, id: &str, image: &str) -> Running {
        self.scene.image(image, id).spawn(self.scene.containerd).unwrap()
    }

    fn compilers(&self) -> Vec<Process> {
        let mut all = descendants(self.scene.containerd.guard_pid());
        all.retain(|process| {
            process.command.contains("cwasi-sandbox compile") && process.state != 'Z'
        });
        all
    }

    fn wait_for_compiler(&self) -> Process {
        wait_for("a compiler", || self.compilers().pop())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.scene.containerd.ready().log()).unwrap()
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

impl Drop for Bench {
    fn drop(&mut self) {
        let fixture = &self.scene.containerd.ready().dir;
        // A `ctr` that is killed leaves its own.
        for fifos in
            fs::read_dir(self.scene.containerd.ready().fifos()).into_iter().flatten().flatten()
        {
            let _none = fs::remove_dir_all(fifos.path());
        }
        fs::write(fixture.join("cwasi.toml"), cwasi_testbed::guard::cwasi_config(fixture)).unwrap();
        let _none = fs::remove_dir_all(fixture.join("compile-cache"));
    }
}

/// Nice value of a process: field 19 of its `stat`; the state is field 3.
fn nice(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned()
}

#[test]
fn a_limit_that_a_module_exceeds_is_named_with_the_setting_that_raises_it() {
    let bench = Bench::new("compile-limits");
    // The file that `CWASI_CONFIG` names there.
    let file = bench.scene.containerd.ready().dir.join("cwasi.toml").display().to_string();
    let cases = [
        ("static", SLOW, "", "local variables in all its functions: 10000000"),
        ("memory", SLOW, "locals = 100000000\nmemory = \"200MiB\"\njobs = 1", "raise memory,"),
        ("time", SLOW / 4, &format!("{GENEROUS}\ncpu_seconds = 1"), "raise cpu_seconds"),
    ];
    for (name, functions, limits, part) in cases {
        bench.limits(limits);
        let outcome = bench.run(name, &slow_module(functions));
        assert_ne!(outcome.code, 0, "{name}");
        for part in [part, "[compile]", &file] {
            assert!(outcome.stderr.contains(part), "{name}: {part} missing in {}", outcome.stderr);
        }
    }
    bench.wait_for_no_leftovers();
    bench.limits("cpus = 1");
    let refused = bench.run("unknown", &slow_module(1));
    assert!(refused.stderr.contains("unknown field `cpus`"), "{}", refused.stderr);
}

#[test]
fn a_compiler_yields_has_a_cgroup_and_ends_with_its_container() {
    let bench = Bench::new("compile-cancel");
    bench.limits(GENEROUS);
    let image = bench.scene.import_module("slow", &slow_module(SLOW));
    let run = bench.spawn("slow", &image);
    let compiler = bench.wait_for_compiler();
    wait_for("it to yield", || (nice(compiler.pid) == "10").then_some(()));
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", compiler.pid)).unwrap();
    let memory =
        cgroups.lines().find(|line| line.contains(":memory:") || line.starts_with("0::/c"));
    assert!(memory.unwrap().contains(&bench.cgroup), "{cgroups}");
    // containerd deletes the task whose creation its client does not wait for any more.
    drop(run);
    bench.wait_for_no_leftovers();
    assert_eq!(bench.scene.status("slow"), None);
}

#[test]
fn a_compiler_ends_with_its_daemon() {
    let bench = Bench::new("compile-daemon");
    bench.limits(GENEROUS);
    let image = bench.scene.import_module("slow", &slow_module(SLOW));
    let _run = bench.spawn("slow", &image);
    let compiler = bench.wait_for_compiler();
    kill(Pid::from_raw(compiler.parent), Signal::SIGKILL).unwrap();
    wait_for("the compiler to end", || bench.compilers().is_empty().then_some(()));
    // What it left, the next compilation removes.
    let _compiled = bench.run("next", &slow_module(1)).success();
    bench.wait_for_no_leftovers();
}

#[test]
fn who_waits_for_the_same_module_goes_on_when_its_compiler_is_ended() {
    let bench = Bench::new("compile-shared");
    bench.limits(GENEROUS);
    let image = bench.scene.import_module("shared", &slow_module(SLOW / 4));
    let first = bench.spawn("first", &image);
    let compiler = bench.wait_for_compiler();
    let second = bench.spawn("second", &image);
    wait_for("the second to wait", || {
        bench.log().contains("is being compiled for another container").then_some(())
    });
    let pids: Vec<i32> = bench.compilers().iter().map(|one| one.pid).collect();
    assert_eq!(pids, [compiler.pid]);
    drop(first);
    let outcome = second.finish().unwrap().success();
    assert!(outcome.stderr.contains("cwasi: waiting: /m.wasm"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cwasi: compiled /m.wasm"), "{}", outcome.stderr);
    bench.wait_for_no_leftovers();
}

#[test]
fn compilers_of_all_shims_share_the_nodes_jobs() {
    let bench = Bench::new("compile-jobs");
    bench.limits(&format!("{GENEROUS}\njobs = 1"));
    let [one, other] = [SLOW, SLOW - 1].map(|functions| {
        bench.scene.import_module(&format!("jobs-{functions}"), &slow_module(functions))
    });
    let first = bench.spawn("one", &one);
    let compiler = bench.wait_for_compiler();
    let second = bench.spawn("other", &other);
    wait_for("the second to wait", || {
        bench
            .log()
            .contains("this node already runs its maximum of compilers (jobs = 1)")
            .then_some(())
    });
    let pids: Vec<i32> = bench.compilers().iter().map(|one| one.pid).collect();
    assert_eq!(pids, [compiler.pid]);
    drop(first);
    wait_for("the second's compiler", || {
        bench.compilers().iter().any(|one| one.pid != compiler.pid).then_some(())
    });
    drop(second);
    bench.wait_for_no_leftovers();
}

#[test]
fn compiling_is_told_on_stderr_and_in_containerds_log_and_only_the_first_time() {
    let bench = Bench::new("compile-told");
    bench.limits("");
    let module =
        wat::parse_str(r#"(module (memory (export "memory") 1) (func (export "_start")))"#);
    let image = bench.scene.import_module("told", &module.unwrap());
    let first = bench.scene.run(bench.scene.image(&image, "first")).success();
    let begins = "cwasi: compiling /m.wasm in the root file system (";
    for part in [begins, "bytes), first time on this node\n", "cwasi: compiled /m.wasm"] {
        assert!(first.stderr.contains(part), "{part} missing in: {}", first.stderr);
    }
    wait_for("containerd's log", || {
        let log = bench.log();
        let told = |part: &str| {
            let mut lines =
                log.lines().filter(|line| line.contains("runtime=cwasi container=first"));
            lines.any(|line| line.contains(part))
        };
        (told("compiling /m.wasm") && told("compiled /m.wasm")).then_some(())
    });
    let again = bench.scene.run(bench.scene.image(&image, "again")).success();
    assert_eq!(again.stderr, "");
}

#[test]
fn a_module_that_is_command_and_reactor_is_warned_about() {
    let bench = Bench::new("compile-both");
    bench.limits("");
    let module = wat::parse_str(
        r#"(module (memory (export "memory") 1) (func (export "_start"))
            (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 8))
            (func (export "cwasi_handle") (param i32 i32 i32) (result i32) (i32.const 0)))"#,
    );
    let image = bench.scene.import_module("both", &module.unwrap());
    let primary = bench.scene.run(bench.scene.image(&image, "primary")).success();
    let part = "cwasi: warning: /m.wasm in the root file system exports both `_start` and `cwasi_handle`: as a primary";
    assert!(primary.stderr.contains(part), "{}", primary.stderr);
    let named =
        bench.scene.run(bench.scene.image(&image, "named").args(["/m.wasm#_start"])).success();
    assert_eq!(named.stderr, "");
    bench.scene.start(bench.scene.image(&image, "secondary").annotation("cwasi.role", "secondary"));
    wait_for("containerd's log", || {
        let log = bench.log();
        let part = "as a secondary it is a reactor, `_start` does not run";
        let mut lines = log.lines().filter(|line| line.contains("level=warning runtime=cwasi"));
        lines.any(|line| line.contains(part) && line.contains("container=secondary")).then_some(())
    });
}
