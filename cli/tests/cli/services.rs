//! Services of a workflow on a real containerd: a real Redis, and functions that reach it over sockets.

use std::process::{Child, Stdio};

use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_testbed::scene::{BUSYBOX, wait_for};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use super::home::signal;
use super::scene::Stage;
use super::{stderr, stdout};

/// What a connection to a port without a server comes to: WASI's `CONNREFUSED`.
const REFUSED: &str = "errno 14";
/// What a destination comes to that `network` does not have: `ACCES`.
const DENIED: &str = "errno 2";

/// Fields of a busybox that listens nowhere, and ends when it is asked to.
const IDLE: &str = ", command: [sh, -c, 'echo last words; trap exit TERM; sleep 1000 & wait']";

/// A workflow file `w` of these services and functions.
fn workflow(stage: &Stage, services: &str, functions: &str) -> String {
    workflow_at(stage, "w.yaml", services, functions)
}

/// The same in a file of this name.
fn workflow_at(stage: &Stage, file: &str, services: &str, functions: &str) -> String {
    let path = stage.folder.path().join(file);
    let text = format!(
        "apiVersion: cwasi.dev/v1alpha1\nkind: Workflow\nmetadata: {{name: w}}\nspec:\n  services:\n{services}  \
         functions:\n{functions}"
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The service `cache`, with more fields.
fn cache(image: &str, more: &str) -> String {
    format!("    cache: {{image: '{image}', port: 6379{more}}}\n")
}

/// A function that does these orders (tests/guests/README.md), with more fields.
fn net(stage: &Stage, name: &str, orders: &[&str], more: &str) -> String {
    let orders: Vec<_> = orders.iter().map(|order| format!("'{order}'")).collect();
    let (module, orders) = (stage.guest("net"), orders.join(", "));
    format!("    {name}: {{module: {module}, args: [{orders}], uses: [cache]{more}}}\n")
}

/// Container, role and status of each row of `ps`.
fn ps(stage: &Stage) -> Vec<[String; 3]> {
    let rows: Value = serde_json::from_str(&stage.ok(&["ps", "--json"])).unwrap();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| ["container", "role", "status"].map(|key| text(row, key))).collect()
}

#[test]
fn a_run_starts_a_service_before_its_user_and_takes_it_down() {
    for (containerd, version) in [
        (ContainerdVersion::V1_6, RedisVersion::Redis7),
        (ContainerdVersion::V1_7, RedisVersion::Valkey8),
        (ContainerdVersion::V2, RedisVersion::Redis7),
    ] {
        let stage = Stage::on(containerd, "cli-services-run");
        let image = stage.scene.import_redis(version);
        let client = if version == RedisVersion::Redis7 { "redis-cli" } else { "valkey-cli" };
        let health = format!(", health: {{command: [{client}, ping]}}");
        let orders = [
            "redis=SET colour blue",
            "redis=GET colour",
            "env=CACHE_SERVICE_HOST",
            "env=CACHE_SERVICE_PORT",
            "tcp=127.0.0.1:6380",
        ];
        let file = workflow(&stage, &cache(&image, &health), &net(&stage, "user", &orders, ""));
        let output = stage.cwasi().args(["run", &file]).output().unwrap();
        let expected = [
            "redis=SET colour blue -> +OK",
            "redis=GET colour -> $4 blue",
            "env=CACHE_SERVICE_HOST -> 127.0.0.1",
            "env=CACHE_SERVICE_PORT -> 6379",
            &format!("tcp=127.0.0.1:6380 -> {DENIED}"),
        ];
        let text = stderr(&output);
        assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), expected, "{text}");
        assert!(text.contains("w.cache: starting") && text.contains("w.cache: ready"), "{text}");
        assert_eq!(stage.containers(), [""; 0]);
    }
}

#[test]
fn a_deployed_service_stays_as_long_as_a_user() {
    let stage = Stage::new("cli-services-deploy");
    let image = stage.scene.import_redis(RedisVersion::Redis7);
    let services = cache(&image, "")
        + &format!(
            "    second: {{image: '{image}', port: 7000, args: [redis-server, --port, '7000']}}\n"
        );
    let orders = ["redis=INCR count", "tcp=127.0.0.1:7000"];
    let functions = net(&stage, "one", &orders, ", role: secondary")
        + &net(&stage, "two", &["redis=INCR count"], ", role: secondary")
            .replace("[cache]", "[cache, second]")
        + &net(&stage, "user", &["redis=GET count"], "");
    let file = workflow(&stage, &services, &functions);
    let started = "w.cache started\nw.second started\nw.one started\nw.two started\n";
    assert_eq!(stage.ok(&["deploy", &file]), started);
    assert_eq!(stage.ok(&["deploy", &file]), started.replace("started", "unchanged"));
    let running = |id: &str, role: &str| [id.to_owned(), role.to_owned(), "RUNNING".to_owned()];
    let rows = [
        running("w.cache", "service"),
        running("w.one", "secondary"),
        running("w.second", "service"),
        running("w.two", "secondary"),
    ];
    assert_eq!(ps(&stage), rows);
    // All of them have one network, and a function reaches its own services only.
    let network = |id: &str| {
        let pid = stage.scene.pid(id);
        std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap()
    };
    let networks = rows.each_ref().map(|[id, ..]| network(id));
    assert!(networks.iter().all(|other| *other == networks[0]), "{networks:?}");
    assert_ne!(networks[0], std::fs::read_link("/proc/self/ns/net").unwrap());
    let said = format!("redis=INCR count -> :1\ntcp=127.0.0.1:7000 -> {DENIED}\n");
    assert_eq!(stage.ok(&["invoke", "one"]), said);
    assert_eq!(stage.ok(&["invoke", "two"]), "redis=INCR count -> :2\n");
    // A run uses what is deployed, and leaves it.
    assert_eq!(stage.ok(&["run", &file]), "redis=GET count -> $1 2\n");
    assert_eq!(ps(&stage), rows);
    let log = stage.ok(&["logs", "cache"]);
    assert!(log.contains("Ready to accept connections"), "{log}");
    // `scale` starts further containers in the same network.
    stage.ok(&["scale", "one", "2"]);
    assert_eq!(network("w.one.2"), networks[0]);
    // A service goes with the last container that uses it.
    assert_eq!(stage.ok(&["rm", "two"]), "w.two\nw.second\n");
    assert_eq!(stage.ok(&["rm", "w.one"]), "w.one\n");
    assert_eq!(stage.ok(&["rm", "w.one.2"]), "w.one.2\nw.cache\n");
    assert_eq!(stage.containers(), [""; 0]);
    // The file has no user of `second` any more, then none at all.
    stage.ok(&["deploy", &file]);
    let one = net(&stage, "one", &orders, ", role: secondary");
    let file = workflow(&stage, &services, &one);
    let said = "w.cache unchanged\nw.one unchanged\nw.two removed\nw.second removed\n";
    assert_eq!(stage.ok(&["deploy", &file]), said);
    let said = stage.ok(&["rm", "--workflow", "w"]);
    assert_eq!(said, "w.one\nw.cache\n");
    assert_eq!(stage.containers(), [""; 0]);
}

#[test]
fn a_killed_service_is_its_users_error_until_it_is_deployed_again() {
    let stage = Stage::new("cli-services-kill");
    let image = stage.scene.import_redis(RedisVersion::Redis7);
    let functions = net(&stage, "one", &["redis=INCR count"], ", role: secondary");
    let file = workflow(&stage, &cache(&image, ""), &functions);
    stage.ok(&["deploy", &file]);
    assert_eq!(stage.ok(&["invoke", "one"]), "redis=INCR count -> :1\n");
    nix::sys::signal::kill(Pid::from_raw(stage.scene.pid("w.cache")), Signal::SIGKILL).unwrap();
    stage.scene.wait_stopped("w.cache");
    assert_eq!(ps(&stage)[0], ["w.cache", "service", "STOPPED (137)"]);
    assert_eq!(stage.ok(&["invoke", "one"]), format!("redis=INCR count -> {REFUSED}\n"));
    // The function goes on in its network, which the new container enters.
    let pid = stage.scene.pid("w.one");
    assert_eq!(stage.ok(&["deploy", &file]), "w.cache started\nw.one unchanged\n");
    assert_eq!(stage.scene.pid("w.one"), pid);
    assert_eq!(stage.ok(&["invoke", "one"]), "redis=INCR count -> :1\n");
    // A changed service is another container, in the same network.
    let file = workflow(&stage, &cache(&image, ", env: {A: b}"), &functions);
    assert_eq!(stage.ok(&["deploy", &file]), "w.cache started\nw.one unchanged\n");
    assert_eq!(stage.ok(&["invoke", "one"]), "redis=INCR count -> :1\n");
    // And a changed function comes into the network of the service.
    let functions = net(&stage, "one", &["redis=INCR count"], ", role: secondary, queue: 3");
    let file = workflow(&stage, &cache(&image, ", env: {A: b}"), &functions);
    assert_eq!(stage.ok(&["deploy", &file]), "w.cache unchanged\nw.one started\n");
    assert_eq!(stage.ok(&["invoke", "one"]), "redis=INCR count -> :2\n");
    let primary = net(&stage, "two", &["redis=PING"], "");
    let file = workflow(&stage, &cache(&image, ", env: {A: c}"), &primary);
    let refused = stage.fails(70, &["run", &file]);
    assert!(refused.contains("w.cache runs otherwise than the file says"), "{refused}");
    stage.ok(&["rm", "--workflow", "w"]);
}

#[test]
fn storage_stays_until_the_workflow_is_removed() {
    let stage = Stage::new("cli-services-storage");
    let image = stage.scene.import_redis(RedisVersion::Redis7);
    let more = ", args: [redis-server, --dir, /data, --appendonly, 'yes'], storage: {path: /data, size: 1Gi}";
    let services = cache(&image, more);
    let file = workflow(&stage, &services, &net(&stage, "user", &["redis=INCR count"], ""));
    assert_eq!(stage.ok(&["run", &file]), "redis=INCR count -> :1\n");
    assert_eq!(stage.containers(), [""; 0]);
    assert_eq!(stage.ok(&["run", &file]), "redis=INCR count -> :2\n");
    let removed = stage.ok(&["rm", "--workflow", "w"]);
    assert!(
        removed.trim_end().ends_with(&format!("services/{}/w", stage.scene.namespace)),
        "{removed}"
    );
    let none = stage.fails(66, &["rm", "--workflow", "w"]);
    assert!(none.contains("has no container of workflow w"), "{none}");
    assert_eq!(stage.ok(&["run", &file]), "redis=INCR count -> :1\n");
    // The last user's removal leaves it, and naming the service does not.
    let functions = net(&stage, "one", &["redis=INCR count"], ", role: secondary");
    let file = workflow(&stage, &services, &functions);
    stage.ok(&["deploy", &file]);
    assert_eq!(stage.ok(&["rm", "one"]), "w.one\nw.cache\n");
    stage.ok(&["deploy", &file]);
    assert_eq!(stage.ok(&["invoke", "one"]), "redis=INCR count -> :2\n");
    let removed: Value =
        serde_json::from_str(&stage.ok(&["rm", "--json", "one", "cache"])).unwrap();
    let keys: Vec<_> =
        removed.as_array().unwrap().iter().map(|it| it["container"].as_str()).collect();
    assert_eq!(keys, [Some("w.one"), Some("w.cache"), None], "{removed}");
    assert!(removed[2]["storage"].as_str().unwrap().ends_with("/w/cache"), "{removed}");
}

#[test]
fn a_service_that_is_not_ready_says_why_and_leaves_nothing() {
    let stage = Stage::new("cli-services-unhealthy");
    stage.scene.import_busybox();
    let image = stage.scene.import_redis(RedisVersion::Redis7);
    let user = net(&stage, "user", &["redis=PING"], "");
    let busybox = |more: &str| cache(BUSYBOX, more);
    let within = |check: &str, timeout: &str| {
        busybox(&format!("{IDLE}, health: {{{check}timeout: {timeout}}}"))
    };
    let unready = |check: &str| within(check, "2s");
    for (services, code, parts) in [
        (
            unready(""),
            70,
            &["service cache is not ready after 2 s: port 6379: Connection refused", "last words"]
                [..],
        ),
        (
            busybox(", command: [sh, -c, 'echo last words; sleep 1; exit 3']"),
            70,
            &["service cache ended with code 3 before it was ready", "last words"],
        ),
        // Time enough for one check to end.
        (
            within("command: ['false'], ", "10s"),
            70,
            &["not ready after 10 s: `false` ended with code 1"],
        ),
        (unready("command: [sleep, '1000'], "), 70, &["2 s: `sleep 1000` took longer than"]),
        (unready("command: [nothing], "), 70, &["service cache is not ready after 2 s: `nothing`"]),
        (
            cache(&image, ", health: {http: /healthz, timeout: 5s}"),
            70,
            &["service cache is not ready after 5 s: GET /healthz on port 6379"],
        ),
        (busybox(", command: [nothing]"), 70, &["w.cache cannot be started", "nothing"]),
        (
            cache("localhost/none:1", ""),
            66,
            &["service cache: image localhost/none:1 is not in containerd's"],
        ),
    ] {
        let file = workflow(&stage, &services, &user);
        let said = stage.fails(code, &["run", &file]);
        for part in parts {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
        assert_eq!(stage.containers(), [""; 0], "{said}");
    }
    let missing =
        stage.ok_or(1, &["lint", &workflow(&stage, &cache("localhost/none:1", ""), &user)]);
    assert!(missing.contains("cache: image localhost/none:1 is not in containerd's"), "{missing}");
}

#[test]
fn an_interrupted_start_of_a_service_leaves_nothing() {
    let stage = Stage::new("cli-services-interrupted");
    stage.scene.import_busybox();
    let services = cache(BUSYBOX, IDLE);
    let file = workflow(&stage, &services, &net(&stage, "user", &["redis=PING"], ""));
    for verb in ["run", "deploy"] {
        let role = if verb == "deploy" { ", role: secondary" } else { "" };
        let file = if verb == "deploy" {
            workflow(&stage, &services, &net(&stage, "user", &["redis=PING"], role))
        } else {
            file.clone()
        };
        let command = stage.cwasi().args([verb, &file]).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("a service that is waited for", || {
            (stage.scene.status("w.cache").as_deref() == Some("RUNNING")).then_some(())
        });
        signal(&command, Signal::SIGINT);
        let output = command.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert_eq!(stage.containers(), [""; 0]);
    }
}

/// Starts a command; its end is the caller's.
fn begin(stage: &Stage, arguments: &[&str]) -> Child {
    stage.cwasi().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait_running(stage: &Stage, id: &str) {
    wait_for(id, || (stage.scene.status(id).as_deref() == Some("RUNNING")).then_some(()));
}

#[test]
fn a_service_outlives_the_run_that_started_it_while_others_use_it() {
    let stage = Stage::new("cli-services-shared");
    let services = cache(&stage.scene.import_redis(RedisVersion::Redis7), "");
    let probe = stage.guest("probe");
    let run = |name: &str| {
        let endless = format!(
            "    {name}: {{module: {probe}, args: [say-then, hello, block], uses: [cache]}}\n"
        );
        let file = workflow_at(&stage, &format!("{name}.yaml"), &services, &endless);
        let command = begin(&stage, &["run", &file]);
        wait_running(&stage, &format!("w.{name}"));
        command
    };
    let interrupt = |command: Child| {
        signal(&command, Signal::SIGINT);
        let output = command.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        assert_eq!(stage.scene.status("w.cache").as_deref(), Some("RUNNING"));
    };
    let (first, second) = (run("a"), run("b"));
    let pid = stage.scene.pid("w.cache");
    interrupt(first);
    assert_eq!(stage.scene.status("w.a"), None);
    // A function that is deployed meanwhile uses it, too.
    let one = net(&stage, "one", &["redis=INCR count"], ", role: secondary");
    let file = workflow(&stage, &services, &one);
    assert_eq!(stage.ok(&["deploy", &file]), "w.cache unchanged\nw.one started\n");
    interrupt(second);
    assert_eq!(stage.scene.pid("w.cache"), pid);
    assert_eq!(stage.ok(&["invoke", "one"]), "redis=INCR count -> :1\n");
    assert_eq!(stage.ok(&["rm", "one"]), "w.one\nw.cache\n");
    assert_eq!(stage.containers(), [""; 0]);
}

#[test]
fn a_service_that_a_command_waits_for_is_removed_when_that_command_is_gone() {
    let stage = Stage::new("cli-services-waiting");
    stage.scene.import_busybox();
    let services = cache(BUSYBOX, &format!("{IDLE}, health: {{command: [ls, /ready]}}"));
    let user = net(&stage, "user", &["env=CACHE_SERVICE_PORT"], "");
    let run_file = workflow_at(&stage, "run.yaml", &services, &user);
    let other = format!("    other: {{module: {}, role: secondary}}\n", stage.guest("greeter"));
    let file = workflow(&stage, &services, &other);
    let run = begin(&stage, &["run", &run_file]);
    wait_running(&stage, "w.cache");
    // No container names the service yet.
    assert_eq!(stage.ok(&["deploy", &file]), "w.other started\n");
    assert_eq!(stage.ok(&["rm", "other"]), "w.other\n");
    assert_eq!(stage.scene.status("w.cache").as_deref(), Some("RUNNING"));
    std::fs::write(format!("/proc/{}/root/ready", stage.scene.pid("w.cache")), "").unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "env=CACHE_SERVICE_PORT -> 6379\n", "{}", stderr(&output));
    assert_eq!(stage.containers(), [""; 0]);
    let mut run = begin(&stage, &["run", &run_file]);
    wait_running(&stage, "w.cache");
    run.kill().unwrap();
    run.wait().unwrap();
    assert_eq!(stage.ok(&["deploy", &file]), "w.other started\nw.cache removed\n");
    stage.ok(&["rm", "other"]);
    assert_eq!(stage.containers(), [""; 0]);
}

#[test]
fn a_service_that_runs_elsewhere_is_not_started() {
    let stage = Stage::new("cli-services-external");
    let redis = Redis::start(RedisVersion::Redis7);
    let services = cache("localhost/none:1", "");
    let function = net(&stage, "user", &["redis=SET a b", "redis=GET a"], "");
    let file = workflow(&stage, &services, &function);
    let address = format!("cache={}", redis.address());
    let said = "redis=SET a b -> +OK\nredis=GET a -> $1 b\n";
    assert_eq!(stage.ok(&["run", "--local", "--service", &address, &file]), said);
    let refused = stage.fails(65, &["run", "--local", &file]);
    let part = "service cache: --local starts no containers: name the address of one that runs with --service cache=HOST:PORT";
    assert!(refused.contains(part), "{refused}");
    // In a container it needs the node's network.
    let refused = stage.fails(65, &["run", "--service", &address, &file]);
    assert!(refused.contains("set spec.functions.user.hostNetwork: true"), "{refused}");
    let set = ["--set", "spec.functions.user.hostNetwork=true"];
    let arguments = ["run", "--service", &address, &file];
    assert_eq!(stage.ok(&[&arguments[..], &set].concat()), said);
    assert_eq!(redis.cli(&["GET", "a"]), "b");
    let wrong = stage.fails(65, &["run", "--service", "cach=db:1", &file]);
    assert!(
        wrong.contains("--service cach: spec.services has no `cach`; did you mean `cache`?"),
        "{wrong}"
    );
    let wrong = stage.fails(2, &["run", "--service", "cache=db", &file]);
    assert!(wrong.contains("db is not an address such as db.example:5432"), "{wrong}");
}

#[test]
fn a_service_of_the_nodes_network_is_reached_there() {
    let stage = Stage::new("cli-services-host");
    let image = stage.scene.import_redis(RedisVersion::Redis7);
    let port = Redis::start(RedisVersion::Redis7).port().to_string();
    let args = format!(", hostNetwork: true, args: [redis-server, --port, '{port}', --save, '']");
    let services = cache(&image, &args).replace("6379", &port);
    let function = net(&stage, "user", &["redis=PING"], ", hostNetwork: true");
    let file = workflow(&stage, &services, &function);
    assert_eq!(stage.ok(&["run", &file]), "redis=PING -> +PONG\n");
}
