//! End to end: functions that run for entries of a Redis stream and for messages of a channel, which other programs add
//! and publish.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, wait_for};

use crate::SHIM;

/// A Redis, a scene whose shims use it, and a folder in which the function notes what ran.
struct Fixture {
    redis: Redis,
    scene: Scene,
    log: tempfile::TempDir,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let log = tempfile::tempdir().unwrap();
        fs::set_permissions(log.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (redis, scene) = (Redis::start(RedisVersion::Redis7), Scene::new(SHIM, name));
        Self { redis, scene, log }
    }

    fn url(&self) -> String {
        format!("redis_url = {:?}\nlink = \"redis\"", self.redis.url())
    }

    /// Name of a stream or channel of the scene's namespace.
    fn name(&self, name: &str) -> String {
        format!("{}:{name}", self.scene.namespace)
    }

    fn function(&self, triggers: &str) -> Run {
        self.scene
            .guest("worker", "server")
            .annotation("cwasi.role", "secondary")
            .annotation("cwasi.function", "worker")
            .annotation("cwasi.triggers", triggers)
            .mount(self.log.path(), "/log", "rw")
    }

    fn add(&self, stream: &str, payload: &str) {
        self.redis.cli(&["XADD", stream, "*", "payload", payload]);
    }

    /// The numbers that ran, in order.
    fn ran(&self) -> Vec<String> {
        let text = fs::read_to_string(self.log.path().join("executed")).unwrap_or_default();
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    fn wait_ran(&self, numbers: &[&str]) {
        wait_for(&format!("{numbers:?} to run"), || {
            let mut ran = self.ran();
            ran.sort();
            (ran == numbers).then_some(())
        });
    }

    fn pending(&self, stream: &str) -> String {
        let group = format!("cwasi:{}/worker", self.scene.namespace);
        let summary = self.redis.cli(&["XPENDING", stream, &group]);
        summary.lines().next().unwrap_or_default().to_owned()
    }

    fn wait_pending(&self, stream: &str, count: &str) {
        let is = || (self.pending(stream) == count).then_some(());
        wait_for(&format!("{count} pending entries"), is);
    }

    /// Starts a function that has to be refused; what the user reads.
    fn refused(&self, triggers: &str) -> String {
        let outcome = self.function(triggers).detach(&self.scene.containerd).unwrap();
        assert_ne!(outcome.code, 0, "{}", outcome.text());
        // A start that failed ends the task that was created for it.
        wait_for("the task's end", || {
            let status = self.scene.status("worker");
            status.is_none_or(|status| status == "STOPPED").then_some(())
        });
        self.scene.remove("worker");
        outcome.stderr
    }
}

#[test]
fn an_entry_and_a_message_run_a_function_once() {
    let fixture = Fixture::new("trigger");
    fixture.scene.settings(&fixture.url());
    let (stream, channel) = (fixture.name("orders"), fixture.name("alarms"));
    let triggers = format!("redis-stream:{stream},redis-channel:{channel}");
    fixture.scene.start(fixture.function(&triggers));
    fixture.add(&stream, "!record 1");
    fixture.wait_ran(&["1"]);
    wait_for("a listener", || {
        (fixture.redis.cli(&["PUBLISH", &channel, "!record 2"]) == "1").then_some(())
    });
    fixture.wait_ran(&["1", "2"]);
    fixture.wait_pending(&stream, "0");
    assert_eq!(fixture.redis.cli(&["XLEN", &stream]), "1", "the entry is its owner's");
    assert_eq!(fixture.ran().len(), 2);
    fixture.scene.remove_containers();
}

#[test]
fn entries_of_a_killed_instance_are_handled_by_the_next() {
    let fixture = Fixture::new("trigger-kill");
    fixture.scene.settings(&fixture.url());
    let stream = fixture.name("orders");
    let function = || fixture.function(&format!("redis-stream:{stream}"));
    fixture.scene.start(function());
    (0..4).for_each(|_| fixture.add(&stream, "!sleep 1500"));
    ["1", "2", "3"].iter().for_each(|number| fixture.add(&stream, &format!("!record {number}")));
    fixture.wait_pending(&stream, "4");
    fixture.scene.kill("worker", "SIGKILL");
    fixture.scene.wait_stopped("worker");
    fixture.scene.remove("worker");
    assert_ne!(fixture.pending(&stream), "0");
    fixture.scene.start(function());
    fixture.wait_ran(&["1", "2", "3"]);
    fixture.wait_pending(&stream, "0");
    fixture.scene.remove_containers();
}

#[test]
fn triggers_that_a_node_does_not_have_are_refused() {
    let fixture = Fixture::new("trigger-none");
    let (own, foreign) = (fixture.name("orders"), "bank:orders");
    let none = fixture.refused(&format!("redis-stream:{own}"));
    assert!(none.contains("needs a Redis") && none.contains("redis_url"), "{none}");
    let namespace = &fixture.scene.namespace;
    let entry = format!("[triggers] redis = [\"{namespace}/{foreign}\"]");
    {
        fixture.scene.settings(&fixture.url());
        let refused = fixture.refused(&format!("redis-stream:{foreign}"));
        assert!(refused.contains(&format!("begin with `{namespace}:`")), "{refused}");
        assert!(refused.contains(&entry), "{refused}");
        let ours = fixture.refused("redis-stream:cwasi:ev:0123456789abcdef");
        assert!(ours.contains("the runtime's own"), "{ours}");
        fixture.redis.cli(&["SET", &own, "a text"]);
        let text = fixture.refused(&format!("redis-stream:{own}"));
        assert!(text.contains("WRONGTYPE"), "{text}");
    }
    let allowed = format!("{}\n[triggers]\nredis = [\"{namespace}/{foreign}\"]", fixture.url());
    fixture.scene.settings(&allowed);
    fixture.scene.start(fixture.function(&format!("redis-stream:{foreign}")));
    fixture.add(foreign, "!record 1");
    fixture.wait_ran(&["1"]);
    fixture.scene.remove_containers();
}

/// A trigger is a caller of the metrics.
#[test]
fn triggers_are_counted() {
    let fixture = Fixture::new("trigger-count");
    fixture.scene.settings(&format!("{}\n[traces]\nsample = 1.0", fixture.url()));
    let stream = fixture.name("orders");
    fixture.scene.start(fixture.function(&format!("redis-stream:{stream}")));
    fixture.add(&stream, "!record 1");
    fixture.wait_ran(&["1"]);
    let groups = fixture.scene.node.state().join("g");
    let caller = format!("redis-stream:{stream}");
    let mentions = |file: &str| {
        let entries = fs::read_dir(&groups).into_iter().flatten().flatten();
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        entries.map(|entry| read(&entry.path().join(file))).any(|text| text.contains(&caller))
    };
    for file in ["edges.json", "spans.jsonl"] {
        wait_for(&format!("the trigger in {file}"), || mentions(file).then_some(()));
    }
    fixture.scene.remove_containers();
}
