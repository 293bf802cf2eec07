//! The fields of a specification that native containers have, with this runtime and with runc: the same program prints
//! the same. Fields that Debian's runc is too old for have an expected output instead.

use std::fs::{File, read_dir};
use std::process::{Command, Stdio};

use cwasi_testbed::paths::runc_dir;
use serde_json::{Value, json};

use crate::fixture::{Fixture, read};

/// A change of a specification.
type Change = fn(&mut Value);
/// A case: its id, what it changes, and the script that prints what came of it.
type Case = (&'static str, Change, &'static str);
/// The same, with what is expected of this runtime.
type Expected = (&'static str, Change, &'static str, &'static str);

/// Where the limits of a container are, in it.
const CGROUP: &str = "/sys/fs/cgroup";

/// What the script prints in a container of this runtime, and its exit code.
fn ours(fixture: &Fixture, id: &str, change: Change, script: &str) -> String {
    let mut container = fixture
        .native_with(id, &["/bin/sh", "-c", script], change)
        .unwrap_or_else(|error| panic!("{id}: {error}"));
    container.start();
    let code = container.wait();
    let output = container.output();
    container.delete();
    format!("{output}exit {code}\n")
}

/// The same with runc.
fn with_runc(fixture: &Fixture, id: &str, change: Change, script: &str) -> String {
    let id = format!("{id}-runc");
    let bundle = fixture.bundle(&id, &["/bin/sh", "-c", script], change);
    let output = Command::new(runc_dir().unwrap().join("runc"))
        .arg("--root")
        .arg(fixture.dir.path().join("runc"))
        .args(["run", "--bundle"])
        .args([bundle.as_os_str(), id.as_ref()])
        .stdin(Stdio::from(File::open("/dev/null").unwrap()))
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let code = output.status.code().unwrap_or(-1);
    let (text, errors) = (text.unwrap(), errors.unwrap());
    assert!(code < 100 && !text.is_empty(), "{id}: {errors}");
    format!("{text}exit {code}\n")
}

fn compare(cases: &[Case]) {
    let fixture = Fixture::new();
    let mut different = Vec::new();
    for (id, change, script) in cases {
        let (ours, runcs) =
            (ours(&fixture, id, *change, script), with_runc(&fixture, id, *change, script));
        if ours != runcs {
            different.push(format!("{id}\n--- cwasi\n{ours}--- runc\n{runcs}"));
        }
        // A script that prints nothing shows nothing.
        assert!(ours.lines().count() > 1, "{id}: {ours}");
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

fn expect(cases: &[Expected]) {
    let fixture = Fixture::new();
    for (id, change, script, expected) in cases {
        assert_eq!(ours(&fixture, id, *change, script), format!("{expected}\nexit 0\n"), "{id}");
    }
}

fn add_mount(spec: &mut Value, mount: Value) {
    spec["mounts"].as_array_mut().unwrap().push(mount);
}

#[test]
fn processes() {
    compare(&[
        (
            "user",
            |spec| {
                spec["process"]["user"] =
                    json!({ "uid": 1000, "gid": 1001, "additionalGids": [5, 7], "umask": 0o27 });
            },
            "id -u; id -g; id -G; umask",
        ),
        (
            "environment",
            |spec| {
                spec["process"]["env"] = json!(["PATH=/usr/bin:/bin", "A=b c", "EMPTY="]);
                spec["process"]["cwd"] = json!("/tmp");
            },
            "echo \"$A|$EMPTY|$HOME\"; pwd; exit 7",
        ),
        (
            "made-cwd",
            |spec| spec["process"]["cwd"] = json!("/made/for/it"),
            "pwd; stat -c '%a %u' /made",
        ),
        (
            "rlimits",
            |spec| {
                spec["process"]["rlimits"] = json!([
                    { "type": "RLIMIT_NOFILE", "soft": 77, "hard": 99 },
                    { "type": "RLIMIT_CORE", "soft": 0, "hard": 512 }
                ]);
            },
            "ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc",
        ),
        (
            "oom-score",
            |spec| spec["process"]["oomScoreAdj"] = json!(321),
            "cat /proc/self/oom_score_adj",
        ),
        (
            "capabilities",
            |spec| {
                let (one, two) = (json!(["CAP_KILL"]), json!(["CAP_KILL", "CAP_CHOWN"]));
                spec["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
                spec["process"]["capabilities"] = json!({
                    "bounding": two, "permitted": two, "effective": one, "inheritable": one, "ambient": one
                });
            },
            "grep ^Cap /proc/self/status",
        ),
        (
            "no-new-privileges",
            |spec| spec["process"]["noNewPrivileges"] = json!(true),
            "grep NoNewPrivs /proc/self/status",
        ),
        (
            "new-privileges",
            |spec| {
                spec["process"]["noNewPrivileges"] = json!(false);
                spec["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ALLOW" });
            },
            "grep NoNewPrivs /proc/self/status",
        ),
    ]);
}

/// Fields of newer versions of the specification.
#[test]
fn processes_of_newer_versions() {
    expect(&[
        (
            "io-priority",
            |spec| {
                spec["process"]["ioPriority"] =
                    json!({ "class": "IOPRIO_CLASS_BE", "priority": 6 });
            },
            "ionice -p $$",
            "best-effort: prio 6",
        ),
        (
            "scheduler",
            |spec| {
                spec["process"]["scheduler"] = json!({ "policy": "SCHED_BATCH", "nice": 5 });
            },
            "chrt -p $$ | head -1 | grep -o SCHED_BATCH; nice",
            "SCHED_BATCH\n5",
        ),
        (
            "domain",
            |spec| {
                spec["hostname"] = json!("host");
                spec["domainname"] = json!("domain");
            },
            "cat /proc/sys/kernel/domainname",
            "domain",
        ),
        (
            "personality",
            |spec| spec["linux"]["personality"] = json!({ "domain": "LINUX32" }),
            "uname -m | grep -q '^[ai]' && echo 32",
            "32",
        ),
        (
            "time",
            |spec| {
                let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
                namespaces.push(json!({ "type": "time" }));
                spec["linux"]["timeOffsets"] = json!({ "boottime": { "secs": 900_000_000 } });
            },
            "test $(cut -d. -f1 /proc/uptime) -gt 900000000 && echo later",
            "later",
        ),
        (
            "seccomp-flags",
            |spec| {
                spec["linux"]["seccomp"] = json!({
                    "defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_LOG"],
                    "syscalls": [{ "names": ["mkdir"], "action": "SCMP_ACT_ERRNO" }]
                });
            },
            "mkdir /tmp/x 2>/dev/null || echo refused",
            "refused",
        ),
        (
            "memory-policy",
            |spec| {
                spec["linux"]["memoryPolicy"] = json!({ "mode": "MPOL_BIND", "nodes": "0" });
            },
            "head -1 /proc/self/numa_maps | cut -d' ' -f2",
            "bind:0",
        ),
    ]);
}

#[test]
fn roots_and_mounts() {
    compare(&[
        (
            "read-only-root",
            |spec| spec["root"]["readonly"] = json!(true),
            "touch /new; echo $?; touch /run/new; echo $?",
        ),
        (
            "tmpfs",
            |spec| {
                let options = ["nosuid", "size=64k", "mode=1770"];
                let mount = json!({ "destination": "/x", "type": "tmpfs", "source": "tmpfs", "options": options });
                add_mount(spec, mount);
            },
            "stat -c %a /x; stat -f -c '%b %S' /x; grep ' /x ' /proc/self/mountinfo | cut -d' ' -f6",
        ),
        (
            "bind",
            |spec| {
                let options = ["rbind", "ro", "nosuid", "nodev", "noexec"];
                let mount = json!({ "destination": "/x/y", "type": "bind", "source": "/usr/bin", "options": options });
                add_mount(spec, mount);
                // Without a type: the options say it.
                let file = json!({ "destination": "/z", "source": "/etc/hostname", "options": ["bind"] });
                add_mount(spec, file);
            },
            "grep ' /x/y ' /proc/self/mountinfo | cut -d' ' -f6; /x/y/true 2>/dev/null; echo $?; cat /z; stat -c '%a' /x",
        ),
        (
            "masked",
            |spec| {
                spec["linux"]["maskedPaths"] = json!(["/proc/keys", "/sys/kernel", "/no/such"]);
            },
            "wc -c </proc/keys; ls /sys/kernel | wc -l",
        ),
        (
            "read-only-paths",
            |spec| spec["linux"]["readonlyPaths"] = json!(["/proc/sys", "/no/such"]),
            "echo 1 2>/dev/null >/proc/sys/kernel/msgmax; echo $?",
        ),
        (
            "devices",
            |spec| {
                spec["linux"]["devices"] = json!([
                    { "path": "/dev/mine", "type": "c", "major": 1, "minor": 5, "fileMode": 0o640, "uid": 7, "gid": 8 },
                    { "path": "/dev/pipe", "type": "p", "fileMode": 0o600 },
                    { "path": "/dev/a/b", "type": "b", "major": 7, "minor": 0 }
                ]);
            },
            "for name in /dev/mine /dev/pipe /dev/a /dev/a/b /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty; do
             stat -c '%n %F %a %u %g %t:%T' $name; done; readlink /dev/stdout /dev/fd /dev/ptmx",
        ),
    ]);
}

#[test]
fn namespaces_and_kernel_parameters() {
    compare(&[
        ("hostname", |spec| spec["hostname"] = json!("a-host"), "hostname"),
        (
            "sysctl",
            |spec| {
                spec["linux"]["sysctl"] =
                    json!({ "net.ipv4.ip_unprivileged_port_start": "77", "kernel.shmmni": "99" });
            },
            "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shmmni",
        ),
        (
            "cgroup-namespace",
            |spec| {
                let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
                namespaces.push(json!({ "type": "cgroup" }));
            },
            "cut -d: -f3 /proc/self/cgroup | sort -u | head -1",
        ),
        ("network", |_| {}, "cat /sys/class/net/lo/operstate; ls /sys/class/net; echo $$"),
        (
            "hosts-network",
            |spec| {
                let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
                namespaces.retain(|it| it["type"] != "network" && it["type"] != "ipc");
            },
            "readlink /proc/self/ns/net /proc/self/ns/ipc",
        ),
        (
            "seccomp",
            |spec| {
                spec["linux"]["seccomp"] = json!({
                    "defaultAction": "SCMP_ACT_ALLOW",
                    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
                    "syscalls": [
                        { "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28 },
                        { "names": ["kill"], "action": "SCMP_ACT_ERRNO",
                          "args": [{ "index": 1, "value": 10, "op": "SCMP_CMP_EQ" }] },
                        { "names": ["no_such_call"], "action": "SCMP_ACT_ERRNO" }
                    ]
                });
            },
            "mkdir /tmp/x 2>&1; kill -0 $$; echo $?; kill -USR1 $$ 2>/dev/null; echo $?",
        ),
    ]);
}

/// Shows a container its own cgroup.
fn with_cgroup(spec: &mut Value, resources: Value) {
    spec["mounts"].as_array_mut().unwrap().push(
        json!({ "destination": CGROUP, "type": "cgroup", "source": "cgroup", "options": ["ro"] }),
    );
    let resources = resources.as_object().unwrap().clone();
    spec["linux"]["resources"].as_object_mut().unwrap().extend(resources);
}

/// A disk of this machine, as every machine has one.
fn disk() -> (u64, u64) {
    let disks = read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path().join("dev"));
    let numbers = read(&disks.into_iter().next().unwrap());
    let (major, minor) = numbers.split_once(':').unwrap();
    (major.parse().unwrap(), minor.parse().unwrap())
}

#[test]
fn limits() {
    compare(&[
        (
            "memory",
            |spec| {
                let memory = json!({
                    "limit": 64 << 20, "reservation": 32 << 20, "swap": 96 << 20, "swappiness": 7,
                    "disableOOMKiller": true
                });
                with_cgroup(spec, json!({ "memory": memory }));
            },
            "cd /sys/fs/cgroup/memory; cat memory.limit_in_bytes memory.soft_limit_in_bytes memory.memsw.limit_in_bytes \
             memory.swappiness; head -1 memory.oom_control",
        ),
        (
            "processors",
            |spec| {
                let cpu = json!({
                    "shares": 512, "quota": 30_000, "period": 60_000, "cpus": "0", "mems": "0"
                });
                with_cgroup(spec, json!({ "cpu": cpu }));
            },
            "cd /sys/fs/cgroup; cat cpu/cpu.shares cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpuset/cpuset.cpus \
             cpuset/cpuset.mems",
        ),
        (
            "real-time",
            |spec| with_cgroup(spec, json!({ "cpu": { "realtimePeriod": 900_000 } })),
            "cat /sys/fs/cgroup/cpu/cpu.rt_period_us",
        ),
        (
            "pids",
            |spec| with_cgroup(spec, json!({ "pids": { "limit": 77 } })),
            "cat /sys/fs/cgroup/pids/pids.max",
        ),
    ]);
}

#[test]
fn limits_of_devices() {
    compare(&[
        (
            "throttled",
            |spec| {
                let (major, minor) = disk();
                let rate = json!([{ "major": major, "minor": minor, "rate": 123_456 }]);
                let block = json!({
                    "throttleReadBpsDevice": rate, "throttleWriteBpsDevice": rate,
                    "throttleReadIOPSDevice": rate, "throttleWriteIOPSDevice": rate
                });
                with_cgroup(spec, json!({ "blockIO": block }));
            },
            "cat /sys/fs/cgroup/blkio/blkio.throttle.*_device",
        ),
        (
            "device-rules",
            |spec| {
                let rules = json!([
                    { "allow": false, "access": "rwm" },
                    { "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw" }
                ]);
                with_cgroup(spec, json!({ "devices": rules }));
                spec["linux"]["devices"] =
                    json!([{ "path": "/dev/kmsg", "type": "c", "major": 1, "minor": 11 }]);
            },
            "grep -c 'c 10:229 rw' /sys/fs/cgroup/devices/devices.list; head -c1 /dev/kmsg 2>/dev/null; echo $?",
        ),
    ]);
}

#[test]
fn limits_of_newer_versions() {
    expect(&[
        (
            "kernel-tcp",
            |spec| with_cgroup(spec, json!({ "memory": { "kernelTCP": 16 << 20 } })),
            "cat /sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes",
            "16777216",
        ),
        (
            "idle",
            |spec| with_cgroup(spec, json!({ "cpu": { "idle": 1 } })),
            "cat /sys/fs/cgroup/cpu/cpu.idle",
            "1",
        ),
        (
            "burst",
            |spec| {
                let cpu = json!({ "quota": 30_000, "period": 60_000, "burst": 10_000 });
                with_cgroup(spec, json!({ "cpu": cpu }));
            },
            "cat /sys/fs/cgroup/cpu/cpu.cfs_burst_us",
            "10000",
        ),
    ]);
}

/// What is for other systems, or for kernels of the past, stops nobody.
#[test]
fn other_systems() {
    compare(&[(
        "others",
        |spec| {
            spec["process"]["commandLine"] = json!("cmd.exe");
            spec["process"]["user"]["username"] = json!("Administrator");
            spec["linux"]["resources"]["memory"] = json!({ "useHierarchy": true });
            spec["solaris"] = json!({ "milestone": "m" });
            spec["windows"] = json!({ "layerFolders": ["C:\\layer"] });
            spec["vm"] = json!({ "kernel": { "path": "/kernel" } });
            spec["zos"] = json!({ "namespaces": [] });
            spec["freebsd"] = json!({ "jail": { "host": "new" } });
        },
        "id -un; echo $0",
    )]);
}

/// What runc refuses is refused here, and in words.
#[test]
fn refusals() {
    let fixture = Fixture::new();
    let cases: [(&str, Change, &str); 6] = [
        (
            "hostname-of-host",
            |spec| {
                spec["hostname"] = json!("x");
                let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
                namespaces.retain(|it| it["type"] != "uts");
            },
            "hostname",
        ),
        (
            "hosts-sysctl",
            |spec| spec["linux"]["sysctl"] = json!({ "vm.swappiness": "1" }),
            "vm.swappiness",
        ),
        (
            "unified",
            |spec| {
                spec["linux"]["resources"]["unified"] = json!({ "memory.high": "1" });
            },
            "linux.resources.unified",
        ),
        ("label", |spec| spec["process"]["selinuxLabel"] = json!("a:b:c:d"), "SELinux"),
        ("root", |spec| spec["root"]["path"] = json!("no-such-folder"), "no-such-folder"),
        ("program", |spec| spec["process"]["args"] = json!([]), "args"),
    ];
    for (id, change, says) in cases {
        let Err(text) = fixture.native_with(id, &["/bin/true"], change) else {
            panic!("{id}: created")
        };
        assert!(text.contains(says), "{id}: {text}");
        let runc = format!("{id}-runc");
        let bundle = fixture.bundle(&runc, &["/bin/true"], change);
        let output = Command::new(runc_dir().unwrap().join("runc"))
            .arg("--root")
            .arg(fixture.dir.path().join("runc"))
            .args(["run", "--bundle"])
            .args([bundle.as_os_str(), runc.as_ref()])
            .output()
            .unwrap();
        assert!(!output.status.success(), "{id}: runc runs it");
    }
}

/// Runc, or a newer one, honours these: a sentence says that this runtime does not.
#[test]
fn limits_that_only_runc_has() {
    let fixture = Fixture::new();
    let (major, minor) = disk();
    let weight = json!([{ "major": major, "minor": minor, "weight": 500 }]);
    for (id, resources, says) in [
        ("rdma", json!({ "rdma": { "mlx5": { "hcaHandles": 1 } } }), "linux.resources.rdma"),
        ("weights", json!({ "blockIO": { "weightDevice": weight } }), "weightDevice"),
        ("leaf", json!({ "blockIO": { "leafWeight": 500 } }), "leafWeight"),
        ("check", json!({ "memory": { "checkBeforeUpdate": true } }), "checkBeforeUpdate"),
    ] {
        let made = fixture.native_with(id, &["/bin/true"], |spec| {
            let resources = resources.as_object().unwrap().clone();
            spec["linux"]["resources"].as_object_mut().unwrap().extend(resources);
        });
        let Err(text) = made else { panic!("{id}: created") };
        assert!(text.contains(says) && text.contains("cannot be honoured"), "{id}: {text}");
    }
    for (id, change, says) in [
        (
            "id-mapped",
            (|spec: &mut Value| {
                let map = json!([{ "containerID": 0, "hostID": 1000, "size": 9 }]);
                let mount = json!({
                    "destination": "/x", "type": "bind", "source": "/usr", "options": ["bind"],
                    "uidMappings": map, "gidMappings": map
                });
                add_mount(spec, mount);
            }) as Change,
            "idmapped mount",
        ),
        (
            "mappings",
            |spec| {
                let map = json!([{ "containerID": 0, "hostID": 0, "size": 9 }]);
                spec["linux"]["uidMappings"] = map.clone();
                spec["linux"]["gidMappings"] = map;
            },
            "mapping",
        ),
        (
            "personality-flags",
            |spec| {
                spec["linux"]["personality"] =
                    json!({ "domain": "LINUX", "flags": ["ADDR_NO_RANDOMIZE"] });
            },
            "personality flag",
        ),
    ] {
        let Err(text) = fixture.native_with(id, &["/bin/true"], change) else {
            panic!("{id}: created")
        };
        assert!(text.contains(says), "{id}: {text}");
    }
}
