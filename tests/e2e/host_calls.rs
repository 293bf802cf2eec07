//! End to end on a real containerd: calls from a process of the host, which is this test.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::time::Duration;

use cwasi_abi::Errno;
use cwasi_config::NodeConfig;
use cwasi_host::caller::{CallerIdentity, CallerKind, HostCall, HostCaller};
use cwasi_modes::{CallError, ModeKind, Payload};
use cwasi_sys::segment::Segment;
use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::scene::{Scene, wait_for};
use cwasi_wire::envelope::Metadata;
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

use crate::{SHIM, scene};

/// A reactor, and a caller on the scene's node.
struct Host {
    runtime: Runtime,
    caller: HostCaller,
}

impl Host {
    fn of(scene: &Scene, kind: CallerKind) -> Self {
        Self::at(scene, kind, "")
    }

    /// On the scene's node, with more of its configuration.
    fn at(scene: &Scene, kind: CallerKind, more: &str) -> Self {
        let state_dir = scene.node.state();
        let body = format!("state_dir = {state_dir:?}\n{more}");
        let config = NodeConfig::load(Some(&body), None).unwrap();
        let identity = CallerIdentity { kind, ..CallerIdentity::in_namespace(&scene.namespace) };
        let runtime = Runtime::new().unwrap();
        let entered = runtime.enter();
        let caller = HostCaller::start(&config, &identity).unwrap();
        drop(entered);
        Self { runtime, caller }
    }

    fn call(&self, target: &str, payload: &[u8]) -> Result<Vec<u8>, CallError> {
        let payload = Payload::Inline(payload.to_vec());
        let call = HostCall::new(target, payload);
        let answer = self.runtime.block_on(self.caller.call(call))?;
        assert_eq!(answer.mode, ModeKind::Local);
        Ok(answer.payload.into_vec().unwrap())
    }

    fn errno(&self, target: &str, payload: &str) -> Errno {
        self.call(target, payload.as_bytes()).unwrap_err().errno()
    }
}

#[test]
fn a_process_of_the_host_calls_functions_like_any_other_caller() {
    let scene = scene("host-calls");
    scene.secondary("server", "server");
    scene.secondary("filter", "filter");
    let host = Host::of(&scene, CallerKind::Host);
    assert_eq!(host.call("server", b"hello").unwrap(), b"hello");
    assert_eq!(host.call("filter", b"hello").unwrap(), b"HELLO");
    assert_eq!(host.call("server", b"!context caller").unwrap(), b"gateway");
    for (payload, errno) in
        [("!fail no wheels", Errno::Failed), ("!trap", Errno::Trapped), ("!exit 3", Errno::Failed)]
    {
        assert_eq!(host.errno("server", payload), errno, "{payload}");
    }
    assert_eq!(host.errno("nobody", "x"), Errno::NoSuchFunction);
    assert_eq!(host.errno("", "x"), Errno::InvalidArgument);
    let gateway = Host::of(&scene, CallerKind::Gateway);
    let hidden = gateway.call("server", b"x").unwrap_err();
    assert_eq!(hidden.errno(), Errno::NoSuchFunction, "it has no cwasi.http");
    assert!(!hidden.to_string().contains("filter"), "{hidden}");
}

#[test]
fn calls_in_flight_spread_over_all_instances() {
    let scene = scene("host-many");
    for id in ["one", "two"] {
        let run = scene.guest(id, "server").annotation("cwasi.role", "secondary");
        let run = run.annotation("cwasi.function", "svc").annotation("cwasi.concurrency", "2");
        scene.start(run.annotation("cwasi.queue", "1024"));
    }
    let host = Host::of(&scene, CallerKind::Host);
    let bytes: Vec<u8> = (0..3 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    host.runtime.block_on(async {
        let calls = (0..400_u32).map(|n| {
            let (caller, text) = (host.caller.clone(), n.to_string());
            tokio::spawn(async move {
                let call = HostCall::new("svc", Payload::Inline(text.clone().into_bytes()));
                assert_eq!(
                    caller.call(call).await.unwrap().payload.into_vec().unwrap(),
                    text.as_bytes()
                );
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        let large = || Payload::Segment(Segment::copy_of(&bytes).unwrap());
        let answer = host.caller.call(HostCall::new("svc", large())).await.unwrap();
        assert!(matches!(answer.payload, Payload::Segment(_)));
        assert!(answer.payload.into_vec().unwrap() == bytes);
    });
    scene.remove("one");
    assert_eq!(host.call("svc", b"x").unwrap(), b"x", "the other instance serves");
    scene.remove("two");
    assert_eq!(host.errno("svc", "x"), Errno::NoSuchFunction);
}

#[test]
fn a_call_that_is_given_up_costs_no_other_call_its_answer() {
    let scene = scene("host-cancel");
    let run = scene.guest("svc", "server").annotation("cwasi.role", "secondary");
    scene.start(run.annotation("cwasi.function", "svc").annotation("cwasi.concurrency", "2"));
    let host = Host::of(&scene, CallerKind::Host);
    host.runtime.block_on(async {
        let soon = Duration::from_millis(50);
        let sleeping = || HostCall::new("svc", Payload::Inline(b"!sleep 300".to_vec()));
        // Until one is dropped before its answer is there.
        while let Ok(ended) = timeout(soon, host.caller.call(sleeping())).await {
            ended.unwrap();
        }
        let deadline = Instant::now() + soon;
        let late = HostCall {
            deadline,
            ..HostCall::new("svc", Payload::Inline(b"!sleep 30000".to_vec()))
        };
        assert_eq!(host.caller.call(late).await.unwrap_err().errno(), Errno::Timeout);
    });
    for n in 0..20 {
        let text = n.to_string();
        let answer = wait_for("a worker", || host.call("svc", text.as_bytes()).ok());
        assert_eq!(answer, text.as_bytes());
    }
}

#[test]
fn a_gateway_reaches_another_nodes_public_functions() {
    let nodes = Nodes::new(SHIM, "host-nodes");
    let secondary = |id: &str, guest: &str| {
        let run = nodes.cloud.guest(id, guest).annotation("cwasi.role", "secondary");
        run.annotation("cwasi.function", id)
    };
    nodes.cloud.start(secondary("hidden", "server"));
    let web = secondary("web", "actor").args(["http"]).annotation("cwasi.http", "gateway");
    nodes.cloud.start(web);
    let heads = secondary("heads", "actor").args(["head"]);
    nodes.cloud.start(heads.annotation("cwasi.http", "gateway"));
    let redis = format!("redis_url = \"{}\"\n", nodes.redis_url());
    let host = Host::at(&nodes.edge, CallerKind::Gateway, &redis);
    let metadata = vec![Metadata::of("http.method", "PUT")];
    // In the message, and in chunks.
    for length in [4, 3 << 20] {
        let payload = Payload::Segment(Segment::copy_of(&vec![7; length]).unwrap());
        let call = HostCall { metadata: metadata.clone(), ..HostCall::new("web", payload) };
        let answer = host.runtime.block_on(host.caller.call(call)).unwrap();
        assert_eq!(answer.mode, ModeKind::Networked);
        assert_eq!(answer.payload.into_vec().unwrap(), b"PUT||||");
        let set = [("http.status", "201"), ("http.header.x-length", &length.to_string())];
        assert_eq!(answer.metadata, set.map(|(key, value)| Metadata::of(key, value)));
    }
    // Heads of more than an envelope of the version before has, with bytes that are no UTF-8.
    for length in [0_usize, 60_000] {
        let metadata = vec![
            Metadata::of("http.method", "GET"),
            Metadata::of("http.header.x-a", b"\xe9"),
            Metadata::of("http.header.x-a", vec![b'y'; length]),
        ];
        let payload = Payload::Inline(length.to_string().into_bytes());
        let call = HostCall { metadata, ..HostCall::new("heads", payload) };
        let answer = host.runtime.block_on(host.caller.call(call)).unwrap();
        let expected = [b"x-a=\xe9\nx-a=", &vec![b'y'; length][..], b"\n"].concat();
        assert!(answer.payload.into_vec().unwrap() == expected, "{length}");
        let long = Metadata::of("http.header.x-long", vec![b'\xe9'; length]);
        let set = if length == 0 { Vec::new() } else { vec![long] };
        assert!(answer.metadata == set && answer.mode == ModeKind::Networked, "{length}");
    }
    assert_eq!(host.errno("hidden", "x"), Errno::NoSuchFunction);
    let operator = Host::at(&nodes.edge, CallerKind::Host, &redis);
    let call = HostCall::new("hidden", Payload::Inline(b"x".to_vec()));
    let answer = operator.runtime.block_on(operator.caller.call(call)).unwrap();
    assert_eq!(answer.payload.into_vec().unwrap(), b"x");
    let message = HostCall::new("web", Payload::Inline(b"kept".to_vec()));
    host.runtime.block_on(host.caller.emit(message)).unwrap();
}

#[test]
fn cwasi_allow_decides_about_the_host_too() {
    let scene = scene("host-allow");
    let run = scene.guest("svc", "server").annotation("cwasi.role", "secondary");
    scene.start(run.annotation("cwasi.function", "svc").annotation("cwasi.allow", "other"));
    let host = Host::of(&scene, CallerKind::Host);
    let refused = host.call("svc", b"x").unwrap_err();
    assert_eq!(refused.errno(), Errno::Refused);
    assert!(refused.to_string().contains("cwasi.allow"), "{refused}");
}
