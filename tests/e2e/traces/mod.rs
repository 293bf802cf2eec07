//! End to end on two nodes: one trace through functions in every mode, its spans in files and at an OTLP receiver.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod otlp;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cwasi_abi::Errno;
use cwasi_config::NodeConfig;
use cwasi_host::caller::{CallerIdentity, CallerKind, HostCall, HostCaller};
use cwasi_modes::Payload;
use cwasi_testbed::nodes::Nodes;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::{Scene, guests_dir, wait_for};
use cwasi_wire::trace::{PhaseKind, RecordedSpan, SpanKind, TraceContext};
use cwasi_wire::trace_headers::TraceHeaders;

use crate::SHIM;

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn secondary(scene: &Scene, container: &str, name: &str) -> Run {
    scene
        .guest(container, "server")
        .annotation("cwasi.role", "secondary")
        .annotation("cwasi.function", name)
}

/// All spans of the scene's namespace on its node, in the order of their begins.
fn spans(scene: &Scene) -> Vec<RecordedSpan> {
    let state = scene.node.state();
    let entries = |folder: &str| {
        let entries = fs::read_dir(state.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let running = entries("g").into_iter().map(|group| group.join("spans.jsonl"));
    let mut spans = Vec::new();
    for file in running.chain(entries("traces")) {
        let text = fs::read_to_string(file).unwrap_or_default();
        let read = text.lines().filter_map(|line| serde_json::from_str::<RecordedSpan>(line).ok());
        spans.extend(read.filter(|span| span.namespace == scene.namespace));
    }
    spans.sort_by_key(|span| span.span.start_ns);
    spans
}

/// The spans, once there are this many.
fn wait_spans(scenes: &[&Scene], count: usize) -> Vec<RecordedSpan> {
    wait_for(&format!("{count} spans"), || {
        let found: Vec<_> = scenes.iter().flat_map(|scene| spans(scene)).collect();
        (found.len() >= count).then_some(found)
    })
}

/// The one span of this kind and service.
fn one<'a>(
    spans: &'a [RecordedSpan],
    kind: SpanKind,
    service: &str,
    module: &str,
) -> &'a RecordedSpan {
    let is = |it: &&RecordedSpan| {
        it.span.kind == kind && it.service == service && it.span.module == module
    };
    let mut found = spans.iter().filter(is);
    let span = found.next().unwrap_or_else(|| panic!("no {kind:?} of {service}: {spans:#?}"));
    assert!(found.next().is_none(), "several {kind:?} of {service}: {spans:#?}");
    span
}

fn phases(span: &RecordedSpan) -> BTreeSet<String> {
    span.span.phases.iter().map(|phase| phase.kind.name().to_owned()).collect()
}

/// A module as an image of its own; its name.
fn image(scene: &Scene, guest: &str) -> String {
    let file = guests_dir(Path::new(SHIM).parent().unwrap()).join(format!("{guest}.wasm"));
    scene.import_module(guest, &fs::read(file).unwrap())
}

/// A function of workflow `w`, always traced, with these modules embedded.
fn embedding(scene: &Scene, id: &str, guest: &str, modules: &[(&str, &str)]) -> Run {
    let named = modules.iter().map(|(name, guest)| format!("{name}={}", image(scene, guest)));
    let named = named.collect::<Vec<_>>().join(",");
    scene
        .guest(id, guest)
        .annotation("cwasi.workflow", "w")
        .annotation("cwasi.function", id)
        .annotation("cwasi.embed", &named)
        .annotation("cwasi.trace", "always")
}

#[test]
fn one_trace_goes_through_functions_in_every_mode() {
    let nodes = Nodes::new(SHIM, "trace");
    nodes.edge.start(secondary(&nodes.edge, "middle-c", "middle"));
    nodes.cloud.start(secondary(&nodes.cloud, "far-c", "far"));
    let order = ["call", "inside", "!call middle !call far hello"];
    let run = embedding(&nodes.edge, "first", "probe", &[("inside", "server")]).args(order);
    assert_eq!(nodes.edge.run(run).success().text(), "hello");
    // Run; client and server of each of three calls.
    let spans = wait_spans(&[&nodes.edge, &nodes.cloud], 7);
    let traces: BTreeSet<_> = spans.iter().map(|span| span.span.trace).collect();
    assert_eq!((traces.len(), spans.len()), (1, 7), "{spans:#?}");
    let root = one(&spans, SpanKind::Run, "first", "");
    let to_inside = spans.iter().find(|it| it.span.peer == "inside").unwrap();
    let inside = one(&spans, SpanKind::Server, "first", "inside");
    let to_middle = spans.iter().find(|it| it.span.peer == "middle").unwrap();
    let middle = one(&spans, SpanKind::Server, "middle", "");
    let to_far = one(&spans, SpanKind::Client, "middle", "");
    let far = one(&spans, SpanKind::Server, "far", "");
    let chain = [root, to_inside, inside, to_middle, middle, to_far, far];
    assert_eq!(root.span.parent, None);
    for pair in chain.windows(2) {
        assert_eq!(pair[1].span.parent, Some(pair[0].span.id), "{pair:#?}");
    }
    let modes = [to_inside, to_middle, to_far].map(|span| span.span.mode.as_str());
    assert_eq!(modes, ["embedded", "local", "networked"]);
    let paths = [to_inside, to_middle, to_far].map(|span| span.span.path.as_str());
    assert_eq!(paths, ["", "", "redis"]);
    let sizes = |it: &RecordedSpan| (it.span.request_bytes, it.span.response_bytes);
    assert_eq!(sizes(to_inside), ("!call middle !call far hello".len() as u64, 5));
    assert_eq!((sizes(to_middle), sizes(middle)), ((15, 5), (15, 5)));
    assert_eq!((sizes(to_far), sizes(far)), ((5, 5), (5, 5)));
    for server in [middle, far] {
        assert!(phases(server).contains(PhaseKind::Queue.name()), "{server:?}");
        assert!(phases(server).contains(PhaseKind::Run.name()), "{server:?}");
    }
    assert_eq!((middle.node.as_str(), far.node.as_str()), ("edge", "cloud"));
}

#[test]
fn calls_inside_one_vm_have_spans_and_their_callee_reads_its_own() {
    let scene = Scene::new(SHIM, "trace-vm");
    let run = embedding(&scene, "outer", "probe", &[("inside", "server")]);
    let seen = scene.run(run.args(["call", "inside", "!context traceparent"])).success().text();
    let seen = TraceContext::parse(&seen).unwrap();
    let spans_of_call = wait_spans(&[&scene], 3);
    let inside = one(&spans_of_call, SpanKind::Server, "outer", "inside");
    assert_eq!((seen.trace, seen.span), (inside.span.trace, inside.span.id));
    let libraries = [("texts", "texts"), ("letters", "letters")];
    let run = embedding(&scene, "linker", "linker", &libraries);
    assert_eq!(scene.run(run.args(["backwards", "abc"])).success().text(), "CBA\n");
    // The run, one call of `texts` and its two calls of `letters`, each with two sides.
    let linked = wait_spans(&[&scene], 3 + 7).split_off(3);
    let root = one(&linked, SpanKind::Run, "linker", "");
    let to_texts = one(&linked, SpanKind::Client, "linker", "");
    let texts = one(&linked, SpanKind::Server, "linker", "texts");
    assert_eq!(to_texts.span.parent, Some(root.span.id));
    assert_eq!(texts.span.parent, Some(to_texts.span.id));
    assert_eq!((to_texts.span.peer.as_str(), texts.span.peer.as_str()), ("texts", "linker"));
    assert_eq!(to_texts.span.mode, "embedded");
    assert!(to_texts.span.reason.contains("linked"), "{to_texts:?}");
    let to_letters: Vec<_> = linked.iter().filter(|it| it.span.peer == "letters").collect();
    assert_eq!(to_letters.len(), 2, "{linked:#?}");
    for client in to_letters {
        assert_eq!(
            (client.span.parent, client.span.module.as_str()),
            (Some(texts.span.id), "texts")
        );
        let letters = linked.iter().find(|it| it.span.parent == Some(client.span.id)).unwrap();
        assert_eq!(
            (letters.span.module.as_str(), letters.span.peer.as_str()),
            ("letters", "texts")
        );
    }
    let run = embedding(&scene, "trapped", "linker", &libraries);
    assert_ne!(scene.run(run.args(["panic"])).code, 0);
    let trapped = wait_spans(&[&scene], 3 + 7 + 3).split_off(3 + 7);
    for kind in [SpanKind::Client, SpanKind::Server] {
        let side = trapped.iter().find(|it| it.span.kind == kind).unwrap();
        assert_eq!(side.span.errno, Errno::Trapped.code(), "{side:?}");
    }
}

#[test]
fn tracestate_goes_with_the_trace_in_every_mode() {
    const STATE: &str = "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE";
    let nodes = Nodes::new(SHIM, "tracestate");
    nodes.cloud.start(secondary(&nodes.cloud, "svc-c", "svc").annotation("cwasi.http", "gateway"));
    nodes.cloud.start(secondary(&nodes.cloud, "near-c", "near"));
    nodes.edge.start(secondary(&nodes.edge, "far-c", "far"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for sample in [0.0, 1.0] {
        let (config, identity) = of_cloud(&nodes, sample);
        runtime.block_on(async {
            let caller = HostCaller::start(&config, &identity).unwrap();
            let ask = async |payload: &str, traceparent| {
                let call = HostCall::new("svc", Payload::Inline(payload.as_bytes().to_vec()));
                let trace = TraceHeaders { traceparent, tracestate: STATE };
                let answer = caller.call(HostCall { trace, ..call }).await.unwrap();
                String::from_utf8(answer.payload.into_vec().unwrap()).unwrap()
            };
            for way in ["", "!call near ", "!call far ", "!call near !call far "] {
                assert_eq!(
                    ask(&format!("{way}!context tracestate"), SAMPLED).await,
                    STATE,
                    "{way}"
                );
            }
            // It belongs to a trace.
            assert_eq!(ask("!context tracestate", "").await, "");
            caller.flush().await;
        });
    }
    // Of the recorded round: both sides of 1, 2, 2 and 3 calls, and of the one without a client's trace.
    let spans = wait_spans(&[&nodes.edge, &nodes.cloud], 16 + 2);
    let client = TraceContext::parse(SAMPLED).unwrap();
    let (with, without): (Vec<_>, Vec<_>) =
        spans.iter().partition(|it| it.span.trace == client.trace);
    assert!(with.iter().all(|it| it.span.tracestate == STATE), "{with:#?}");
    assert!(without.iter().all(|it| it.span.tracestate.is_empty()), "{without:#?}");
    assert_eq!((with.len(), without.len()), (16, 2));
}

/// Configuration of the cloud, with this share of recorded traces, and the identity of a gateway there.
fn of_cloud(nodes: &Nodes, sample: f64) -> (NodeConfig, CallerIdentity) {
    let state_dir = nodes.cloud.node.state();
    let body = format!("state_dir = {state_dir:?}\nredis_url = {:?}\n", nodes.redis_url());
    let body = format!("{body}[traces]\nsample = {sample:?}\n");
    let namespace = CallerIdentity::in_namespace(&nodes.cloud.namespace);
    let identity = CallerIdentity { kind: CallerKind::Gateway, ..namespace };
    (NodeConfig::load(Some(&body), None).unwrap(), identity)
}

#[test]
fn what_is_not_sampled_writes_nothing_and_never_records_nothing() {
    let nodes = Nodes::new(SHIM, "untraced");
    nodes.edge.start(secondary(&nodes.edge, "quiet-c", "quiet").annotation("cwasi.trace", "never"));
    let probe = |id: &str, args: &[&str]| {
        nodes.edge.guest(id, "probe").args(args.iter().copied()).annotation("cwasi.function", id)
    };
    let plain = nodes.edge.run(probe("plain", &["call", "quiet", "!context traceparent"]));
    assert_eq!(plain.success().text(), "");
    let traced = probe("traced", &["call", "quiet", "!context traceparent"]);
    let traced = nodes.edge.run(traced.annotation("cwasi.trace", SAMPLED)).success().text();
    // The context goes through a function that records nothing.
    let context = TraceContext::parse(&traced).unwrap();
    assert_eq!(context.trace, TraceContext::parse(SAMPLED).unwrap().trace);
    let spans = wait_spans(&[&nodes.edge], 2);
    let services: BTreeSet<_> = spans.iter().map(|span| span.service.as_str()).collect();
    assert_eq!(services, BTreeSet::from(["traced"]), "{spans:#?}");
    let failing = probe("failing", &["call", "nobody", "x"]).annotation("cwasi.trace", "0.5x");
    let refused = nodes.edge.run(failing);
    assert!(refused.stderr.contains("a share between 0.0 and 1.0"), "{}", refused.stderr);
}

#[test]
fn calls_of_the_host_and_messages_begin_traces() {
    let nodes = Nodes::new(SHIM, "trace-host");
    nodes.cloud.start(secondary(&nodes.cloud, "svc-c", "svc").annotation("cwasi.http", "gateway"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (config, identity) = of_cloud(&nodes, 1.0);
    let answer = runtime.block_on(async {
        let caller = HostCaller::start(&config, &identity).unwrap();
        let call = HostCall::new("svc", Payload::Inline(b"!context traceparent".to_vec()));
        let trace = TraceHeaders { traceparent: SAMPLED, ..TraceHeaders::default() };
        let answer = caller.call(HostCall { trace, ..call }).await.unwrap();
        caller.emit(HostCall::new("svc", Payload::Inline(b"kept".to_vec()))).await.unwrap();
        caller.flush().await;
        answer
    });
    let sent = nodes.edge.guest("sender", "probe").annotation("cwasi.trace", "1");
    assert_eq!(nodes.edge.run(sent.args(["emit", "svc", "from afar"])).success().text(), "kept\n");
    // The gateway's call and message, the sender's run and message, and the handler of each.
    let spans = wait_spans(&[&nodes.edge, &nodes.cloud], 7);
    let own = one(&spans, SpanKind::Client, "gateway", "");
    assert_eq!(answer.trace, Some(own.span.trace.to_string()));
    let client = TraceContext::parse(SAMPLED).unwrap();
    assert_eq!((own.span.trace, own.span.parent), (client.trace, Some(client.span)));
    let seen = String::from_utf8(answer.payload.into_vec().unwrap()).unwrap();
    let seen = TraceContext::parse(&seen).unwrap();
    let served = spans.iter().find(|it| it.span.id == seen.span).unwrap();
    assert_eq!((served.service.as_str(), served.span.parent), ("svc", Some(own.span.id)));
    for service in ["gateway", "probe"] {
        let producer = one(&spans, SpanKind::Producer, service, "");
        let handled = spans.iter().find(|it| it.span.parent == Some(producer.span.id)).unwrap();
        assert_eq!((handled.service.as_str(), handled.span.trace), ("svc", producer.span.trace));
    }
}
