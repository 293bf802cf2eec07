//! What a specification says, as runc does it: hooks, devices, labels, and errors that name the field.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cwasi_wire::control::{Entry, ExecSpec, Role, SandboxMessage, Verb, VerbReply};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::fixture::{Container, Fixture, eventually, read};
use crate::function::{Function, launch};
use crate::guests::guests;

/// Refused without anything left; returns what the user reads.
fn refused(fixture: &Fixture, id: &str, change: impl FnOnce(&mut Value)) -> String {
    let Err(text) = fixture.native_with(id, &["/bin/true"], change) else {
        panic!("{id}: created")
    };
    // libcontainer gives a killed init a moment to leave its cgroups, and the shim removes what is left.
    eventually("no cgroup", || {
        let left = fixture.cgroups(id);
        left.iter().for_each(|cgroup| drop(std::fs::remove_dir(cgroup)));
        left.is_empty().then_some(())
    });
    assert!(!fixture.root().join(id).exists(), "{id}");
    text
}

#[test]
fn folders_for_devices_have_the_mode_of_any_folder() {
    let fixture = Fixture::new();
    let script = "stat -c '%a %n' /dev/net /dev/a /dev/a/b /dev/net/tun /dev/a/b/null; umask";
    let mut container = fixture
        .native_with("devices", &["/bin/sh", "-c", script], |spec| {
            spec["process"]["user"]["umask"] = json!(0o27);
            spec["linux"]["devices"] = json!([
                { "path": "/dev/net/tun", "type": "c", "major": 10, "minor": 200, "fileMode": 0o622 },
                { "path": "/dev/a/b/null", "type": "c", "major": 1, "minor": 3 }
            ]);
        })
        .unwrap();
    container.start();
    assert_eq!(container.wait(), 0);
    let folder = {
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("made");
        std::fs::create_dir(&made).unwrap();
        std::fs::metadata(&made).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(
        container.output(),
        format!(
            "{folder:o} /dev/net\n{folder:o} /dev/a\n{folder:o} /dev/a/b\n622 /dev/net/tun\n666 /dev/a/b/null\n0027\n"
        )
    );
}

/// A hook that keeps the state it gets, and fails where the state's bundle has no specification.
fn keeps_state(place: &Path) -> Value {
    let script = format!(
        "cat > {0}; bundle=$(sed 's/.*\"bundle\":\"\\([^\"]*\\)\".*/\\1/' {0}); test -f $bundle/config.json",
        place.display()
    );
    json!([{ "path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"] }])
}

#[test]
fn hooks_get_the_containers_id_and_its_bundle_at_every_stage() {
    let fixture = Fixture::new();
    let states = tempfile::tempdir().unwrap();
    let place = |stage: &str| states.path().join(stage);
    let stages = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    let container = fixture
        .native_with("hooked", &["/bin/sleep", "1000"], |spec| {
            spec["annotations"] = json!({ "a": "b" });
            for stage in stages {
                spec["hooks"][stage] = keeps_state(&place(stage));
            }
            // In the container, which has no bundle.
            let script = "cat > /tmp/startContainer";
            spec["hooks"]["startContainer"] =
                json!([{ "path": "/bin/sh", "args": ["sh", "-c", script] }]);
        })
        .unwrap();
    container.start();
    eventually("sleep runs", || (container.status("Name") == "sleep").then_some(()));
    let bundle = fixture.dir.path().join("bundles/hooked");
    container.signal(Signal::SIGKILL);
    container.wait();
    container.delete();
    let pid = json!(container.pid.as_raw());
    for (stage, status, pid) in [
        ("prestart", "creating", pid.clone()),
        ("createRuntime", "creating", pid.clone()),
        // In its pid namespace.
        ("createContainer", "creating", json!(1)),
        ("startContainer", "created", json!(1)),
        ("poststart", "running", pid),
        ("poststop", "stopped", Value::Null),
    ] {
        let kept = match stage {
            "startContainer" => bundle.join("rootfs/tmp").join(stage),
            _ => place(stage),
        };
        let state: Value = serde_json::from_str(&read(&kept)).unwrap();
        assert_eq!(state["id"], "hooked-in-containerd", "{stage}: {state}");
        assert_eq!(state["bundle"], json!(bundle), "{stage}: {state}");
        assert_eq!((&state["status"], &state["pid"]), (&json!(status), &pid), "{stage}: {state}");
        assert_eq!(state["annotations"]["a"], "b", "{stage}: {state}");
    }
}

#[test]
fn a_hook_that_fails_is_named_with_what_it_said_and_poststop_follows() {
    let fixture = Fixture::new();
    let ended = tempfile::tempdir().unwrap();
    let fails = |stage: &str| {
        let script = format!("echo no {stage} for you >&2; exit 3");
        json!([{ "path": "/bin/sh", "args": ["sh", "-c", script] }])
    };
    for stage in ["prestart", "createRuntime", "createContainer"] {
        let place = ended.path().join(stage);
        let text = refused(&fixture, stage, |spec| {
            spec["hooks"][stage] = fails(stage);
            spec["hooks"]["poststop"] = keeps_state(&place);
        });
        assert!(text.contains(&format!("the {stage} hook \"/bin/sh\" failed")), "{text}");
        assert!(text.contains(&format!("no {stage} for you")), "{text}");
        assert!(text.contains("exit code: 3"), "{text}");
        assert!(place.exists(), "{stage}: poststop frees what hooks made");
    }
    let started = fixture
        .native_with("started", &["/bin/sleep", "1000"], |spec| {
            spec["hooks"]["poststart"] = fails("poststart");
            // The next one runs nevertheless, and the container is gone.
            let mut hooks = fails("poststop");
            let kept = keeps_state(&ended.path().join("poststop"));
            hooks.as_array_mut().unwrap().extend(kept.as_array().unwrap().clone());
            spec["hooks"]["poststop"] = hooks;
        })
        .unwrap();
    let text = started.verb(Verb::Start).unwrap_err();
    assert!(text.contains("the poststart hook \"/bin/sh\" failed"), "{text}");
    assert!(text.contains("no poststart for you"), "{text}");
    started.signal(Signal::SIGKILL);
    started.wait();
    started.delete();
    assert!(ended.path().join("poststop").exists());
    assert!(!fixture.root().join("started").exists());
    let mut in_container = fixture
        .native_with("inside", &["/bin/true"], |spec| {
            spec["hooks"]["startContainer"] = fails("startContainer");
        })
        .unwrap();
    in_container.start();
    assert_ne!(in_container.wait(), 0);
    let errors = in_container.errors();
    assert!(errors.contains("the startContainer hook \"/bin/sh\" failed"), "{errors}");
    assert!(errors.contains("no startContainer for you"), "{errors}");
}

#[test]
fn a_hook_that_takes_too_long_is_named() {
    let fixture = Fixture::new();
    let text = refused(&fixture, "slow", |spec| {
        let hook = json!({ "path": "/bin/sleep", "args": ["sleep", "1000"], "timeout": 1 });
        spec["hooks"]["createRuntime"] = json!([hook]);
    });
    assert!(text.contains("the createRuntime hook \"/bin/sleep\" failed"), "{text}");
    assert!(text.contains("timeout"), "{text}");
}

#[test]
fn a_container_without_mounts_of_its_own_is_refused() {
    let fixture = Fixture::new();
    let hosts = format!("/proc/{}/ns/mnt", std::process::id());
    for (id, namespaces) in [
        ("none", json!([{ "type": "pid" }])),
        ("hosts", json!([{ "type": "pid" }, { "type": "mount", "path": hosts }])),
    ] {
        let text = refused(&fixture, id, |spec| spec["linux"]["namespaces"] = namespaces);
        assert!(text.contains("the specification has no mount namespace"), "{text}");
    }
}

#[test]
fn a_label_without_selinux_is_refused() {
    assert!(!Path::new("/sys/fs/selinux").exists(), "this test is for machines without SELinux");
    let fixture = Fixture::new();
    let label = "system_u:system_r:container_t:s0:c1,c2";
    for (id, field, owner, key) in [
        ("process", "process.selinuxLabel", "process", "selinuxLabel"),
        ("mounts", "linux.mountLabel", "linux", "mountLabel"),
    ] {
        let text = refused(&fixture, id, |spec| spec[owner][key] = json!(label));
        assert!(text.contains(field) && text.contains(label), "{text}");
        assert!(text.contains("SELinux is disabled or not supported"), "{text}");
    }
    let text = refused(&fixture, "profile", |spec| {
        spec["process"]["apparmorProfile"] = json!("docker-default");
    });
    assert!(text.to_lowercase().contains("apparmor"), "{text}");
    // As runtimes write it that have none.
    let empty = fixture.native_with("empty", &["/bin/true"], |spec| {
        spec["process"]["selinuxLabel"] = json!("");
        spec["linux"]["mountLabel"] = json!("");
    });
    let empty = empty.unwrap();
    empty.start();
    assert_eq!(empty.wait(), 0);
}

/// A case: its id, what it changes, and what the error names.
type FaultyField<'a> = (&'a str, Box<dyn FnOnce(&mut Value) + 'a>, &'a [&'a str]);

fn add_mount(spec: &mut Value, mount: Value) {
    spec["mounts"].as_array_mut().unwrap().push(mount);
}

fn each_names_its_cause(fixture: &Fixture, cases: Vec<FaultyField<'_>>) {
    let mut wrong = Vec::new();
    for (id, change, says) in cases {
        let text = refused(fixture, id, change);
        if !says.iter().all(|part| text.contains(part)) {
            wrong.push(format!("{id}: {says:?} in: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_error_of_a_folder_or_a_mount_names_the_path_and_the_cause() {
    let fixture = Fixture::new();
    let file = fixture.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let cases: Vec<FaultyField<'_>> = vec![
        (
            "cwd-file",
            Box::new(|spec: &mut Value| {
                spec["process"]["cwd"] = json!("/one");
                add_mount(
                    spec,
                    json!({ "destination": "/one", "type": "bind", "source": file, "options": ["bind"] }),
                );
            }),
            &["process.cwd", "/one", "Not a directory"],
        ),
        (
            "cwd-missing",
            Box::new(|spec: &mut Value| spec["process"]["cwd"] = json!("/usr/no/such")),
            &["process.cwd", "/usr/no/such", "No such file"],
        ),
        (
            "type",
            Box::new(|spec: &mut Value| {
                add_mount(
                    spec,
                    json!({ "destination": "/x", "type": "nosuchfs", "source": "none" }),
                );
            }),
            &["/x", "nosuchfs", "No such device"],
        ),
        (
            "option",
            Box::new(|spec: &mut Value| {
                let options = ["size=many"];
                add_mount(
                    spec,
                    json!({ "destination": "/x", "type": "tmpfs", "source": "tmpfs", "options": options }),
                );
            }),
            &["/x", "size=many", "Invalid argument"],
        ),
    ];
    each_names_its_cause(&fixture, cases);
}

#[test]
fn an_error_names_the_field_the_path_and_the_cause() {
    let fixture = Fixture::new();
    let cases: Vec<FaultyField<'_>> = vec![
        (
            "pids",
            Box::new(|spec: &mut Value| spec["linux"]["resources"]["pids"] = json!({ "limit": 1 })),
            &["linux.resources.pids.limit", "limit of 1"],
        ),
        (
            "sysctl",
            Box::new(|spec: &mut Value| {
                spec["linux"]["sysctl"] = json!({ "net.no.such": "1" });
            }),
            &["net.no.such"],
        ),
        (
            "rlimit",
            Box::new(|spec: &mut Value| {
                spec["process"]["rlimits"] =
                    json!([{ "type": "RLIMIT_NOFILE", "soft": 9, "hard": 4 }]);
            }),
            &["RLIMIT_NOFILE"],
        ),
        (
            "device",
            Box::new(|spec: &mut Value| {
                spec["linux"]["devices"] =
                    json!([{ "path": "/data/null", "type": "c", "major": 1, "minor": 3 }]);
            }),
            &["/data/null"],
        ),
    ];
    each_names_its_cause(&fixture, cases);
}

#[test]
fn a_terminal_has_the_size_that_the_process_asks_for() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("terminal", &["/bin/sh", "-c", "stty size"], |spec| {
        spec["process"]["terminal"] = json!(true);
        spec["process"]["consoleSize"] = json!({ "height": 33, "width": 77 });
    });
    let (pid, terminal) = fixture.create_with_terminal("terminal", bundle);
    let container = fixture.adopt("terminal", pid);
    container.start();
    assert_eq!(container.wait(), 0);
    // The kernel ends reads of a terminal without processes with an error.
    let mut text = Vec::new();
    let _ended = std::io::Read::read_to_end(&mut std::fs::File::from(terminal), &mut text);
    assert_eq!(String::from_utf8(text).unwrap(), "33 77\r\n");
    container.delete();
}

/// Fields of a container of which this machine has nothing.
#[test]
fn what_the_node_does_not_have_is_refused() {
    let fixture = Fixture::new();
    let text = refused(&fixture, "version", |spec| spec["ociVersion"] = json!("2.0.0"));
    assert!(text.contains("version"), "{text}");
    let text = refused(&fixture, "device", |spec| {
        spec["linux"]["netDevices"] = json!({ "no-such0": {} });
    });
    assert!(text.contains("no-such0"), "{text}");
    assert!(!Path::new("/sys/fs/resctrl/schemata").exists(), "a machine without cache classes");
    let text = refused(&fixture, "cache", |spec| {
        spec["linux"]["intelRdt"] = json!({ "closID": "c", "l3CacheSchema": "L3:0=f" });
    });
    assert!(text.to_lowercase().contains("resctrl"), "{text}");
}

/// A limit is in force where the kernel has its controller, and refused elsewhere.
#[test]
fn limits_without_a_controller_are_refused() {
    let fixture = Fixture::new();
    let page = json!([{ "pageSize": "2MB", "limit": 2 << 20 }]);
    for (id, resources, controller, file) in [
        ("huge", json!({ "hugepageLimits": page }), "hugetlb", "hugetlb.2MB.limit_in_bytes"),
        ("class", json!({ "network": { "classID": 7 } }), "net_cls", "net_cls.classid"),
    ] {
        let made = fixture.native_with(id, &["/bin/true"], |spec| {
            let resources = resources.as_object().unwrap().clone();
            spec["linux"]["resources"].as_object_mut().unwrap().extend(resources);
        });
        let hierarchy = Path::new("/sys/fs/cgroup").join(controller);
        match made {
            Ok(_) => {
                let own = hierarchy.join(fixture.cgroup.trim_start_matches('/')).join(id);
                assert_ne!(read(&own.join(file)), "0", "{id}");
            }
            Err(text) => {
                assert!(!hierarchy.exists(), "{id}: {text}");
                assert!(text.contains("is not supported by this system"), "{id}: {text}");
            }
        }
    }
}

#[test]
fn a_functions_process_is_as_specified() {
    let fixture = Fixture::new();
    let bundle = fixture.bundle("process", &["/f.wasm"], |spec| {
        let caps = json!(["CAP_KILL"]);
        let process = &mut spec["process"];
        process["user"] = json!({ "uid": 1000, "gid": 1001, "additionalGids": [5], "umask": 0o27 });
        process["capabilities"] =
            json!({ "bounding": caps, "permitted": caps, "effective": caps, "ambient": caps });
        process["oomScoreAdj"] = json!(321);
        process["rlimits"] = json!([{ "type": "RLIMIT_CORE", "soft": 0, "hard": 4096 }]);
        process["ioPriority"] = json!({ "class": "IOPRIO_CLASS_BE", "priority": 6 });
        process["scheduler"] = json!({ "policy": "SCHED_BATCH", "nice": 5 });
        process.as_object_mut().unwrap().remove("noNewPrivileges");
    });
    let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    let function = Function::create_in(&fixture, "process", bundle, reactor).unwrap();
    function.container.start();
    assert_eq!(function.message(), SandboxMessage::Ready);
    let pid = function.container.pid;
    let status = read(&PathBuf::from(format!("/proc/{pid}/status")));
    for line in [
        "Umask:\t0027",
        "Uid:\t1000\t1000\t1000\t1000",
        "Gid:\t1001\t1001\t1001\t1001",
        "Groups:\t5",
        "CapBnd:\t0000000000000020",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.lines().any(|it| it.trim_end() == line), "{line}: {status}");
    }
    assert_eq!(read(&PathBuf::from(format!("/proc/{pid}/oom_score_adj"))), "321");
    let limits = read(&PathBuf::from(format!("/proc/{pid}/limits")));
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(core.split_whitespace().any(|word| word == "4096"), "{core}");
    let asked = |program: &str| {
        let output = std::process::Command::new(program).arg("-p").arg(pid.to_string()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert!(asked("ionice").contains("best-effort: prio 6"), "{}", asked("ionice"));
    assert!(asked("chrt").contains("SCHED_BATCH"), "{}", asked("chrt"));
    function.end();
}

#[test]
fn an_exec_has_the_processors_that_it_asks_for() {
    let fixture = Fixture::new();
    let container = fixture.native("affinity", &["/bin/sleep", "1000"]);
    container.start();
    eventually("sleep runs", || (container.status("Name") == "sleep").then_some(()));
    let script = "grep Cpus_allowed_list /proc/self/status >/tmp/made; mv /tmp/made /tmp/allowed";
    let process = json!({
        "args": ["/bin/sh", "-c", script], "cwd": "/", "user": { "uid": 0, "gid": 0 },
        "env": ["PATH=/usr/bin:/bin"], "execCPUAffinity": { "initial": "0", "final": "0" }
    });
    let bundle = fixture.dir.path().join("bundles/affinity");
    let verb =
        Verb::Exec(Box::new(ExecSpec { bundle: bundle.clone(), process: process.to_string() }));
    let VerbReply::Created { pid } =
        fixture.send(&container.id, verb, &streams().each_ref().map(std::os::fd::AsFd::as_fd))
    else {
        panic!("not executed")
    };
    fixture.adopt("executed", nix::unistd::Pid::from_raw(pid)).wait();
    let allowed = read(&bundle.join("rootfs/tmp/allowed"));
    assert_eq!(allowed.split_whitespace().last(), Some("0"), "{allowed}");
    container.signal(Signal::SIGKILL);
    container.wait();
}

/// Streams of a process that nobody reads.
fn streams() -> [std::fs::File; 3] {
    [(); 3].map(|()| std::fs::File::options().read(true).write(true).open("/dev/null").unwrap())
}

/// What an exec in a container ends with.
fn exec(container: &Container<'_>, process: &Value) -> String {
    let fixture = container.fixture;
    let bundle: PathBuf = fixture.dir.path().join("bundles").join(&container.id);
    let verb = Verb::Exec(Box::new(ExecSpec { bundle, process: process.to_string() }));
    let streams = streams();
    let streams = streams.each_ref().map(std::os::fd::AsFd::as_fd);
    match fixture.send(&container.id, verb, &streams) {
        VerbReply::Failed { message } => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_exec_that_fails_names_the_program_or_the_folder() {
    let fixture = Fixture::new();
    // The processes of failed execs are this test's children, for which a pid namespace would wait.
    let container = fixture.native_with("exec", &["/bin/sleep", "1000"], |spec| {
        let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "pid");
    });
    let container = container.unwrap();
    container.start();
    eventually("sleep runs", || (container.status("Name") == "sleep").then_some(()));
    let process = |program: &str, cwd: &str| {
        json!({ "args": [program], "cwd": cwd, "user": { "uid": 0, "gid": 0 },
                "env": ["PATH=/usr/bin:/bin"] })
    };
    let missing = exec(&container, &process("/no/such", "/"));
    assert!(missing.contains("/no/such"), "{missing}");
    let folder = exec(&container, &process("/usr", "/"));
    assert!(folder.contains("/usr"), "{folder}");
    let cwd = exec(&container, &process("/bin/true", "/no/folder"));
    assert!(cwd.contains("process.cwd") && cwd.contains("/no/folder"), "{cwd}");
    let mut empty = process("", "/");
    empty["args"] = json!([]);
    let program = exec(&container, &empty);
    assert!(program.contains("process.args is empty"), "{program}");
    let mut labelled = process("/bin/true", "/");
    labelled["selinuxLabel"] = json!("a:b:c");
    let label = exec(&container, &labelled);
    assert!(label.contains("process.selinuxLabel"), "{label}");
    container.signal(Signal::SIGKILL);
    container.wait();
}
