//! Passwords, ACL users and TLS, with servers that demand them.

use std::fs;

use cwasi_modes::CallError;
use cwasi_networked::{RedisLink, RedisTarget};
use cwasi_testbed::redis::{Redis, RedisVersion, Setup};

use crate::fixture::{Executions, Instance, Node, PATIENCE, reactor, wait_for};

fn answers(target: &RedisTarget) {
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    let there = Node::start("there", target);
    there.serve(&instance);
    let (_here, mut worker) = Node::start("here", target).caller_kept();
    assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()));
    let large = vec![7; 3 << 20];
    assert_eq!(worker.call(&large, PATIENCE), Ok(large));
    there.emit(b"message", PATIENCE).unwrap();
    let handled = || executions.lock().unwrap().iter().any(|(_, payload)| payload == b"message");
    wait_for("the message to be handled", handled);
}

#[test]
fn an_acl_user_with_our_keys_and_channels_alone_is_enough() {
    for kind in [RedisVersion::Redis7, RedisVersion::Valkey8] {
        let rules = "on >s3cret ~cwasi:* &cwasi:* -@all +@connection +@pubsub +@read +@write +@stream +@keyspace +@transaction -@dangerous";
        let args = ["--user", "cwasi", rules, "--user", "default", "off"];
        let args = args.iter().flat_map(|arg| arg.split(' ')).map(str::to_owned).collect();
        let redis = Redis::start(Setup { args, ..Setup::from(kind) });
        answers(&RedisTarget { url: redis.url_for("cwasi:s3cret@"), ca: None });
        let wrong = RedisTarget { url: redis.url_for("cwasi:wr0ng@"), ca: None };
        let (_node, mut worker) = Node::start("wrong", &wrong).caller_kept();
        let Err(CallError::Unreachable { cause, .. }) = worker.call(b"x", PATIENCE) else {
            panic!("a wrong password was taken")
        };
        let text = cause.to_string();
        assert!(text.contains("Redis is away") && !text.contains("wr0ng"), "{text}");
    }
}

#[test]
fn a_server_with_tls_is_verified_by_the_configured_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Some((certificate.clone(), key));
    let redis = Redis::start(Setup { tls, ..Setup::from(RedisVersion::Redis7) });
    assert!(redis.url().starts_with("rediss://"));
    answers(&RedisTarget { url: redis.url(), ca: Some(certificate) });
    // The system's certificates do not know it.
    let unknown = RedisTarget { url: redis.url(), ca: None };
    let (_node, mut worker) = Node::start("unknown", &unknown).caller_kept();
    let ended = worker.call(b"x", PATIENCE);
    assert!(matches!(ended, Err(CallError::Unreachable { .. })), "{ended:?}");
}

#[test]
fn a_configuration_that_cannot_work_is_refused_without_quoting_it() {
    let reactor = reactor();
    let _entered = reactor.enter();
    let missing = Some("/does/not/exist.pem".into());
    for (url, ca) in [("redis://u:s3cret@", None), ("rediss://u:s3cret@h", missing)] {
        let error = RedisLink::start(&RedisTarget { url: url.to_owned(), ca }, "c").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}
