//! Tests of the broker over real sockets.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use cwasi_abi::Errno;

use super::route::TARGET_MAX;
use super::*;
use crate::state::StateDir;
use cwasi_coordinator::registry::Record;
use cwasi_sys::seqpacket;
use cwasi_wire::control::{
    self, CONTROL_MESSAGE_MAX, ModeHint, ResolveReply, ResolveRequest, SandboxMessage,
};
use cwasi_wire::envelope::Hello;
use cwasi_wire::frame::{FRAME_MAX, decode};
use cwasi_wire::ids::Identity;

/// A broker, and the sandbox's end of a conversation with it.
pub(super) struct Fixture {
    dir: tempfile::TempDir,
    broker: Broker,
    pub(super) sandbox: OwnedFd,
    pub(super) readiness: watch::Receiver<Readiness>,
}

fn identity(function: &str) -> Identity {
    Identity { namespace: "n".into(), pod_namespace: String::new(), function: function.into() }
}

pub(super) fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::start(&StateDir::new(dir.path()).group("g"));
    let spans = Spans::start(dir.path().join("spans.jsonl"), "node", None);
    let broker = Broker::new(Registry::new(dir.path()), metrics, spans, None);
    let (ours, sandbox) = seqpacket::pair().unwrap();
    let peer = BrokerPeer {
        kind: CallerKind::Sandbox,
        identity: identity("a"),
        trust: String::new(),
        group: "own".into(),
        workflow: "w".into(),
        instance: "1".into(),
        mode: ModeHint::Auto,
        max_payload: 7,
        not_embedded: BTreeMap::new(),
    };
    let readiness = broker.serve(ours, peer).unwrap();
    Fixture { dir, broker, sandbox, readiness }
}

impl Fixture {
    /// Registers an instance of `b`; whoever keeps the listener takes its connections.
    fn register(&self, instance: &str) -> OwnedFd {
        self.register_in(instance, "")
    }

    /// An instance of `b` in a group.
    fn register_in(&self, instance: &str, group: &str) -> OwnedFd {
        let socket = self.dir.path().join(instance);
        let record = Record {
            identity: identity("b"),
            instance: instance.into(),
            group: group.into(),
            workflow: String::new(),
            trust: String::new(),
            allow: Vec::new(),
            socket: socket.clone(),
            max_payload: 7,
            max_head: 65_536,
            container: "c".into(),
            http: false,
            http_port: None,
            http_idle_ms: 0,
            timeout_ms: None,
            triggers: Vec::new(),
            workers: None,
            link: String::new(),
        };
        self.broker.registry().add(&record).unwrap();
        seqpacket::listener(&socket).unwrap()
    }

    async fn resolve(&self, target: &str) -> (ResolveReply, Vec<OwnedFd>) {
        self.resolve_beside(target, &[]).await
    }

    async fn resolve_beside(&self, target: &str, held: &[&str]) -> (ResolveReply, Vec<OwnedFd>) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let (avoid, held) = (Vec::new(), held.iter().map(|one| (*one).to_owned()).collect());
        let request = ResolveRequest { target: target.into(), avoid, held, nearer: false };
        let question = control::encode(&SandboxMessage::Resolve(request));
        seqpacket::send(self.sandbox.as_fd(), &[&question], &[theirs.as_fd()], None).unwrap();
        let receiving = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; CONTROL_MESSAGE_MAX];
            let received = seqpacket::receive(ours.as_fd(), &mut buffer, None).unwrap();
            (control::decode(&buffer[..received.len]).unwrap(), received.descriptors)
        });
        receiving.await.unwrap()
    }
}

#[tokio::test]
async fn a_route_is_connected_in_the_callers_name() {
    let fixture = fixture();
    // A killed instance's record is still there; the living one serves.
    drop(fixture.register("dead"));
    let listener = fixture.register("live");
    for _ in 0..2 {
        let (reply, descriptors) = fixture.resolve("b").await;
        let expected = "live".to_owned();
        assert!(
            matches!(&reply, ResolveReply::Local { instance, max_payload: 7, .. } if *instance == expected),
            "{reply:?}"
        );
        assert_eq!(descriptors.len(), 1);
        let connection = seqpacket::accept_from(listener.as_fd()).unwrap().unwrap();
        let mut buffer = vec![0; FRAME_MAX];
        let received = seqpacket::receive(connection.as_fd(), &mut buffer, None).unwrap();
        let hello: Hello = decode(&buffer[..received.len]).unwrap().open().unwrap();
        assert_eq!((hello.identity(), hello.workflow.as_str()), (identity("a"), "w"));
    }
}

#[tokio::test]
async fn held_instances_are_skipped() {
    let fixture = fixture();
    let _listeners = [fixture.register("1"), fixture.register("2")];
    let (reply, _) = fixture.resolve("b").await;
    let ResolveReply::Local { instance, instances: 2, .. } = reply else { panic!("{reply:?}") };
    let (reply, descriptors) = fixture.resolve_beside("b", &[&instance]).await;
    let ResolveReply::Local { instance: other, instances: 2, .. } = reply else {
        panic!("{reply:?}")
    };
    assert!(other != instance && descriptors.len() == 1);
    let (reply, descriptors) = fixture.resolve_beside("b", &["1", "2"]).await;
    assert_eq!(reply, ResolveReply::NoOther { instances: 2 });
    assert!(descriptors.is_empty());
}

#[tokio::test]
async fn an_instance_of_the_own_group_comes_first() {
    let fixture = fixture();
    let _others = [fixture.register_in("1", "other"), fixture.register_in("2", "other")];
    let own = fixture.register_in("3", "own");
    for _ in 0..4 {
        let (reply, _) = fixture.resolve("b").await;
        let ResolveReply::Local { instance, instances: 1, nearest: true, .. } = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(instance, "3");
    }
    let (reply, _) = fixture.resolve_beside("b", &["3"]).await;
    assert_eq!(reply, ResolveReply::NoOther { instances: 1 }, "calls are spread over the group");
    drop(own);
    let (reply, _) = fixture.resolve("b").await;
    assert!(matches!(reply, ResolveReply::Local { nearest: false, .. }), "{reply:?}");
}

#[tokio::test]
async fn what_cannot_be_routed_says_why() {
    let fixture = fixture();
    drop(fixture.register("dead"));
    let long = "x".repeat(TARGET_MAX + 1);
    let table = [
        ("b", Errno::Unreachable),
        ("nobody", Errno::NoSuchFunction),
        ("", Errno::InvalidArgument),
        (long.as_str(), Errno::InvalidArgument),
    ];
    for (target, expected) in table {
        let (reply, descriptors) = fixture.resolve(target).await;
        assert!(descriptors.is_empty());
        let ResolveReply::Unroutable { errno, message } = reply else { panic!("{reply:?}") };
        assert_eq!(errno, expected as i32, "{message}");
    }
}
