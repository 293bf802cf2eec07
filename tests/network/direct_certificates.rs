//! Direct connections between nodes with certificates of an authority: whom they prove, and what happens when they are
//! renewed.

use std::fs;
use std::time::Duration;

use cwasi_config::NodeConfig;
use cwasi_direct::certificates::CertificateSettings;
use cwasi_direct::tls::Tls;
use cwasi_host::network::Network;
use cwasi_modes::CallError;
use cwasi_testbed::authority::Authority;
use cwasi_wire::envelope::Path;
use cwasi_wire::network::{Link, NodeProof};

use crate::direct::{Host, Pair, instances, under_load};
use crate::fixture::{Executions, Instance, Node, PATIENCE, target, wait_for};

/// Far longer than a node keeps what it found in its files.
const NOTICED: Duration = Duration::from_millis(1500);

fn files(host: &Host, node: &str) -> CertificateSettings {
    let path = |name: &str| host.dir.path().join(name);
    let (ca, certificate, key) = (path("ca.pem"), path("node.pem"), path("node.key"));
    CertificateSettings { ca, certificate, key, node: node.to_owned() }
}

/// Writes a new certificate of node `name`, and whom the host trusts.
fn renew(host: &Host, name: &str, by: &Authority, trusted: &[&Authority], last_year: i32) {
    let CertificateSettings { ca, certificate, key, .. } = files(host, name);
    let bundle: String = trusted.iter().map(|authority| authority.pem()).collect();
    let draft = ca.with_extension("new");
    fs::write(&draft, bundle).unwrap();
    fs::rename(draft, ca).unwrap();
    by.certify_until(name, last_year).write(&certificate, &key, "");
}

/// A host with a certificate of node `of`, which is another one's if it has another name.
fn with(mut host: Host, of: &str, by: &Authority, trusted: &[&Authority]) -> Host {
    renew(&host, of, by, trusted, 4000);
    host.settings.tls = Tls::with_certificate(files(&host, of));
    host
}

fn certified(name: &'static str, authority: &Authority) -> Host {
    with(Host::new(name), name, authority, &[authority])
}

/// A call goes over Redis, for this reason.
fn assert_over_redis(pair: &Pair, reason: &str) {
    let mut worker = pair.here.caller();
    let (mut calls, mut why) = (1, None);
    // A reason is remembered for a second.
    wait_for("a reason", || {
        assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()));
        calls += 1;
        why = pair.why_not_direct();
        why.is_some()
    });
    assert!(why.as_ref().is_some_and(|it| it.contains(reason)), "{why:?}");
    assert_eq!(worker.path_of_a_call(), Path::PATH_REDIS);
    pair.assert_ran(calls);
}

#[test]
fn an_authority_says_which_nodes_there_are() {
    let authority = Authority::new("ours");
    let mut pair = Pair::of(["here", "there"].map(|name| certified(name, &authority)));
    let mut worker = pair.here.caller();
    assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()));
    assert_eq!(pair.why_not_direct(), None);
    assert_eq!(pair.redis.cli(&["KEYS", "cwasi:node:*"]), "", "no key is announced");
    pair.redis.stop();
    let large = vec![9; 3 << 20];
    assert_eq!(pair.here.caller().call(&large, PATIENCE), Ok(large));
    assert_eq!(worker.path_of_a_call(), Path::PATH_DIRECT);
    pair.assert_ran(3);
}

#[test]
fn another_authoritys_node_is_reached_over_redis() {
    let [ours, other] = ["ours", "other"].map(Authority::new);
    let pair = Pair::of([certified("here", &ours), certified("there", &other)]);
    assert_over_redis(&pair, "UnknownIssuer");
    // A callee checks its caller as well.
    let here = with(Host::new("here"), "here", &ours, &[&ours, &other]);
    assert_over_redis(&Pair::of([here, certified("there", &other)]), "UnknownCA");
}

#[test]
fn a_certificate_that_has_ended_sends_calls_over_redis() {
    let authority = Authority::new("ours");
    let [mut here, there] = ["here", "there"].map(|name| certified(name, &authority));
    renew(&here, "here", &authority, &[&authority], 2001);
    here.settings.tls = Tls::with_certificate(files(&here, "here"));
    let pair = Pair::of([here, there]);
    assert_over_redis(&pair, "node.pem has ended 2001-12-31T00:00:00Z: renew it");
    renew(&pair.hosts[0], "here", &authority, &[&authority], 4000);
    wait_for("the new certificate", || pair.here.caller().path_of_a_call() == Path::PATH_DIRECT);
}

#[test]
fn a_certificate_of_another_node_is_none() {
    let authority = Authority::new("ours");
    let impostor = with(Host::new("there"), "other", &authority, &[&authority]);
    let pair = Pair::of([certified("here", &authority), impostor]);
    assert_over_redis(&pair, "certificate not valid for name \"there\"");
    let impostor = with(Host::new("here"), "other", &authority, &[&authority]);
    let pair = Pair::of([impostor, certified("there", &authority)]);
    let refused = pair.here.caller().call(b"x", PATIENCE);
    let Err(CallError::Unreachable { cause, .. }) = refused else { panic!("{refused:?}") };
    let error = cause.to_string();
    assert!(error.contains("a call of node here came with a certificate of another"), "{error}");
    pair.assert_ran(0);
}

#[test]
fn keys_and_certificates_do_not_meet() {
    let authority = Authority::new("ours");
    let pair = Pair::of([certified("here", &authority), Host::new("there")]);
    assert_over_redis(&pair, "its node proves a key, and this one accepts certificates only");
    let pair = Pair::of([Host::new("here"), certified("there", &authority)]);
    assert_over_redis(&pair, "its node proves a certificate, and this one has no link_ca");
    // Nor when the location says the other thing, as one of a node that has just been changed does.
    let reached = |tls: &Tls, proof: &NodeProof| {
        let reactor = crate::fixture::reactor();
        let address = pair.hosts[1].settings.listen;
        let connecting = async {
            let stream = tokio::net::TcpStream::connect(address).await?;
            let stream = tls.connect(stream, "any-shim", proof).await?;
            let (mut reader, _writer) = tokio::io::split(stream);
            let read = cwasi_direct::connection::read_message(&mut reader).await;
            read.map_err(std::io::Error::other)
        };
        reactor.block_on(connecting)
    };
    let raw = &pair.hosts[0].settings.tls;
    let refused = reached(raw, &raw.proof().unwrap());
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn certificates_are_renewed_under_load() {
    let [first, second] = ["first", "second"].map(Authority::new);
    let pair = Pair::of(["here", "there"].map(|name| certified(name, &first)));
    assert_eq!(pair.here.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
    let both = |by: &Authority, trusted: &[&Authority]| {
        for host in &pair.hosts {
            renew(host, host.name, by, trusted, 4000);
        }
        std::thread::sleep(NOTICED);
    };
    let calls = under_load(&pair, || {
        both(&first, &[&first]);
        both(&first, &[&first, &second]);
        both(&second, &[&first, &second]);
        both(&second, &[&second]);
        // One that is none.
        for host in &pair.hosts {
            fs::write(&files(host, host.name).certificate, "-----BEGIN").unwrap();
        }
        std::thread::sleep(NOTICED);
    });
    assert_eq!(pair.redis.cli(&["KEYS", "cwasi:try:*"]), "", "nothing was published");
    pair.assert_ran(1 + calls);
    // Those that did not follow are out.
    let late = certified("late", &first).shim(&target(&pair.redis));
    assert_eq!(late.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
    assert_eq!(late.caller().path_of_a_call(), Path::PATH_REDIS);
}

#[test]
fn nodes_that_list_each_other_may_have_certificates() {
    let authority = Authority::new("ours");
    let [here, there, other] = ["here", "there", "other"].map(|name| certified(name, &authority));
    let (executions, node) = (Executions::default(), there.among(vec![here.entry()]));
    let instance = Instance::start(&executions);
    node.register(&instance);
    let caller = here.among(vec![there.entry()]);
    wait_for("the instance", || instances(&caller) == 1);
    assert_eq!(caller.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
    let proof = other.entry().proof;
    let wrong = here.among(vec![Link { proof, ..there.entry() }]).locations("b").unwrap_err();
    assert!(wrong.to_string().contains("certificate not valid for name \"other\""), "{wrong}");
    let unlisted = other.among(vec![there.entry()]).locations("b").unwrap_err().to_string();
    assert!(unlisted.contains("the caller's certificate is not in link_peers"), "{unlisted}");
    assert_eq!(executions.lock().unwrap().len(), 1);
}

#[test]
fn a_node_that_cannot_prove_itself_says_so_to_its_calls() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("link.key");
    fs::write(&key, "no key").unwrap();
    let body = |more: &str| {
        let (state, peer) = (dir.path(), format!("127.0.0.1:9#{more}"));
        let node = "node = \"edge\"\n";
        format!("{node}state_dir = {state:?}\nlink_key = {key:?}\nlink_peers = [{peer:?}]\n")
    };
    let files = "link_ca = \"/nowhere/ca.pem\"\nlink_cert = \"/nowhere/edge.pem\"\n";
    for (settings, part) in [
        (body(&"0a".repeat(32)), "link.key is not one: remove it"),
        (format!("{}{files}", body("cloud")), "link_ca /nowhere/ca.pem cannot be read"),
    ] {
        let config = NodeConfig::load(Some(&settings), None).unwrap();
        let node = Node::over(|registry| Network::start(&config, registry).unwrap().unwrap());
        let error = node.locations("b").unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
