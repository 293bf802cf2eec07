//! How many calls many callers get answered at a time.

use anyhow::Result;
use cwasi_bench_protocol::{Made, Order, Verb};

use super::Group;
use super::sequential::WORKERS;
use crate::bed::{Bed, TOUCH_NONE, stage};
use crate::peers::{HttpServer, Kind, Peer};
use crate::plan::Effort;
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::side::Side;
use crate::stats::Rounds;
use crate::turns::micros;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "load",
    about: "many callers at a time",
    cases: |effort| callers(effort).iter().flat_map(|count| names(*count)).collect(),
    run,
};

/// Payload in bytes.
const SIZE: usize = 64;
/// Parts that one load is cut into, for taking turns.
const PARTS: u32 = 4;

const fn callers(effort: Effort) -> &'static [usize] {
    match effort {
        Effort::Full => &[1, 2, 4, 8, 16, 32, 64],
        Effort::Quick => &[1, 8, 64],
        Effort::Smoke => &[2],
    }
}

fn names(callers: usize) -> [String; 2] {
    [format!("throughput-64B-{callers}-callers"), format!("loaded-64B-{callers}-callers-call")]
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-load")?;
    let bed = Bed::on(&scene);
    bed.callee(TOUCH_NONE, &[("cwasi.concurrency", WORKERS)]);
    let server = HttpServer::start(&Peer::new(Kind::HttpLoopback))?;
    let peer = Peer::new(Kind::HttpLoopback).through(&server.address().to_string());
    let program = std::env::current_exe()?;
    let [mut ours, mut theirs]: [Vec<Side>; 2] = [Vec::new(), Vec::new()];
    for count in callers(session.effort) {
        let names = names(*count);
        if !names.iter().any(|name| wanted.contains(name)) {
            continue;
        }
        while ours.len() < *count {
            ours.push(bed.driver(&[])?.side);
            theirs.push(peer.start(&program)?);
        }
        session.case(&names, |session| measure(session, &names, &mut ours, &mut theirs));
    }
    for side in ours.into_iter().chain(theirs) {
        side.end()?;
    }
    Ok(())
}

/// Rates and durations of one side's rounds.
#[derive(Default)]
struct Load {
    rates: Rounds,
    durations: Rounds,
}

/// One part of a load.
fn order(effort: Effort) -> Result<Order> {
    Ok(Order {
        verb: Verb::Flood,
        targets: vec![TOUCH_NONE.0.to_owned()],
        size: SIZE,
        made: Made::Vector,
        touch: false,
        count: usize::try_from((effort.load() / PARTS).as_millis())?,
        branches: 1,
    })
}

fn measure(
    session: &mut Session,
    names: &[String; 2],
    ours: &mut [Side],
    theirs: &mut [Side],
) -> Result<()> {
    let order = order(session.effort)?;
    let [mut we, mut they] = [Load::default(), Load::default()];
    for round in 0..=PARTS {
        let rounds = [(&mut *ours, &mut we), (&mut *theirs, &mut they)];
        for (sides, load) in rounds {
            let before = load.rates.0.len();
            flood(sides, &order, load)?;
            if round == 0 {
                load.rates.0.truncate(before);
                load.durations.0.truncate(before);
            }
        }
    }
    let conditions = format!(
        "{} callers (processes of their own, one call after the other each) and one callee: ours with \
         cwasi.concurrency={WORKERS} and a fresh or renewed instance for each request, HTTP's one single-threaded server; 64 B; {PARTS} \
         parts of {} ms in turns, after one to warm up",
        ours.len(),
        order.count
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
fn flood(sides: &mut [Side], order: &Order, load: &mut Load) -> Result<()> {
    for side in sides.iter_mut() {
        side.begin(order)?;
    }
    let (mut calls, mut durations) = (0, Vec::new());
    for side in sides {
        let answer = side.finish(order)?;
        calls += answer.calls;
        durations.extend(micros(&answer.call));
    }
    load.rates.0.push(vec![calls as f64 * 1e3 / order.count as f64]);
    load.durations.0.push(durations);
    Ok(())
}
