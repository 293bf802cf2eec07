//! Figures 8a, 8b, 9a and 9b, Table 2: one function and many, both ways.

use anyhow::Result;
use cwasi_bench::fixture::{Fixture, TOUCH_ALL, guest, shim, stage};
use cwasi_bench::peers::Peer;
use cwasi_bench::plan::{Effort, Turns};
use cwasi_bench::side::Side;
use cwasi_bench::turns::{Contestant, Measured, take};
use cwasi_bench_protocol::{Job, Verb};
use cwasi_testbed::nodes::Nodes;

use super::{
    BRANCH, INSIDE, LOCAL, NATIVE, OF_WATCHDOG, REMOTE, WASMEDGE, WATCHDOG, WORKERS, calls,
    from_stdin,
};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::payload_server::PayloadServer;

pub const OUT: Group = Group {
    name: "CWASI: a fan-out",
    entries: &["cwasi-figure-8a", "cwasi-figure-8b"],
    run: |run| measure(run, &FAN_OUT),
};

pub const IN: Group = Group {
    name: "CWASI: a fan-in",
    entries: &["cwasi-figure-9a", "cwasi-figure-9b"],
    run: |run| measure(run, &FAN_IN),
};

const LOCAL_TOGETHER: &str = "CWASI local, at a time";
const NETWORKED_TOGETHER: &str = "CWASI networked, at a time";
const NATIVE_TOGETHER: &str = "hyper in runc, at a time";
const EMBEDDED_IN_TURN: &str = "CWASI embedded, in turn";
const LOCAL_IN_TURN: &str = "CWASI local, in turn";
const NATIVE_IN_TURN: &str = "hyper in runc, in turn";
const WATCHDOG_TOGETHER: &str = "http-watchdog in runc, at a time";
const WATCHDOG_IN_TURN: &str = "http-watchdog in runc, in turn";
const OF_WATCHDOG_TOGETHER: &str = "of-watchdog in runc, at a time";
const OF_WATCHDOG_IN_TURN: &str = "of-watchdog in runc, in turn";
pub const WASMEDGE_IN_TURN: &str = "WasmEdge HTTP, in turn";
/// Workers of one function that a fan-out goes to; wider ones go to two.
pub const CALLEE_WORKERS: usize = 250;
/// Widest fan-out between nodes: each branch takes the payload through Redis.
const NETWORKED_MAX: usize = 100;
/// The callee that a fan-in joins in, and its guest.
const JOIN: (&str, &str) = ("join-all", "bench_join_all");

/// A fan-out or a fan-in.
struct Fan {
    stage: &'static str,
    verb: Verb,
    latency: &'static str,
    throughput: &'static str,
    what: &'static str,
    latencies: &'static [(&'static str, &'static str, f64)],
    throughputs: &'static [(&'static str, &'static str, f64)],
}

const FAN_OUT: Fan = Fan {
    stage: "papers-fan-out",
    verb: Verb::FanOut,
    latency: "cwasi-figure-8a",
    throughput: "cwasi-figure-8b",
    what: "one payload to N callees, made in a region once; ours have an instance as new for each, in worker processes of one \
           function, of two above 250",
    latencies: &[
        ("CWASI", "10", 4.5),
        ("WasmEdge", "10", 193.1),
        ("OpenFaaS", "10", 44.1),
        ("CWASI", "100", 6.6),
        ("WasmEdge", "100", 195.0),
        ("OpenFaaS", "100", 16.9),
    ],
    throughputs: &[
        ("CWASI", "10", 203.7327),
        ("WasmEdge", "10", 4.3781),
        ("OpenFaaS", "10", 59.8344),
        ("CWASI", "100", 211.2039),
        ("WasmEdge", "100", 4.9118),
        ("OpenFaaS", "100", 61.2589),
    ],
};

const FAN_IN: Fan = Fan {
    stage: "papers-fan-in",
    verb: Verb::FanIn,
    latency: "cwasi-figure-9a",
    throughput: "cwasi-figure-9b",
    what: "N payloads, each in a region of its own, to one callee that runs once with all of them; hyper’s server answers each \
           for itself",
    latencies: &[
        ("CWASI", "10", 2.9),
        ("WasmEdge", "10", 116.1),
        ("OpenFaaS", "10", 7.5),
        ("CWASI", "100", 3.2),
        ("WasmEdge", "100", 117.0),
        ("OpenFaaS", "100", 7.9),
    ],
    throughputs: &[
        ("CWASI", "10", 298.9536),
        ("WasmEdge", "10", 8.6752),
        ("OpenFaaS", "10", 127.3925),
        ("CWASI", "100", 314.2019),
        ("WasmEdge", "100", 8.5336),
        ("OpenFaaS", "100", 130.8297),
    ],
};

/// Callees of a fan-out, or payloads of a fan-in.
pub const fn widths(effort: Effort) -> &'static [usize] {
    match effort {
        Effort::Full => &[10, 50, 100, 200, 300, 400, 500],
        Effort::Quick => &[10, 100, 500],
        Effort::Smoke => &[3],
    }
}

/// Starts the functions that a fan-out of the widest kind goes to; their names.
pub fn callees(fixture: &Fixture<'_>, effort: Effort) -> Vec<String> {
    let widest = widths(effort).iter().copied().max().unwrap_or(0);
    let workers = widest.min(CALLEE_WORKERS).to_string();
    let numbers = 0..widest.div_ceil(CALLEE_WORKERS);
    let start = |number: usize| {
        let name = format!("wide-{number}");
        let annotations = [("cwasi.concurrency", workers.as_str()), ("cwasi.queue", "1024")];
        fixture.callee((&name, TOUCH_ALL.1), &annotations);
        name
    };
    numbers.map(start).collect()
}

/// `branches` at a time.
pub fn together(verb: Verb, targets: Vec<String>, branches: usize) -> Job {
    Job { targets, branches, ..calls(verb, "", BRANCH, 1) }
}

fn measure(run: &Run, fan: &Fan) -> Result<Vec<Exhibit>> {
    let turns = Turns { rounds: run.effort.pick(10, 3), block: 1 };
    let mut measured = on_one_node(run, fan, turns)?;
    if fan.verb == Verb::FanOut {
        for (width, sides) in &mut measured {
            if *width <= NETWORKED_MAX {
                sides.extend(between_nodes(run, *width, turns)?);
            }
        }
    }
    Ok(exhibits(fan, &measured, turns))
}

/// What all sides of one width have measured.
type Widths = Vec<(usize, Vec<Measured>)>;

fn on_one_node(run: &Run, fan: &Fan, turns: Turns) -> Result<Widths> {
    let scene = stage(&run.programs, fan.stage)?;
    let fixture = Fixture::on(&scene);
    let program = std::env::current_exe()?;
    fixture.callee(TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
    let targets = if fan.verb == Verb::FanOut {
        callees(&fixture, run.effort)
    } else {
        fixture.callee(JOIN, &[("cwasi.fan-in", "caller")]);
        vec![JOIN.0.to_owned()]
    };
    let own = run.own_image(&scene)?;
    let server = PayloadServer::start(&scene, "payload-server", &own)?;
    let watchdog = PayloadServer::start_watchdog(&scene, "watchdog", &own)?;
    let of_watchdog = PayloadServer::start_of_watchdog(&scene, "of-watchdog")?;
    let (_, module) = TOUCH_ALL;
    let image = scene.import_module(module, &guest(&run.programs, module)?);
    let wish = format!("{INSIDE}={image}");
    let mut measured = Vec::new();
    for &width in widths(run.effort) {
        let used = targets[..width.div_ceil(CALLEE_WORKERS).min(targets.len())].to_vec();
        let in_turn = |target| calls(Verb::Call, target, BRANCH, width);
        let at_once = together(fan.verb, used, width);
        let start = |peer: Peer| -> Result<Side> { peer.start(&program) };
        let inside = fixture.driver(&[("cwasi.embed", &wish), ("cwasi.mode", "embedded")])?;
        let wasmedge = run.wasmedge_http()?;
        let of = |name, side, job| Contestant { name, side, job };
        let mut contestants = vec![
            of(LOCAL_TOGETHER, fixture.driver(&[])?.side, at_once.clone()),
            of(NATIVE_TOGETHER, start(server.peer(width))?, at_once.clone()),
            of(WATCHDOG_TOGETHER, start(watchdog.peer(width))?, from_stdin(at_once.clone())),
            of(EMBEDDED_IN_TURN, inside.side, in_turn(INSIDE)),
            of(
                LOCAL_IN_TURN,
                fixture.driver(&[("cwasi.mode", "local")])?.side,
                in_turn(TOUCH_ALL.0),
            ),
            of(NATIVE_IN_TURN, start(server.peer(1))?, in_turn("")),
            of(WATCHDOG_IN_TURN, start(watchdog.peer(1))?, from_stdin(in_turn(""))),
            of(WASMEDGE_IN_TURN, start(wasmedge)?, in_turn("")),
        ];
        if let Some(server) = &of_watchdog {
            contestants.push(of(OF_WATCHDOG_TOGETHER, start(server.peer(width))?, at_once));
            contestants.push(of(OF_WATCHDOG_IN_TURN, start(server.peer(1))?, in_turn("")));
        }
        measured.push((width, take(contestants, turns)?));
    }
    Ok(measured)
}

/// A fan-out to a function on another node.
fn between_nodes(run: &Run, width: usize, turns: Turns) -> Result<Vec<Measured>> {
    let nodes = Nodes::new(&shim(&run.programs)?, "papers-fan-out-nodes");
    let [edge, cloud] = [&nodes.edge, &nodes.cloud].map(Fixture::on);
    let workers = width.to_string();
    let annotations = [("cwasi.concurrency", workers.as_str()), ("cwasi.queue", "1024")];
    cloud.callee((REMOTE, TOUCH_ALL.1), &annotations);
    let side = edge.driver(&[("cwasi.mode", "networked")])?.side;
    let job = together(Verb::FanOut, vec![REMOTE.to_owned()], width);
    take(vec![Contestant { name: NETWORKED_TOGETHER, side, job }], turns)
}

fn exhibits(fan: &Fan, measured: &Widths, turns: Turns) -> Vec<Exhibit> {
    let (mut latency, mut throughput) = (Vec::new(), Vec::new());
    for (width, sides) in measured {
        for Measured { name, delivery, call } in sides {
            // A fan-in is over when every part has its answer.
            let times = if fan.verb == Verb::FanIn { call.all() } else { delivery.all() };
            let millis = times.iter().map(|micros| micros / 1e3).collect();
            latency.push(Series::new(name, width, "ms", millis));
            let requests = if name.ends_with("in turn") { 1 } else { *width };
            #[expect(clippy::cast_precision_loss, reason = "hundreds")]
            let rates = call.all().iter().map(|micros| requests as f64 * 1e6 / micros).collect();
            throughput.push(Series::new(name, width, "req/s", rates));
        }
    }
    let until = if fan.verb == Verb::FanIn {
        "until every answer is there"
    } else {
        "until the callee has the payload"
    };
    let conditions = format!(
        "2 MB each, read by the callee. At a time: {}; until the last of them. In turn: N calls one after the other, the time of \
         one, {until}. {NATIVE}: posts at a time on N connections to one server in a container, or in turn on one. {WATCHDOG}: \
         the same, and the server starts a process for each post, which reads the payload from stdin. {OF_WATCHDOG}, if this machine \
         has it: OpenFaaS’ server in front of the same hyper server, in a network of their own. {WASMEDGE}: \
         single calls are all that its client, which is our own, can. {LOCAL} and its mode embedded: one VM runs one call at a time, so \
         embedded has no other way than in turn. Networked: up to {NETWORKED_MAX} callees of a fan-out on another node, by themselves. \
         {} rounds in turns, after one to warm up.",
        fan.what, turns.rounds
    );
    vec![
        Exhibit::new(fan.latency, Form::Lines, &conditions, latency).published(fan.latencies),
        Exhibit::new(fan.throughput, Form::Lines, conditions, throughput)
            .published(fan.throughputs),
    ]
}
