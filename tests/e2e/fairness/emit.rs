//! Messages for functions that do not exist, in the Redis of all tenants.

use cwasi_testbed::redis::{Redis, RedisVersion};

use super::neighbour::Neighbour;
use crate::scene;

/// Messages of a run, and their bytes: far more than Redis has.
const MESSAGES: u32 = 400;
const SIZE: u32 = 100_000;
/// Bytes that Redis has: the quota fits several times, unbounded messages would not.
const MEMORY: &str = "16mb";

#[test]
fn undeliverable_messages_leave_redis_to_others() {
    let redis = Redis::start(RedisVersion::Redis7);
    redis.cli(&["CONFIG", "SET", "maxmemory", MEMORY]);
    let scene = scene("fair-emit");
    let messages = "[messages]\nwaiting_max = \"4MiB\"";
    scene.settings(&format!("redis_url = {:?}\nlink = \"redis\"\n{messages}", redis.url()));
    let neighbour = Neighbour::beside(&scene);
    let args = ["emit-sized", "nobody", &MESSAGES.to_string(), &SIZE.to_string()];
    let outcome = scene.run(scene.guest("flood", "probe").args(args)).success();
    let ends = outcome.text();
    assert!(ends.starts_with("ok ") && ends.contains("\noverloaded "), "{ends}");
    assert_eq!(ends.lines().count(), 2, "{ends}");
    neighbour.emits();
    neighbour.calls(3);
    let info = redis.cli(&["INFO", "stats"]);
    assert!(info.contains("evicted_keys:0"), "{info}");
    scene.remove_containers();
}
