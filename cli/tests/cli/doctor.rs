//! `cwasi doctor`: what it finds, and what it says to do.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use cwasi_testbed::authority::Authority;
use cwasi_testbed::port::free_port;
use serde_json::Value;

use super::cwasi;
use super::scene::Stage;

/// Runs it with the programs on `PATH`: exit code and checks.
fn examine(command: &mut Command) -> (Option<i32>, Value) {
    let output = command.args(["doctor", "--json"]).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn programs() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap()
}

/// State of a check; what it found has `part`.
fn state(checks: &Value, what: &str, part: &str) -> String {
    let mut all = checks.as_array().unwrap().iter();
    let check = all.find(|check| check["what"] == what).unwrap_or_else(|| panic!("{checks}"));
    assert!(check["found"].as_str().unwrap().contains(part), "{check}");
    check["state"].as_str().unwrap().to_owned()
}

/// What a node would not start functions with, before it has it.
#[test]
fn a_configuration_is_examined_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let examine = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = cwasi().args(["doctor", "--config"]).arg(&file).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(examine("redis_url = \"redis://10.0.0.1\"\n"), (Some(0), String::new()));
    let (code, said) = examine("redis_ulr = \"redis://10.0.0.1\"\n");
    assert_eq!(code, Some(65));
    assert!(said.contains("line 1: unknown field `redis_ulr`"), "{said}");
}

#[test]
fn a_node_is_examined() {
    let stage = Stage::new("cli-doctor");
    let (code, checks) = examine(stage.cwasi().env("PATH", programs()));
    assert_eq!(code, Some(0), "{checks}");
    assert_eq!(state(&checks, "containerd", "1.6"), "ok");
    assert_eq!(state(&checks, "snapshotter", "overlayfs"), "ok");
    assert_eq!(state(&checks, "programs", "/"), "ok");
    let (code, checks) =
        examine(cwasi().env("PATH", "/nowhere").args(["--address", "/does/not/exist.sock"]));
    assert_eq!(code, Some(1));
    assert_eq!(state(&checks, "containerd", "Is it running"), "fault");
    assert_eq!(state(&checks, "programs", "make install"), "fault");
    let unknown = ["--snapshotter", "nothing"];
    let (code, checks) = examine(stage.cwasi().env("PATH", programs()).args(unknown));
    assert_eq!(code, Some(1));
    assert_eq!(state(&checks, "snapshotter", "no such snapshotter; name another one"), "fault");
}

#[test]
fn keys_that_cannot_be_used_are_faults() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    fs::write(path("good.pem"), pair.public_key_pem()).unwrap();
    let examine = |names: &[&str]| {
        let keys: Vec<_> = names.iter().map(|name| path(name)).collect();
        let config = format!("[compile]\nenabled = false\ntrusted_keys = {keys:?}\n");
        fs::write(path("node.toml"), config).unwrap();
        examine(cwasi().env("CWASI_CONFIG", path("node.toml"))).1
    };
    let checks = examine(&["good.pem"]);
    assert_eq!(state(&checks, "trusted keys", "1 of 1"), "ok");
    assert_eq!(state(&checks, "compiling", "never compiles"), "note");
    let checks = examine(&["none.pem", "good.pem"]);
    assert_eq!(state(&checks, "trusted keys", "none.pem cannot be read"), "fault");
}

#[test]
fn nodes_without_redis_are_examined_and_named() {
    let stage = Stage::new("cli-doctor-peers");
    let folder = stage.folder.path();
    let (config, key) = (folder.join("node.toml"), folder.join("link.key"));
    let port = free_port(Ipv4Addr::LOCALHOST.into());
    let peer = format!("127.0.0.1:{port}#{}", "0".repeat(64));
    let state_dir = folder.join("s");
    let settings = format!(
        "state_dir = {state_dir:?}\nnode = \"edge\"\nlink_key = {key:?}\nlink_peers = [{peer:?}]\n"
    );
    fs::write(&config, settings).unwrap();
    let (code, checks) =
        examine(stage.cwasi().env("PATH", programs()).env("CWASI_CONFIG", &config));
    assert_eq!(code, Some(0), "{checks}");
    assert_eq!(state(&checks, "Redis", "none: nodes of link_peers"), "ok");
    let all = checks.as_array().unwrap().iter().filter(|check| check["what"] == "link");
    let found: String = all.map(|check| check["found"].as_str().unwrap()).collect();
    for part in ["in link_peers of other nodes: \"edge:9470#", "Connection refused"] {
        assert!(found.contains(part), "{found}");
    }
    assert!(key.exists());
}

#[test]
fn the_nodes_certificate_is_examined() {
    let stage = Stage::new("cli-doctor-certificate");
    let folder = stage.folder.path();
    let [config, ca, certificate, key] =
        ["node.toml", "ca.pem", "edge.pem", "edge.key"].map(|name| folder.join(name));
    let authority = Authority::new("the operator");
    fs::write(&ca, authority.pem()).unwrap();
    let port = free_port(Ipv4Addr::LOCALHOST.into());
    let state_dir = folder.join("s");
    let settings = format!(
        "state_dir = {state_dir:?}\nnode = \"edge\"\nlink_ca = {ca:?}\nlink_cert = {certificate:?}\n\
         link_key = {key:?}\nlink_peers = [\"127.0.0.1:{port}#cloud\"]\n"
    );
    fs::write(&config, settings).unwrap();
    let examine = || examine(stage.cwasi().env("PATH", programs()).env("CWASI_CONFIG", &config));
    // State of the check of direct connections that found `part`.
    let state = |checks: &Value, part: &str| {
        let mut all = checks.as_array().unwrap().iter().filter(|check| check["what"] == "link");
        let check = all.find(|check| check["found"].as_str().unwrap().contains(part));
        check.unwrap_or_else(|| panic!("{checks}"))["state"].as_str().unwrap().to_owned()
    };
    authority.certify("edge").write(&certificate, &key, "");
    let (code, checks) = examine();
    assert_eq!(code, Some(0), "{checks}");
    assert_eq!(state(&checks, "proves this node by link_cert, until 4000-12-31T"), "ok");
    for (name, last_year, part) in [
        ("edge", 2020, "has ended 2020-12-31T00:00:00Z: renew it"),
        ("cloud", 4000, "has no subject alternative name edge"),
    ] {
        authority.certify_until(name, last_year).write(&certificate, &key, "");
        let (code, checks) = examine();
        assert_eq!((code, state(&checks, part).as_str()), (Some(1), "fault"), "{checks}");
    }
}
