//! End to end on a real containerd: bad input, killed helpers, many functions. One test per promise; every
//! test ends with the check that nothing is left ([`cwasi_testbed::scene`]).

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use cwasi_config::DEFAULT_ENGINE;
use cwasi_testbed::paths;
use cwasi_testbed::processes::{Process, descendants, ids_in_namespaces};
use cwasi_testbed::run::Outcome;
use cwasi_testbed::scene::{Scene, wait_for};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::scene;

fn processes(scene: &Scene, part: &str) -> Vec<Process> {
    let mut all = scene.processes();
    all.retain(|process| process.command.contains(part));
    all
}

fn call(scene: &Scene, id: &str, target: &str) -> Outcome {
    scene.run(scene.guest(id, "probe").args(["call", target, "x"]))
}

/// A module whose `_start` exits with `code`.
fn exits_with(code: u8) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(module
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (func (export "_start") (call $exit (i32.const {code}))))"#
    ))
    .unwrap()
}

#[test]
fn long_arguments_and_environments_arrive() {
    let scene = scene("faults-arguments");
    let args = ["args"].map(str::to_owned).into_iter().chain((0..4).map(|_| "x".repeat(100_000)));
    let text = scene.run(scene.guest("long", "probe").args(args)).success().text();
    assert_eq!(text.len(), "/probe.wasm\nargs\n".len() + 4 * 100_001);
    // As in a pod of a namespace with a thousand Services.
    let mut run = scene.guest("services", "probe").args(["env"]);
    for number in 0..1000 {
        run = run.env(&format!("SERVICE_{number}"), &number.to_string().repeat(100));
    }
    let text = scene.run(run).success().text();
    let last = format!("SERVICE_999={}", "999".repeat(100));
    assert!(text.len() > 250_000 && text.lines().any(|line| line == last), "{}", text.len());
}

#[test]
fn native_code_inside_a_module_never_runs() {
    let scene = scene("native-code");
    // The native code of a module that exits with 42, put into one that exits with 7.
    let native = aot_section(&exits_with(42));
    let mut module = exits_with(7);
    module.extend_from_slice(&native);
    assert_eq!(run_by_engine(&module), 42, "the engine alone prefers the native code");
    let image = scene.import_module("poisoned", &module);
    assert_eq!(scene.run(scene.image(&image, "c")).code, 7);
}

/// Exit code of `module` in the engine without CWASI.
fn run_by_engine(module: &[u8]) -> u32 {
    use wasmedge_sdk::{Module, Store, Vm, wasi::WasiModule};
    let mut wasi = WasiModule::create(None, None, None).unwrap();
    {
        let instances = [(wasi.name().to_owned(), wasi.as_mut())].into();
        let mut vm = Vm::new(Store::new(None, instances).unwrap());
        vm.register_module(Some("m"), Module::from_bytes(None, module).unwrap()).unwrap();
        // An exit ends the call with an error.
        let _exited = vm.run_func(Some("m"), "_start", []);
    }
    wasi.exit_code()
}

/// The custom section `wasmedge`, header included, that the engine's own compiler adds to `module`.
fn aot_section(module: &[u8]) -> Vec<u8> {
    use wasmedge_sdk::config::{CompilerConfigOptions, ConfigBuilder};
    use wasmedge_sdk::{Compiler, CompilerOutputFormat};
    let dir = tempfile::tempdir().unwrap();
    let options = CompilerConfigOptions::default().out_format(CompilerOutputFormat::Wasm);
    let config = ConfigBuilder::default().with_compiler_config(options).build().unwrap();
    let compiler = Compiler::new(Some(&config)).unwrap();
    let file = compiler.compile_from_bytes(module, "universal", dir.path()).unwrap();
    let universal = std::fs::read(file).unwrap();
    let section =
        wasmparser::Parser::new(0).parse_all(&universal).find_map(|payload| {
            match payload.unwrap() {
                wasmparser::Payload::CustomSection(section) if section.name() == "wasmedge" => {
                    Some(wasm_encoder::CustomSection {
                        name: "wasmedge".into(),
                        data: section.data().to_vec().into(),
                    })
                }
                _ => None,
            }
        });
    let mut bytes = Vec::new();
    wasm_encoder::Section::append_to(&section.expect("the engine adds its section"), &mut bytes);
    bytes
}

#[test]
fn a_sandbox_holds_no_descriptor_of_its_host() {
    let scene = scene("descriptors");
    let dir = tempfile::tempdir().unwrap();
    let run = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    scene.start(run.mount(dir.path(), "/data", "rw"));
    let _served = call(&scene, "p", "server").success();
    // As links of descriptors show it.
    let fixture = scene.node.path().canonicalize().unwrap();
    let init = scene.pid("server");
    let mut inside = descendants(init);
    inside.extend(cwasi_testbed::processes::read(init));
    assert!(inside.len() >= 2, "an init and a worker at least: {inside:?}");
    for process in inside {
        for entry in std::fs::read_dir(format!("/proc/{}/fd", process.pid)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(target) = std::fs::read_link(&path) else { continue };
            assert!(is_harmless(process.pid, &target, &fixture), "{path:?} {target:?}");
        }
    }
}

/// Anonymous objects, `/dev/null`, the container's own standard streams and its mounts, the page map of process `pid`
/// itself.
fn is_harmless(pid: i32, target: &Path, fixture: &Path) -> bool {
    let text = target.to_string_lossy();
    let anonymous = ["socket:", "pipe:", "anon_inode:", "/memfd:"];
    anonymous.iter().any(|start| text.starts_with(start))
        || target == Path::new("/dev/null")
        || target.starts_with("/data")
        // The guest's root: the image's files, read-only.
        || target == Path::new("/dev/cwasi/files")
        // It tells where the worker's own memory was written.
        || page_map_of(&text).is_some_and(|owner| ids_in_namespaces(pid).contains(&owner))
        || target.starts_with(fixture.join("fifo"))
}

/// Whose page map this is, by the number in its path.
fn page_map_of(target: &str) -> Option<i32> {
    target.strip_prefix("/proc/")?.strip_suffix("/pagemap")?.parse().ok()
}

#[test]
fn only_its_own_page_map_is_harmless_to_a_process() {
    let target = |file: &File| -> PathBuf {
        std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
    };
    let (pid, parent) = (nix::unistd::getpid().as_raw(), nix::unistd::getppid());
    let fixture = Path::new("/nowhere");
    let own = target(&File::open("/proc/self/pagemap").unwrap());
    assert!(is_harmless(pid, &own, fixture), "{own:?}");
    let other = target(&File::open(format!("/proc/{parent}/pagemap")).unwrap());
    assert!(!is_harmless(pid, &other, fixture), "{other:?}");
    let own_memory = target(&File::open("/proc/self/mem").unwrap());
    assert!(!is_harmless(pid, &own_memory, fixture), "{own_memory:?}");
}

#[test]
fn fifty_functions_run_at_once() {
    const FUNCTIONS: usize = 50;
    let scene = scene("fifty");
    let name = |index: usize| format!("f{index}");
    // Half of them share a shim, half have one each; several starts are under way at once.
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let scene = &scene;
            scope.spawn(move || {
                for index in (lane..FUNCTIONS).step_by(4) {
                    let mut run = scene.guest(&name(index), "server");
                    run = run.annotation("cwasi.role", "secondary");
                    run = run.annotation("cwasi.function", &name(index));
                    if index % 2 == 0 {
                        run = run.annotation("cwasi.workflow", "w");
                    }
                    scene.start(run);
                }
            });
        }
    });
    let running = scene.ctr(["task", "ls"]).success().text();
    assert_eq!(running.matches("RUNNING").count(), FUNCTIONS, "{running}");
    for index in (0..FUNCTIONS).step_by(7) {
        let _served = call(&scene, &format!("p{index}"), &name(index)).success();
    }
}

#[test]
fn a_killed_zygote_harms_no_function_and_is_replaced() {
    let scene = scene("zygote");
    let start = |id: &str| {
        let run = scene.guest(id, "server").annotation("cwasi.role", "secondary");
        let run = run.annotation("cwasi.function", id).annotation("cwasi.workflow", "w");
        scene.start(run);
    };
    start("before");
    // A sandbox is a fork of its zygote and has the same command line.
    let zygotes = processes(&scene, &format!("{} zygote", DEFAULT_ENGINE.sandbox_program()));
    let init = scene.pid("before");
    let inside: Vec<i32> = descendants(init).iter().map(|process| process.pid).collect();
    let zygote = zygotes
        .iter()
        .find(|process| process.pid != init && !inside.contains(&process.pid))
        .expect("the group has a zygote");
    kill(Pid::from_raw(zygote.pid), Signal::SIGKILL).unwrap();
    assert_eq!(scene.status("before").as_deref(), Some("RUNNING"));
    let _served = call(&scene, "p1", "before").success();
    start("after");
    let _served = call(&scene, "p2", "after").success();
    scene.kill("before", "KILL");
    scene.wait_stopped("before");
    assert_eq!(scene.remove("before"), 137);
}

#[test]
fn a_killed_shim_leaves_nothing_behind() {
    let scene = scene("shim");
    let run = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    scene.start(run);
    let init = scene.pid("server");
    for daemon in processes(&scene, "cwasi-shim") {
        // Gone in between is as good.
        let _sent = kill(Pid::from_raw(daemon.pid), Signal::SIGKILL);
    }
    wait_for("the sandbox to end", || cwasi_testbed::processes::read(init).is_none().then_some(()));
    wait_for("containerd to see it", || {
        (scene.status("server").as_deref() != Some("RUNNING")).then_some(())
    });
    scene.remove("server");
    // `ctr` removes its own FIFOs with the task, which is gone: with any runtime.
    scene.node.remove_fifos();
    // The name can be used again.
    scene.secondary("server", "server");
    let _served = call(&scene, "p", "server").success();
}

/// What hooks made before, such as a network, is theirs to free.
#[test]
fn hooks_of_poststop_run_after_a_killed_shim() {
    let scene = scene("shim-hooks");
    let (rootfs, kept) = (scene.node.path().join("rootfs"), scene.node.path().join("kept"));
    std::fs::create_dir_all(rootfs.join("bin")).unwrap();
    std::fs::copy(paths::busybox().unwrap(), rootfs.join("bin/busybox")).unwrap();
    let usual = scene.ctr(["oci", "spec"]).success().text();
    let mut spec: Value = serde_json::from_str(&usual).unwrap();
    spec["root"]["path"] = json!(rootfs);
    spec["process"]["args"] = json!(["/bin/busybox", "sleep", "1000"]);
    spec["linux"]["cgroupsPath"] = json!(format!("/{}/hooked", scene.namespace));
    let script = format!("cat >> {}", kept.display());
    let hook = json!({ "path": "/bin/sh", "args": ["sh", "-c", script] });
    spec["hooks"] = json!({ "poststop": [hook] });
    let config = scene.node.path().join("spec.json");
    std::fs::write(&config, spec.to_string()).unwrap();
    let mut run = scene.ctr_command();
    run.args(["run", "--detach", "--null-io", "--runtime", "io.containerd.cwasi.v1"]);
    run.arg("--runtime-config-path").arg(scene.node.config()).arg("--config").arg(&config);
    let started = run.arg("hooked").output().unwrap();
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    for daemon in processes(&scene, "cwasi-shim") {
        let _gone = kill(Pid::from_raw(daemon.pid), Signal::SIGKILL);
    }
    let state = wait_for("the hook", || {
        serde_json::from_str::<Value>(&std::fs::read_to_string(&kept).ok()?).ok()
    });
    assert_eq!((&state["id"], &state["status"]), (&json!("hooked"), &json!("stopped")), "{state}");
    wait_for("containerd to see it", || {
        (scene.status("hooked").as_deref() != Some("RUNNING")).then_some(())
    });
    scene.remove("hooked");
}

/// A small file system, unmounted when dropped; `room` is an option of tmpfs, such as `size=200k`.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(path: &Path, room: &str) -> Self {
        std::fs::create_dir_all(path).unwrap();
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(room)).unwrap();
        Self(path.to_owned())
    }

    fn change(&self, room: &str) {
        mount(Some("tmpfs"), &self.0, Some("tmpfs"), MsFlags::MS_REMOUNT, Some(room)).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

#[test]
fn a_full_cache_disk_is_said_and_harms_nothing_that_is_compiled() {
    let scene = scene("disk");
    let folder = scene.node.path();
    // Room for the module, not for its native code.
    let cache = folder.join("cache");
    let disk = SmallDisk::mount(&cache, "size=200k");
    scene.node.write_config(&format!("cache_dir = {cache:?}"));
    let refused = scene.run(scene.guest("full", "probe").args(["args"]));
    assert_ne!(refused.code, 0);
    for part in ["bytes free", "cache_dir"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    disk.change("size=32m");
    let _ran = scene.run(scene.guest("room", "probe").args(["args"])).success();
    std::fs::write(cache.join("filler"), vec![1; 33 << 20]).unwrap_err();
    let _ran = scene.run(scene.guest("cached", "probe").args(["args"])).success();
}

#[test]
fn a_start_without_disk_space_leaves_nothing() {
    /// More files and directories than a container needs.
    const ENOUGH: u32 = 60;
    let scene = scene("room");
    let folder = scene.node.path();
    let small = folder.join("small");
    let disk = SmallDisk::mount(&small, "nr_inodes=2");
    let config = format!("state_dir = {small:?}\ncache_dir = {:?}\n", paths::aot_cache());
    std::fs::write(scene.node.config(), config).unwrap();
    let left = || {
        let inside = ["g", "c", "f", "r"].map(|folder| std::fs::read_dir(small.join(folder)));
        inside
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .collect::<Vec<_>>()
    };
    let ran = (3..ENOUGH).find(|inodes| {
        disk.change(&format!("nr_inodes={inodes}"));
        let outcome = scene.run(scene.guest(&format!("c{inodes}"), "probe").args(["args"]));
        let why = &outcome.stderr;
        // libcontainer gives no reason for the socket that it makes in the state.
        let is_told = why.contains("No space left on device") || why.contains("notify.sock");
        assert!(outcome.code == 0 || is_told, "{inodes}: {why}");
        wait_for(&format!("nothing to be left with {inodes} inodes"), || {
            left().is_empty().then_some(())
        });
        outcome.code == 0
    });
    assert!(ran.is_some_and(|inodes| inodes > 8), "{ran:?}");
}
