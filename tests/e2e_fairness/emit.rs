//! Messages for functions that do not exist, in the Redis of all tenants.

use cwasi_testbed::redis::{Kind, Redis};

use crate::neighbour::Neighbour;
use crate::scene;

/// Bytes of a message; the command line has room for so many.
const SIZE: usize = 100_000;
const MESSAGES: usize = 15;
/// Runs that fill a sender's half of the quota, and more.
const RUNS_MAX: usize = 5;
/// Bytes that Redis has: the quota fits several times, unbounded messages would not.
const MEMORY: &str = "16mb";

#[test]
fn messages_for_nobody_leave_redis_to_others() {
    let redis = Redis::start(Kind::Redis7);
    redis.cli(&["CONFIG", "SET", "maxmemory", MEMORY]);
    let scene = scene("fair-emit");
    let messages = "[messages]\nwaiting_max = \"4MiB\"";
    let _settings = scene.settings(&format!("redis_url = {:?}\n{messages}", redis.url()));
    let neighbour = Neighbour::beside(&scene);
    let payload = "x".repeat(SIZE);
    let mut refused = 0;
    for run in 0..RUNS_MAX {
        let target = format!("nobody-{run}");
        let args = ["emit", &target].into_iter().chain([payload.as_str(); MESSAGES]);
        let flood = scene.guest(&format!("flood-{run}"), "probe").args(args);
        let outcome = scene.run(flood).success();
        refused += outcome.text().lines().filter(|line| line.starts_with("overloaded: ")).count();
    }
    assert!(refused > 0, "nothing was refused");
    neighbour.emits();
    neighbour.calls(3);
    let info = redis.cli(&["INFO", "stats"]);
    assert!(info.contains("evicted_keys:0"), "{info}");
    scene.remove_containers();
}
