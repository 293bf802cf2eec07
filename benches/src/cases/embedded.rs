//! Cases of calls to a function in its caller's own VM.

use anyhow::Result;
use cwasi_bench_protocol::{Job, Made, Verb};

use super::Group;
use crate::fixture::{Fixture, TOUCH_ALL, TOUCH_NONE, guest, stage};
use crate::peers::{Baseline, Peer};
use crate::placement::Placement;
use crate::plan::{MIB, size_name};
use crate::session::Session;
use crate::turns::{Contestant, take};

/// See the file's head.
pub const GROUP: Group = Group {
    name: "embedded",
    about: "a function in its caller's own VM",
    cases: |_| CASES.map(|case| format!("{}-call", case.name())).to_vec(),
    run,
};

/// Name by which the driver calls what is embedded in it.
const INSIDE: &str = "inside";

#[derive(Clone, Copy)]
struct Case {
    size: usize,
    touch: bool,
}

/// File name of the callee of 64 bytes. The ping-pong's server reads no clock, either.
const UNTIMED: &str = "bench_untimed";

const CASES: [Case; 3] = [
    Case { size: 64, touch: false },
    Case { size: 2 * MIB, touch: false },
    Case { size: 2 * MIB, touch: true },
];

impl Case {
    fn name(self) -> String {
        let touch = match (self.size, self.touch) {
            (64, _) => "",
            (_, true) => "-touch-all",
            (_, false) => "-touch-none",
        };
        format!("embedded-{}{touch}", size_name(self.size))
    }
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-embedded")?;
    let fixture = Fixture::on(&scene);
    for case in CASES {
        let entry = format!("{}-call", case.name());
        if wanted.contains(&entry) {
            session.case(&[entry], |session| measure(session, &fixture, case));
        }
    }
    Ok(())
}

fn measure(session: &mut Session, fixture: &Fixture<'_>, case: Case) -> Result<()> {
    let module = match (case.size, case.touch) {
        (64, _) => UNTIMED,
        (_, true) => TOUCH_ALL.1,
        (_, false) => TOUCH_NONE.1,
    };
    let image = fixture.scene.import_module(module, &guest(&session.programs, module)?);
    let driver = fixture
        .driver(&[("cwasi.embed", &format!("{INSIDE}={image}")), ("cwasi.mode", "embedded")])?;
    fixture.place(&driver, &[], Placement::SameCore)?;
    let turns = session.effort.turns(case.size);
    let job = Job {
        verb: Verb::Call,
        targets: vec![INSIDE.to_owned()],
        size: case.size,
        made: if case.size == 64 { Made::Vector } else { Made::InPlace },
        touch: case.touch,
        count: turns.block,
        branches: 1,
    };
    let kind = if case.size == 64 { Baseline::UdsPingpong } else { Baseline::UdsCopy };
    let peer = Peer::new(kind).at(Placement::SameCore);
    let theirs = session.contestant(&peer, &job)?;
    let measured = take(vec![Contestant { name: "ours", side: driver.side, job }, theirs], turns)?;
    let conditions = format!(
        "{} payload, {}; {}; the callee's instance lives as long as the caller's, as embedded \
         functions do; everything on processor 0, the baseline's two processes too; {}",
        size_name(case.size),
        if case.size == 64 {
            "copied once into the callee's memory"
        } else {
            "made in a region, sealed inside the clock, mapped into the callee's memory"
        },
        if case.touch { "callee reads all of it" } else { "callee reads nothing of it" },
        Session::turns_text(turns)
    );
    session.report.add_calls(&case.name(), &conditions, &measured);
    Ok(())
}
