//! `/async-function`: messages by way of a real Redis, to a function of this node and of another.

use std::collections::BTreeSet;

use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::redis::Redis;
use cwasi_testbed::scene::{Scene, wait_for};

use crate::client::ask;
use crate::{Gateway, exposed, shim};

/// Waits until every function's stream is empty.
fn drained(redis: &Redis) {
    let cli = |args: &[&str]| {
        redis.cli(&[&["-a", "secret-of-the-nodes", "--no-auth-warning"], args].concat())
    };
    wait_for("the messages to be handled", || {
        let keys = cli(&["KEYS", "cwasi:*"]);
        let streams = keys.lines().filter(|key| cli(&["TYPE", key]).contains("stream"));
        let mut lengths = streams.map(|key| cli(&["XLEN", key])).peekable();
        (lengths.peek().is_some() && lengths.all(|length| length.trim() == "0")).then_some(())
    });
}

/// One instance that remembers how often it was called.
fn counter(scene: &Scene, id: &str) {
    let run = exposed(scene, id, "server", &[]).annotation("cwasi.concurrency", "1");
    scene.start(run.annotation("cwasi.isolation", "instance"));
}

#[test]
fn a_message_is_handled_once_and_without_redis_it_is_refused() {
    let mut nodes = Nodes::new(shim().to_str().unwrap(), "gw-async");
    counter(&nodes.edge, "here");
    counter(&nodes.cloud, "there");
    let more = format!("redis_url = \"{}\"\n", nodes.redis_url());
    let gateway = Gateway::configured(&nodes.edge, &more, &["--timeout", "3"]);
    let to = gateway.address;
    let mut ids = BTreeSet::new();
    for function in ["here", "here", "here", "there"] {
        let stored = ask(to, "POST", &format!("/async-function/{function}/path"), b"message");
        assert_eq!(stored.status.as_u16(), 202, "{}", stored.text());
        ids.insert(stored.header("x-call-id").to_owned());
    }
    assert!(ids.len() == 4 && ids.iter().all(|id| id.len() == 32), "{ids:?}");
    drained(&nodes.redis);
    // Each once, and this one.
    assert_eq!(ask(to, "POST", "/function/here", b"!served").text(), "4");
    assert_eq!(ask(to, "POST", "/function/there", b"!served").text(), "2");
    assert_eq!(ask(to, "POST", "/async-function/nobody", b"x").status.as_u16(), 404);
    let long = vec![0; (1 << 20) + 1];
    assert_eq!(ask(to, "POST", "/async-function/here", &long).status.as_u16(), 413);
    nodes.redis.stop();
    let away = ask(to, "POST", "/async-function/here", b"x");
    assert_eq!(away.status.as_u16(), 503, "{}", away.text());
    assert_eq!((away.header("cwasi-errno"), away.header("retry-after")), ("unreachable", "1"));
    assert!(away.text().contains("try again later"), "{}", away.text());
    assert_eq!(ask(to, "POST", "/function/here", b"!served").text(), "5", "calls go on");
    gateway.stop();
}
