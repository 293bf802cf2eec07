//! Cases of one function that answers with a large payload, made in a region: in a segment of its pool (leased) beside
//! one in a new memfd (sealed).

use anyhow::Result;
use cwasi_bench_protocol::{Job, Made, Verb};

use super::Group;
use super::sequential::WORKERS;
use crate::fixture::{Fixture, stage};
use crate::placement::Placement;
use crate::plan::{MIB, size_name};
use crate::session::Session;
use crate::turns::{Contestant, take};

/// See the file's head.
pub const GROUP: Group = Group {
    name: "answers",
    about: "a large answer, leased and sealed",
    cases: |_| SIZES.iter().flat_map(|size| entries(*size)).collect(),
    run,
};

/// Bytes of a request, and of its answer.
const SIZES: [usize; 2] = [MIB / 8, 2 * MIB];
const ECHO: &str = "bench_echo";
/// The callee of the driver's trust group, to which segments are lent, and the one of another group.
const LEASED: &str = "leased";
const SEALED: &str = "sealed";

fn name(size: usize) -> String {
    format!("answer-{}-leased", size_name(size))
}

fn entries(size: usize) -> [String; 2] {
    [format!("{}-call", name(size)), name(size)]
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-answers")?;
    let fixture = Fixture::on(&scene);
    let workers = ("cwasi.concurrency", WORKERS);
    fixture.callee((LEASED, ECHO), &[workers]);
    fixture.callee((SEALED, ECHO), &[workers, ("cwasi.trust", "another")]);
    for size in SIZES {
        let entries = entries(size);
        if entries.iter().any(|name| wanted.contains(name)) {
            session.case(&entries, |session| measure(session, &fixture, size));
        }
    }
    Ok(())
}

fn measure(session: &mut Session, fixture: &Fixture<'_>, size: usize) -> Result<()> {
    let turns = session.effort.turns(size);
    let job = |target: &str| Job {
        verb: Verb::Echo,
        targets: vec![target.to_owned()],
        size,
        made: Made::InPlace,
        touch: false,
        count: turns.block,
        branches: 1,
    };
    let mut contestants = Vec::new();
    for (name, target) in [("ours", LEASED), (SEALED, SEALED)] {
        let driver = fixture.driver(&[])?;
        fixture.place(&driver, &[target], Placement::Default)?;
        contestants.push(Contestant { name, side: driver.side, job: job(target) });
    }
    let measured = take(contestants, turns)?;
    let conditions = format!(
        "{} there and back, both made in regions, the answer inside the clock; a fresh or renewed instance for each \
         request, cwasi.concurrency={WORKERS}; the baseline `{SEALED}` is the same function in another trust group; {}",
        size_name(size),
        Session::turns_text(turns)
    );
    session.report.add_turns(&name(size), &conditions, &measured);
    Ok(())
}
