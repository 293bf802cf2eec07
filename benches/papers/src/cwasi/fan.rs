//! Figures 8a, 8b, 9a and 9b, Table 2: one function and many, both ways.

use anyhow::{Context as _, Result};
use cwasi_bench::fixture::{Fixture, TOUCH_ALL, guest, stage};
use cwasi_bench::peers::{PROCESSES_MAX, Peer};
use cwasi_bench::plan::{Effort, Turns};
use cwasi_bench::turns::{Contestant, Measured, take};
use cwasi_bench_protocol::{Job, Verb};

use super::engines::Sides;
use super::{
    BRANCH, ENGINES, INSIDE, LOCAL, NATIVE, OF_WATCHDOG, REMOTE, WATCHDOG, WORKERS, calls, engines,
    from_stdin, nodes,
};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::payload_server::PayloadServer;
use crate::sides::wasmedge_http::{self, ABOUT as HTTP_IN_WASMEDGE};

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

pub const NATIVE_TOGETHER: &str = "hyper in runc, at a time";
pub const NATIVE_IN_TURN: &str = "hyper in runc, in turn";
const WATCHDOG_TOGETHER: &str = "http-watchdog in runc, at a time";
const WATCHDOG_IN_TURN: &str = "http-watchdog in runc, in turn";
const OF_WATCHDOG_TOGETHER: &str = "of-watchdog in runc, at a time";
const OF_WATCHDOG_IN_TURN: &str = "of-watchdog in runc, in turn";
/// Workers of one function that a fan-out goes to; wider ones go to two.
pub const CALLEE_WORKERS: usize = 250;
/// Widest fan-out between nodes: each branch takes the payload over the network.
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

/// Starts the functions of an engine that a fan-out of the widest kind goes to; their names.
pub fn callees(fixture: &Fixture<'_>, sides: &Sides, effort: Effort) -> Vec<String> {
    let widest = widths(effort).iter().copied().max().unwrap_or(0);
    let workers = widest.min(CALLEE_WORKERS).to_string();
    let numbers = 0..widest.div_ceil(CALLEE_WORKERS);
    let start = |number: usize| {
        let annotations = [("cwasi.concurrency", workers.as_str()), ("cwasi.queue", "1024")];
        sides.callee(fixture, (&format!("wide-{number}"), TOUCH_ALL.1), &annotations)
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
        for (width, more) in between_nodes(run, turns)? {
            let found = measured.iter_mut().find(|(one, _)| *one == width);
            found.context("both have the same widths")?.1.extend(more);
        }
    }
    Ok(exhibits(fan, &measured, turns))
}

/// What all sides of one width have measured.
type Widths = Vec<(usize, Vec<Measured>)>;

/// The functions of an engine that are called.
struct Callees<'a> {
    sides: &'a Sides,
    /// Of calls in turn.
    one: String,
    /// Of calls at a time.
    many: Vec<String>,
}

impl<'a> Callees<'a> {
    fn start(run: &Run, fan: &Fan, fixture: &Fixture<'_>, sides: &'a Sides) -> Self {
        let one = sides.callee(fixture, TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
        let many = if fan.verb == Verb::FanOut {
            callees(fixture, sides, run.effort)
        } else {
            vec![sides.callee(fixture, JOIN, &[("cwasi.fan-in", "caller")])]
        };
        Self { sides, one, many }
    }

    /// Our sides on one node; `wish` is what the caller embeds.
    fn contestants(
        &self,
        fan: &Fan,
        fixture: &Fixture<'_>,
        wish: &str,
        width: usize,
    ) -> Result<[Contestant; 3]> {
        let Self { sides, one, many } = self;
        let used = many[..width.div_ceil(CALLEE_WORKERS).min(many.len())].to_vec();
        let driver = |annotations: &[_]| anyhow::Ok(sides.driver(fixture, annotations)?.side);
        let in_turn = |target: &str| calls(Verb::Call, target, BRANCH, width);
        let inside = [("cwasi.embed", wish), ("cwasi.mode", "embedded")];
        let of = |name, side, job| Contestant { name, side, job };
        Ok([
            of(sides.local_together, driver(&[])?, together(fan.verb, used, width)),
            of(sides.embedded_in_turn, driver(&inside)?, in_turn(INSIDE)),
            of(sides.local_in_turn, driver(&[("cwasi.mode", "local")])?, in_turn(one)),
        ])
    }
}

fn on_one_node(run: &Run, fan: &Fan, turns: Turns) -> Result<Widths> {
    let scene = stage(&run.programs, fan.stage)?;
    let fixture = Fixture::on(&scene);
    let engines = engines::built(run);
    let callees: Vec<_> =
        engines.into_iter().map(|sides| Callees::start(run, fan, &fixture, sides)).collect();
    let own = run.own_image(&scene)?;
    let server = PayloadServer::start(&scene, "payload-server", &own)?;
    let watchdog = PayloadServer::start_watchdog(&scene, "watchdog", &own)?;
    let of_watchdog = PayloadServer::start_of_watchdog(&scene, "of-watchdog")?;
    let (_, module) = TOUCH_ALL;
    let image = scene.import_module(module, &guest(&run.programs, module)?);
    let wish = format!("{INSIDE}={image}");
    let program = std::env::current_exe()?;
    let start =
        |name, peer: Peer, job| anyhow::Ok(Contestant { name, side: peer.start(&program)?, job });
    let mut measured = Vec::new();
    for &width in widths(run.effort) {
        let mut contestants = Vec::new();
        for callees in &callees {
            contestants.extend(callees.contestants(fan, &fixture, &wish, width)?);
        }
        let in_turn = calls(Verb::Call, "", BRANCH, width);
        let at_once = together(fan.verb, Vec::new(), width);
        contestants.extend([
            start(NATIVE_TOGETHER, server.peer(width), at_once.clone())?,
            start(WATCHDOG_TOGETHER, watchdog.peer(width), from_stdin(at_once.clone()))?,
            start(NATIVE_IN_TURN, server.peer(1), in_turn.clone())?,
            start(WATCHDOG_IN_TURN, watchdog.peer(1), from_stdin(in_turn.clone()))?,
        ]);
        for side in wasmedge_http::sides(&run.programs) {
            contestants.push(start(
                side.in_turn,
                side.peer(run.wasmedge_guests()?)?,
                in_turn.clone(),
            )?);
        }
        if let Some(server) = &of_watchdog {
            contestants.push(start(OF_WATCHDOG_TOGETHER, server.peer(width), at_once)?);
            contestants.push(start(OF_WATCHDOG_IN_TURN, server.peer(1), in_turn)?);
        }
        measured.push((width, take(contestants, turns)?));
    }
    Ok(measured)
}

/// Fan-outs to a function on another node.
fn between_nodes(run: &Run, turns: Turns) -> Result<Widths> {
    let nodes = nodes::start(run, "papers-fan-out-nodes")?;
    let [edge, cloud] = [&nodes.edge, &nodes.cloud].map(Fixture::on);
    let widths = widths(run.effort).iter().copied().filter(|width| *width <= NETWORKED_MAX);
    let workers = widths.clone().max().unwrap_or(1).to_string();
    let annotations = [("cwasi.concurrency", workers.as_str()), ("cwasi.queue", "1024")];
    let engines = engines::built(run);
    for sides in &engines {
        sides.callee(&cloud, REMOTE, &annotations);
    }
    let mut measured = Vec::new();
    for width in widths {
        let mut contestants = Vec::new();
        for sides in &engines {
            let drivers = nodes::drivers(&nodes, &edge, sides)?;
            let job = together(Verb::FanOut, vec![sides.function(REMOTE.0)], width);
            for (name, side) in sides.networked_together.into_iter().zip(drivers) {
                contestants.push(Contestant { name, side, job: job.clone() });
            }
        }
        measured.push((width, take(contestants, turns)?));
    }
    Ok(measured)
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
         one, {until}. {ENGINES} {NATIVE}: posts at a time on N connections to one server in a container, or in turn on one. \
         {WATCHDOG}: the same, and the server starts a process for each post, which reads the payload from stdin, \
         {PROCESSES_MAX} at a time. {OF_WATCHDOG}, \
         if this machine has it: OpenFaaS’ server in front of the same hyper server, in a network of their own. \
         {HTTP_IN_WASMEDGE} {LOCAL} and its mode embedded: one VM runs one call at a time, so embedded has no other way than in \
         turn. Networked: up to {NETWORKED_MAX} callees of a fan-out on another node, by themselves, over a Redis between the \
         nodes or over TLS from shim to shim. {} rounds in turns, after one to warm up.",
        fan.what, turns.rounds
    );
    vec![
        Exhibit::new(fan.latency, Form::Lines, &conditions, latency).published(fan.latencies),
        Exhibit::new(fan.throughput, Form::Lines, conditions, throughput)
            .published(fan.throughputs),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_descriptors_for_the_widest_fan() {
        let widest = [Effort::Full, Effort::Quick].into_iter().flat_map(widths).max();
        // Of each process: two pipes and its end.
        assert!(widest.unwrap() + 3 * PROCESSES_MAX < 1024);
    }
}
