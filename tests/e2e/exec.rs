//! End to end on a real containerd: processes beside a native container's init, and terminals.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cwasi_testbed::run::{Outcome, on_terminal, output};
use cwasi_testbed::scene::{BUSYBOX, Scene, wait_for};

use crate::SHIM;

fn scene(name: &str) -> Scene {
    let scene = Scene::new(SHIM, name);
    scene.import_busybox();
    scene
}

/// Starts container `id`, which sleeps.
fn sleeper(scene: &Scene, id: &str, flags: &[&str]) {
    let mut run = scene.image(BUSYBOX, id).args(["sleep", "1000"]).env("COLOUR", "blue");
    for flag in flags {
        run = run.flag(*flag);
    }
    scene.start(run);
}

/// `ctr task exec` in container `c`.
fn exec_command(scene: &Scene, id: &str, flags: &[&str], args: &[&str]) -> Command {
    let mut command = scene.ctr_command();
    command.args(["task", "exec", "--exec-id", id]).args(flags).arg("c").args(args);
    command
}

fn exec(scene: &Scene, id: &str, flags: &[&str], args: &[&str]) -> Outcome {
    output(exec_command(scene, id, flags, args)).unwrap()
}

/// What `script` in a shell of container `c` prints.
fn shell(scene: &Scene, id: &str, script: &str) -> String {
    exec(scene, id, &[], &["sh", "-c", script]).success().text()
}

/// The container's other processes, as its init's namespace shows them to the host.
fn cgroup_processes(scene: &Scene) -> usize {
    let list = scene.ctr(["task", "ps", "c"]).success().text();
    list.lines().count() - 1
}

#[test]
fn exec_has_its_own_streams_and_exit_code() {
    let scene = scene("exec-streams");
    sleeper(&scene, "c", &[]);
    let script = "echo out; echo err >&2; exit 7";
    let outcome = exec(&scene, "e", &[], &["sh", "-c", script]);
    assert_eq!((outcome.text().as_str(), outcome.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(outcome.code, 7);
    assert_eq!(shell(&scene, "e", "cat /proc/1/cmdline"), "sleep\u{0}1000\u{0}");
    // The id is free again; init's environment, and its cgroups as it sees them itself.
    assert_eq!(shell(&scene, "e", "echo $COLOUR $HOME"), "blue /\n");
    let cgroups = shell(&scene, "e", "cat /proc/self/cgroup; echo; cat /proc/1/cgroup");
    let (own, inits) = cgroups.split_once("\n\n").unwrap();
    assert_eq!(own, inits.trim_end());
    let user = exec(
        &scene,
        "u",
        &["--user", "1000:1001", "--cwd", "/bin"],
        &["sh", "-c", "id -u; id -g; echo $PWD"],
    );
    assert_eq!(user.success().text(), "1000\n1001\n/bin\n");
    assert_eq!(cgroup_processes(&scene), 1, "only init is left");
}

/// Real-time signals have no name in many libraries.
#[test]
fn long_arguments_arrive() {
    let scene = scene("exec-long");
    sleeper(&scene, "c", &[]);
    let long = "x".repeat(100_000);
    let args = ["sh", "-c", "echo ${#0} ${#1} ${#2}", &long, &long, &long];
    assert_eq!(exec(&scene, "c", &[], &args).success().text(), "100000 100000 100000\n");
}

#[test]
fn an_exit_by_any_signal_is_seen() {
    let scene = scene("exec-signals");
    sleeper(&scene, "c", &[]);
    for signal in [9, 15, 31, 34, 64] {
        let outcome = exec(&scene, "e", &[], &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(outcome.code, 128 + signal, "{}", outcome.stderr);
    }
    assert_eq!(cgroup_processes(&scene), 1, "only init is left");
}

#[test]
fn stdin_reaches_the_process_and_ends() {
    let scene = scene("exec-stdin");
    sleeper(&scene, "c", &[]);
    let bytes: Vec<u8> = (0..300_007_u32).map(|index| (index % 251) as u8).collect();
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(&bytes).unwrap();
    std::io::Seek::rewind(&mut input).unwrap();
    let mut command = exec_command(&scene, "e", &[], &["cat"]);
    let outcome = command.stdin(input).output().unwrap();
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    assert!(outcome.stdout == bytes, "{} of {} bytes", outcome.stdout.len(), bytes.len());
}

#[test]
fn restrictions_of_the_container_hold_for_the_process() {
    let scene = scene("exec-restrict");
    // With and without no_new_privs, which decides when a seccomp profile can be installed.
    for flags in [&["--seccomp"][..], &["--seccomp", "--allow-new-privs"], &[]] {
        sleeper(&scene, "c", flags);
        let pick = "grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/";
        let grep = |process: &str| format!("/bin/busybox {pick}{process}/status");
        let own = shell(&scene, "own", &grep("self"));
        assert_eq!(own, shell(&scene, "init", &grep("1")), "{flags:?}");
        let mode = if flags.is_empty() { "Seccomp:\t0" } else { "Seccomp:\t2" };
        assert!(own.contains(mode), "{flags:?}: {own}");
        let user = ["--user", "1000"];
        let script = grep("self");
        let other = exec(&scene, "user", &user, &["sh", "-c", &script]).success().text();
        assert!(other.contains(mode) && other.contains("CapEff:\t0000000000000000"), "{other}");
        scene.remove("c");
    }
}

#[test]
fn a_signal_ends_the_process_alone_and_inits_end_ends_it_too() {
    let scene = scene("exec-signals");
    sleeper(&scene, "c", &[]);
    let detached = |id: &str| exec(&scene, id, &["--detach"], &["sleep", "1000"]).success();
    let kill = |id: &str| scene.ctr(["task", "kill", "--exec-id", id, "--signal", "KILL", "c"]);
    let remove = |id: &str| scene.ctr(["task", "rm", "--exec-id", id, "c"]);
    let _started = detached("e");
    let taken = exec(&scene, "e", &["--detach"], &["true"]);
    assert!(taken.stderr.contains("already exists"), "{}", taken.stderr);
    assert_ne!(remove("e").code, 0, "it runs");
    assert!(kill("other").stderr.contains("not found"), "{}", kill("other").stderr);
    let _killed = kill("e").success();
    wait_for("the end of the process", || (cgroup_processes(&scene) == 1).then_some(()));
    assert_eq!(scene.status("c").as_deref(), Some("RUNNING"));
    wait_for("its removal", || {
        let removed = remove("e");
        (removed.code == 137 || removed.stderr.contains("137")).then_some(())
    });
    assert!(kill("e").stderr.contains("not found"));
    let _started = detached("e");
    scene.kill("c", "KILL");
    scene.wait_stopped("c");
    let late = exec(&scene, "late", &[], &["true"]);
    assert!(late.stderr.contains("stopped"), "{}", late.stderr);
}

#[test]
fn a_program_that_cannot_be_executed_is_an_error_in_words() {
    let scene = scene("exec-absent");
    sleeper(&scene, "c", &[]);
    for (flags, program, words) in [
        (&[][..], "/bin/nothing", "/bin/nothing"),
        (&[], "nothing", "nothing"),
        (&["--cwd", "/nowhere"], "true", "ENOENT"),
    ] {
        let outcome = exec(&scene, "e", flags, &[program]);
        assert_ne!(outcome.code, 0);
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    }
    wait_for("nothing of them", || (cgroup_processes(&scene) == 1).then_some(()));
}

#[test]
fn an_output_ends_with_its_process_though_another_one_holds_it() {
    let scene = scene("exec-held");
    sleeper(&scene, "c", &[]);
    let outcome = exec(&scene, "e", &[], &["sh", "-c", "sleep 1000 & echo said; exit 3"]);
    assert_eq!((outcome.text().as_str(), outcome.code), ("said\n", 3), "{}", outcome.stderr);
    assert_eq!(cgroup_processes(&scene), 2, "the other one runs on");
}

#[test]
fn a_paused_container_keeps_its_processes_and_takes_no_new_one() {
    let scene = scene("exec-paused");
    sleeper(&scene, "c", &[]);
    let dir = tempfile::tempdir().unwrap();
    let mut command =
        exec_command(&scene, "reader", &[], &["sh", "-c", "read -r line; echo got $line; exit 4"]);
    let said = dir.path().join("said");
    command.stdin(Stdio::piped()).stdout(File::create(&said).unwrap());
    let mut reader = command.spawn().unwrap();
    let list = || scene.ctr(["task", "ps", "c"]).success().text();
    wait_for("the process", || list().contains("reader").then_some(()));
    let named: Vec<String> =
        list().lines().filter(|line| line.contains("reader")).map(str::to_owned).collect();
    assert_eq!(named.len(), 1, "init has no exec id: {}", list());
    let _paused = scene.ctr(["task", "pause", "c"]).success();
    assert_eq!(scene.status("c").as_deref(), Some("PAUSED"));
    let refused = exec(&scene, "late", &[], &["true"]);
    assert!(refused.stderr.contains("is paused: exec is not possible"), "{}", refused.stderr);
    writeln!(reader.stdin.take().unwrap(), "a line").unwrap();
    assert!(list().contains("reader"), "frozen, not gone: {}", list());
    let _resumed = scene.ctr(["task", "resume", "c"]).success();
    let status = wait_for("the end of the process", || reader.try_wait().unwrap());
    assert_eq!(status.code(), Some(4));
    assert_eq!(std::fs::read_to_string(&said).unwrap(), "got a line\n");
    assert_eq!(cgroup_processes(&scene), 1, "only init is left");
}

#[test]
fn a_checkpoint_is_refused_with_the_reason() {
    let scene = scene("checkpoint");
    sleeper(&scene, "c", &[]);
    let outcome = scene.ctr(["task", "checkpoint", "c"]);
    assert_ne!(outcome.code, 0);
    let words = "has no checkpoint and no restore, because";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert_eq!(scene.status("c").as_deref(), Some("RUNNING"));
}

/// The files below `directory`, for comparison.
fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        found.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn many_processes_at_once_and_in_a_row_leave_nothing() {
    const AT_ONCE: usize = 4;
    const IN_A_ROW: usize = 25;
    let scene = scene("exec-many");
    sleeper(&scene, "c", &[]);
    let state = scene.node.state();
    let daemon = std::fs::read_to_string(format!("/proc/{}/stat", scene.pid("c"))).unwrap();
    let daemon = daemon.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().to_owned();
    let descriptors = || std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count();
    shell(&scene, "first", "true");
    let (files_before, descriptors_before) = (files(&state), descriptors());
    std::thread::scope(|threads| {
        for thread in 0..AT_ONCE {
            let scene = &scene;
            threads.spawn(move || {
                for index in 0..IN_A_ROW {
                    let (id, code) = (format!("e{thread}-{index}"), (index % 7).to_string());
                    let outcome = exec(scene, &id, &[], &["sh", "-c", &format!("exit {code}")]);
                    assert_eq!(outcome.code.to_string(), code, "{}", outcome.stderr);
                }
            });
        }
    });
    assert_eq!(files(&state), files_before);
    assert_eq!(cgroup_processes(&scene), 1);
    // containerd may be closing its connection for the last one.
    wait_for("the daemon's descriptors", || (descriptors() <= descriptors_before).then_some(()));
}

#[test]
fn init_and_other_processes_get_terminals() {
    let scene = scene("exec-tty");
    let script =
        "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && ls -l /dev/console && /bin/busybox tty; exit 5";
    let run = scene.image(BUSYBOX, "t").args(["sh", "-c", script]).flag("--tty");
    let outcome = output(on_terminal(&run.command(&scene.containerd, false))).unwrap();
    assert_eq!(outcome.code, 5, "{}", outcome.text());
    assert!(outcome.text().contains("/dev/pts/"), "{}", outcome.text());
    assert!(outcome.text().contains("/dev/console"), "{}", outcome.text());
    sleeper(&scene, "c", &[]);
    let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && /bin/busybox tty; exit 6";
    let command = exec_command(&scene, "e", &["--tty"], &["sh", "-c", script]);
    let outcome = output(on_terminal(&command)).unwrap();
    assert_eq!(outcome.code, 6, "{}", outcome.text());
    assert!(outcome.text().contains("/dev/pts/"), "{}", outcome.text());
}

/// A program on a terminal whose input the test writes, ended with its test.
struct Session {
    child: Child,
    said: std::path::PathBuf,
}

impl Session {
    fn start(command: &Command, said: &Path) -> Self {
        let mut command = on_terminal(command);
        command.stdin(Stdio::piped()).stdout(File::create(said).unwrap());
        Self { child: command.spawn().unwrap(), said: said.to_owned() }
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn wait_for_output(&self, words: &str) {
        wait_for(words, || {
            std::fs::read_to_string(&self.said).unwrap().contains(words).then_some(())
        });
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have ended.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn a_terminal_carries_input_output_its_size_and_its_end() {
    let scene = scene("exec-session");
    sleeper(&scene, "c", &[]);
    let dir = tempfile::tempdir().unwrap();
    let command = exec_command(&scene, "e", &["--tty"], &["sh"]);
    let mut session = Session::start(&command, &dir.path().join("said"));
    session.type_line("echo $((20 + 22))");
    session.wait_for_output("42");
    // The size is that of the outer terminal; `ctr` sets it once the process runs.
    session
        .type_line("until [ \"$(/bin/busybox stty size)\" = '41 83' ]; do :; done; echo re''sized");
    session.wait_for_output("resized");
    session.type_line("exit 9");
    let status = wait_for("the end of the session", || session.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(9), "{}", std::fs::read_to_string(&session.said).unwrap());
}

#[test]
fn a_function_has_no_terminal() {
    let scene = scene("exec-function");
    let run = scene.guest("c", "probe").args(["exit", "0"]).flag("--tty");
    let outcome = output(on_terminal(&run.command(&scene.containerd, false))).unwrap();
    assert_ne!(outcome.code, 0);
    let words = "is the WebAssembly function";
    assert!(outcome.text().contains(words), "{}{}", outcome.text(), outcome.stderr);
}

#[test]
fn events_come_in_order() {
    let scene = scene("exec-events");
    let events = scene.events(BUSYBOX);
    sleeper(&scene, "c", &[]);
    assert_eq!(exec(&scene, "run", &[], &["sh", "-c", "exit 3"]).code, 3);
    let _started = exec(&scene, "left", &["--detach"], &["sleep", "1000"]).success();
    scene.kill("c", "KILL");
    scene.wait_stopped("c");
    wait_for("both ends", || (events.text().matches("/tasks/exit").count() == 3).then_some(()));
    let text = events.text();
    let told: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let topic = line.split_whitespace().find(|word| word.starts_with("/tasks/"))?;
            let id = ["run", "left"].into_iter().find(|id| line.contains(&format!("\"{id}\"")));
            (topic.contains("exec") || topic.contains("exit")).then_some((topic, id.unwrap_or("c")))
        })
        .collect();
    let wanted = [
        ("/tasks/exec-added", "run"),
        ("/tasks/exec-started", "run"),
        ("/tasks/exit", "run"),
        ("/tasks/exec-added", "left"),
        ("/tasks/exec-started", "left"),
        ("/tasks/exit", "left"),
        ("/tasks/exit", "c"),
    ];
    assert_eq!(told, wanted, "{text}");
}
