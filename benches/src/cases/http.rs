//! Cases of HTTP clients that call a function through the gateway, beside the same clients of a native hyper server.

use anyhow::Result;
use cwasi_bench_protocol::{Job, Made, Verb};

use super::Group;
use super::gateway::Gateway;
use super::sequential::WORKERS;
use crate::fixture::{Fixture, TOUCH_NONE, stage};
use crate::peers::{Baseline, HttpServer, Peer};
use crate::plan::{Effort, MIB, size_name};
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::side::Side;
use crate::stats::Rounds;
use crate::turns::micros;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "http",
    about: "HTTP clients call a function through the gateway",
    cases: |effort| cases(effort).iter().map(Case::name).collect(),
    run,
};

/// What clients would otherwise call: a native server, and a native function with a process for each request.
const BASELINES: [Baseline; 2] = [Baseline::HttpLoopback, Baseline::HttpWatchdog];
/// Parts that one case is cut into, for taking turns.
const PARTS: u32 = 4;

/// Body in bytes, and connections at a time.
#[derive(Clone, Copy, Debug)]
struct Case {
    size: usize,
    connections: usize,
}

const fn cases(effort: Effort) -> &'static [Case] {
    match effort {
        Effort::Smoke => &[Case { size: 64, connections: 2 }],
        _ => &[
            Case { size: 64, connections: 1 },
            Case { size: 64, connections: 32 },
            Case { size: 2 * MIB, connections: 1 },
        ],
    }
}

impl Case {
    fn name(&self) -> String {
        format!("http-{}-{}-connections", size_name(self.size), self.connections)
    }
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-http")?;
    let fixture = Fixture::on(&scene);
    let annotations = [("cwasi.concurrency", WORKERS), ("cwasi.http", "gateway")];
    fixture.callee(TOUCH_NONE, &annotations);
    let gateway = Gateway::start(&session.programs, &scene)?;
    let servers = BASELINES.map(|kind| HttpServer::start(&Peer::new(kind)));
    let servers: Vec<_> = servers.into_iter().collect::<Result<_>>()?;
    let function = format!("{}/function/{}", gateway.address, TOUCH_NONE.0);
    let addresses = servers.iter().map(|server| server.address().to_string());
    let peers: Vec<_> = std::iter::once(function)
        .chain(addresses)
        .map(|address| Peer::new(Baseline::HttpLoopback).through(&address))
        .collect();
    let program = std::env::current_exe()?;
    let mut clients: Vec<Vec<Side>> = peers.iter().map(|_| Vec::new()).collect();
    for case in cases(session.effort) {
        if !wanted.contains(&case.name()) {
            continue;
        }
        for (sides, peer) in clients.iter_mut().zip(&peers) {
            while sides.len() < case.connections {
                sides.push(peer.start(&program)?);
            }
        }
        let sides = clients.iter_mut().map(|sides| &mut sides[..case.connections]).collect();
        session.case(&[case.name()], |session| measure(session, *case, sides));
    }
    clients.into_iter().flatten().try_for_each(Side::end)
}

/// Our clients and those of [`BASELINES`] take turns.
fn measure(session: &mut Session, case: Case, mut sides: Vec<&mut [Side]>) -> Result<()> {
    let job = Job {
        verb: Verb::Flood,
        targets: vec![TOUCH_NONE.0.to_owned()],
        size: case.size,
        made: Made::Vector,
        touch: false,
        count: usize::try_from((session.effort.load() / PARTS).as_millis())?,
        branches: 1,
    };
    let mut measured: Vec<Rounds> = sides.iter().map(|_| Rounds::default()).collect();
    for round in 0..=PARTS {
        for (sides, measured) in sides.iter_mut().zip(&mut measured) {
            let durations = flood(sides, &job)?;
            if round > 0 {
                measured.0.push(durations);
            }
        }
    }
    let (ours, theirs) = measured.split_first().expect("ours is the first");
    for (kind, theirs) in BASELINES.into_iter().zip(theirs) {
        let name = Peer::new(kind).name();
        session.report.add(Comparison {
            case: &case.name(),
            unit: "us",
            ours,
            baseline: Some((name, theirs)),
            direction: Direction::OursByBaseline,
            conditions: format!(
                "{} clients, processes of their own with a connection each, POST {} B and read a short answer: \
                 through the gateway to a function with cwasi.concurrency={WORKERS} and a fresh or renewed instance for \
                 each request, or to one single-threaded hyper server ({name}); {PARTS} parts of {} ms in turns, after \
                 one to warm up",
                case.connections, case.size, job.count
            ),
        });
    }
    Ok(())
}

/// Durations of all clients' requests in microseconds.
pub fn flood(sides: &mut [Side], job: &Job) -> Result<Vec<f64>> {
    for side in sides.iter_mut() {
        side.begin(job)?;
    }
    let mut durations = Vec::new();
    for side in sides {
        durations.extend(micros(&side.finish(job)?.call));
    }
    Ok(durations)
}
