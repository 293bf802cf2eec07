//! Cases of programs that compute and call nobody, beside the same programs compiled for this processor.

use anyhow::Result;
use bench_compute::PROGRAMS;
use cwasi_bench_protocol::{Job, Made, Verb};

use super::Group;
use crate::fixture::stage;
use crate::peers::{Baseline, Peer};
use crate::plan::Turns;
use crate::session::Session;
use crate::side::Side;
use crate::turns::{Contestant, take};

/// See the file's head.
pub const GROUP: Group = Group {
    name: "compute",
    about: "programs that compute",
    cases: |_| PROGRAMS.iter().map(|name| entry(name)).collect(),
    run,
};

const GUEST: &str = "bench-compute";

fn case(program: &str) -> String {
    format!("compute-{program}")
}

fn entry(program: &str) -> String {
    format!("{}-call", case(program))
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-compute")?;
    for program in PROGRAMS {
        let entry = entry(program);
        if !wanted.contains(&entry) {
            continue;
        }
        session.case(&[entry], |session| {
            let run = scene.guest(&case(program), GUEST);
            let side = Side::start("ours", run.command(&scene.containerd, false))?;
            measure(session, program, side)
        });
    }
    Ok(())
}

fn measure(session: &mut Session, program: &str, side: Side) -> Result<()> {
    let turns = Turns { rounds: session.effort.pick(15, 6), block: session.effort.pick(10, 4) };
    let job = Job {
        verb: Verb::Compute,
        targets: vec![program.to_owned()],
        size: 0,
        made: Made::Vector,
        touch: false,
        count: turns.block,
        branches: 1,
    };
    let native = session.contestant(&Peer::new(Baseline::Native), &job)?;
    let measured = take(vec![Contestant { name: "ours", side, job }, native], turns)?;
    let conditions = format!(
        "one run of the program in an instance that stays; its input is made before; {}",
        Session::turns_text(turns)
    );
    session.report.add_calls(&case(program), &conditions, &measured);
    Ok(())
}
