//! Cases of throughput with many callers.

use anyhow::Result;
use cwasi_bench_protocol::{Job, Made, Verb};

use super::Group;
use super::sequential::WORKERS;
use crate::fixture::{Fixture, TOUCH_NONE, stage};
use crate::peers::{Baseline, HttpServer, Peer};
use crate::plan::{Effort, size_name};
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::side::Side;
use crate::stats::Rounds;
use crate::turns::micros;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "load",
    about: "many callers at a time",
    cases: |effort| loads(effort).iter().flat_map(Load::names).collect(),
    run,
};

/// Bytes of a KiB.
const KIB: usize = 1 << 10;
/// Parts that one load is cut into, for taking turns.
const PARTS: u32 = 4;

/// Payload in bytes, and callers at a time. All payloads travel in frames.
#[derive(Clone, Copy, Debug)]
struct Load {
    size: usize,
    callers: usize,
}

const fn loads(effort: Effort) -> &'static [Load] {
    match effort {
        Effort::Full => FULL,
        Effort::Quick => QUICK,
        Effort::Smoke => SMOKE,
    }
}

const FULL: &[Load] = &[
    Load { size: 64, callers: 1 },
    Load { size: 64, callers: 2 },
    Load { size: 64, callers: 4 },
    Load { size: 64, callers: 8 },
    Load { size: 64, callers: 16 },
    Load { size: 64, callers: 32 },
    Load { size: 64, callers: 64 },
    Load { size: 4 * KIB, callers: 8 },
    Load { size: 4 * KIB, callers: 64 },
    Load { size: 32 * KIB, callers: 8 },
    Load { size: 32 * KIB, callers: 64 },
];
const QUICK: &[Load] = &[
    Load { size: 64, callers: 1 },
    Load { size: 64, callers: 8 },
    Load { size: 64, callers: 64 },
    Load { size: 32 * KIB, callers: 8 },
];
const SMOKE: &[Load] = &[Load { size: 64, callers: 2 }];

impl Load {
    fn names(&self) -> [String; 2] {
        let (size, callers) = (size_name(self.size), self.callers);
        [
            format!("throughput-{size}-{callers}-callers"),
            format!("loaded-{size}-{callers}-callers-call"),
        ]
    }
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-load")?;
    let fixture = Fixture::on(&scene);
    fixture.callee(TOUCH_NONE, &[("cwasi.concurrency", WORKERS)]);
    let server = HttpServer::start(&Peer::new(Baseline::HttpLoopback))?;
    let peer = Peer::new(Baseline::HttpLoopback).through(&server.address().to_string());
    let program = std::env::current_exe()?;
    let [mut ours, mut theirs]: [Vec<Side>; 2] = [Vec::new(), Vec::new()];
    for load in loads(session.effort) {
        let names = load.names();
        if !names.iter().any(|name| wanted.contains(name)) {
            continue;
        }
        while ours.len() < load.callers {
            ours.push(fixture.driver(&[])?.side);
            theirs.push(peer.start(&program)?);
        }
        let (ours, theirs) = (&mut ours[..load.callers], &mut theirs[..load.callers]);
        session.case(&names, |session| measure(session, *load, ours, theirs));
    }
    for side in ours.into_iter().chain(theirs) {
        side.end()?;
    }
    Ok(())
}

/// Rates and durations of one side's rounds.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) rates: Rounds,
    pub(super) durations: Rounds,
}

/// One part of a load.
pub(super) fn job(effort: Effort, size: usize) -> Result<Job> {
    Ok(Job {
        verb: Verb::Flood,
        targets: vec![TOUCH_NONE.0.to_owned()],
        size,
        made: Made::Vector,
        touch: false,
        count: usize::try_from((effort.load() / PARTS).as_millis())?,
        branches: 1,
    })
}

/// The sides of ours and of a baseline under load, in turns.
pub(super) fn take_turns(mut parties: [(&mut [Side], &Job); 2]) -> Result<[Measured; 2]> {
    let mut measured = [Measured::default(), Measured::default()];
    for round in 0..=PARTS {
        for ((sides, job), measured) in parties.iter_mut().zip(&mut measured) {
            // The first one warms up.
            let mut dropped = Measured::default();
            flood(sides, job, if round == 0 { &mut dropped } else { measured })?;
        }
    }
    Ok(measured)
}

/// The turns, as text for the conditions.
pub(super) fn turns_text(job: &Job) -> String {
    format!("{PARTS} parts of {} ms in turns, after one to warm up", job.count)
}

fn measure(
    session: &mut Session,
    load: Load,
    ours: &mut [Side],
    theirs: &mut [Side],
) -> Result<()> {
    let (names, job) = (load.names(), job(session.effort, load.size)?);
    let callers = ours.len();
    let [we, they] = take_turns([(ours, &job), (theirs, &job)])?;
    let conditions = format!(
        "{callers} callers (processes of their own, one call after the other each) and one callee: ours with \
         cwasi.concurrency={WORKERS} and a fresh or renewed instance for each request, HTTP's one \
         single-threaded server; {} B; {}",
        load.size,
        turns_text(&job)
    );
    let mut add = |case: &str, unit, ours, theirs, direction, way: &str| {
        session.report.add(Comparison {
            case,
            unit,
            ours,
            baseline: Some(("http-loopback", theirs)),
            direction,
            conditions: format!("{conditions}; {way}"),
        });
    };
    let way = "ratio is ours by baseline: larger is better";
    add(&names[0], "calls/s", &we.rates, &they.rates, Direction::OursByBaseline, way);
    let way = "how long a call takes under this load";
    add(&names[1], "us", &we.durations, &they.durations, Direction::BaselineByOurs, way);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "millions of calls, milliseconds")]
fn flood(sides: &mut [Side], job: &Job, measured: &mut Measured) -> Result<()> {
    for side in sides.iter_mut() {
        side.begin(job)?;
    }
    let (mut calls, mut durations) = (0, Vec::new());
    for side in sides {
        let answer = side.finish(job)?;
        calls += answer.calls;
        durations.extend(micros(&answer.call));
    }
    measured.rates.0.push(vec![calls as f64 * 1e3 / job.count as f64]);
    measured.durations.0.push(durations);
    Ok(())
}
