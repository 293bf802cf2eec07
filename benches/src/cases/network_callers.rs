//! Cases of many callers of a function on another node, and of the first call to a node: two containerds in networks of
//! their own on this machine, with a cable between them.

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::{Job, Verb};
use cwasi_testbed::nodes::Nodes;

use super::Group;
use super::load::{job, take_turns, turns_text};
use super::network::{native, nodes};
use super::sequential::WORKERS;
use crate::fixture::{Fixture, TOUCH_NONE};
use crate::peers::Baseline;
use crate::plan::Effort;
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::side::Side;
use crate::stats::Rounds;
use crate::turns::micros;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "network-callers",
    about: "many callers of a function on another node, and the first call to it",
    cases: |effort| {
        let loads = callers(effort).iter().flat_map(|callers| names(*callers));
        loads.chain([FIRST.to_owned()]).collect()
    },
    run,
};

/// The first call of a shim to another one.
const FIRST: &str = "network-64B-first-call";
/// Payload in bytes.
const SIZE: usize = 64;

/// Callers at a time.
const fn callers(effort: Effort) -> &'static [usize] {
    match effort {
        Effort::Full | Effort::Quick => &[1, 8, 64],
        Effort::Smoke => &[2],
    }
}

/// Their rate, and how long a call takes then.
fn names(callers: usize) -> [String; 2] {
    ["", "-call"].map(|what| format!("network-64B-{callers}-callers{what}"))
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let nodes = nodes(&session.programs, "bench-network-callers")?;
    let [edge, cloud] = [&nodes.edge, &nodes.cloud].map(Fixture::on);
    cloud.callee(TOUCH_NONE, &[("cwasi.concurrency", WORKERS)]);
    if wanted.iter().any(|case| case == FIRST) {
        session.case(&[FIRST.to_owned()], |session| first(session, &edge));
    }
    let mut drivers = Vec::new();
    for callers in callers(session.effort) {
        let names = names(*callers);
        if !names.iter().any(|name| wanted.contains(name)) {
            continue;
        }
        while drivers.len() < *callers {
            drivers.push(edge.driver(&[("cwasi.mode", "networked")])?.side);
        }
        let drivers = &mut drivers[..*callers];
        session.case(&names, |session| measure(session, &nodes, drivers));
    }
    for side in drivers {
        side.end()?;
    }
    Ok(())
}

fn measure(session: &mut Session, nodes: &Nodes, ours: &mut [Side]) -> Result<()> {
    let callers = ours.len();
    let certificate = tempfile::tempdir().context("a folder for a certificate")?;
    let peer = native(Baseline::Http2, nodes, certificate.path())?;
    let mut theirs = [peer.start(&std::env::current_exe()?)?];
    let one = job(session.effort, SIZE)?;
    let all = Job { branches: callers, ..one.clone() };
    let [we, they] = take_turns([(ours, &one), (&mut theirs, &all)])?;
    let [theirs] = theirs;
    theirs.end()?;
    let conditions = format!(
        "{callers} callers, one call after the other each, and one callee, over the cable between two nodes on this \
         machine; ours directly, each caller a function of its own, all of one workflow and so of one shim, the \
         callee with cwasi.concurrency={WORKERS} and a fresh or renewed instance for each request; http2: hyper and \
         rustls, two native processes with a thread each, one connection with a stream for each caller; {SIZE} B; {}",
        turns_text(&one)
    );
    let [rate, duration] = names(callers);
    let way = "ratio is ours by baseline: larger is better";
    session.report.add(Comparison {
        case: &rate,
        unit: "calls/s",
        ours: &we.rates,
        baseline: Some((peer.name(), &they.rates)),
        direction: Direction::OursByBaseline,
        conditions: format!("{conditions}; {way}"),
    });
    session.report.add(Comparison {
        case: &duration,
        unit: "us",
        ours: &we.durations,
        baseline: Some((peer.name(), &they.durations)),
        direction: Direction::BaselineByOurs,
        conditions: format!("{conditions}; how long a call takes under this load"),
    });
    Ok(())
}

/// First calls of new shims, each beside the next call of the same caller.
fn first(session: &mut Session, edge: &Fixture<'_>) -> Result<()> {
    let rounds = session.effort.pick(40, 12);
    let [mut ours, mut kept] = [Rounds::default(), Rounds::default()];
    let job = Job { verb: Verb::Call, count: 1, ..job(session.effort, SIZE)? };
    for round in 0..=rounds {
        // A workflow of its own: a shim of its own, which has no connection.
        let workflow = format!("first-{round}");
        let annotations = [("cwasi.mode", "networked"), ("cwasi.workflow", &workflow)];
        let mut driver = edge.driver(&annotations)?.side;
        let mut call = || anyhow::Ok(micros(&driver.perform(&job)?.call));
        let (first, second) = (call()?, call()?);
        driver.end()?;
        // The first one also has the callee's shim look up the caller's node.
        if round > 0 {
            ours.0.push(first);
            kept.0.push(second);
        }
    }
    session.report.add(Comparison {
        case: FIRST,
        unit: "us",
        ours: &ours,
        baseline: Some(("kept", &kept)),
        direction: Direction::OursByBaseline,
        conditions: format!(
            "the first call of a new function of a new shim, {SIZE} B: where the callee is (Redis), TCP, handshake, \
             call; kept: the caller's next call, on the same connection; the callee's shim knows the caller's node; \
             {rounds} new shims; ratio is the first by the second"
        ),
    });
    Ok(())
}
