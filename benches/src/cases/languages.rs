//! Cases of the function in docs/languages.md in each language, called back to back beside the same function in Rust:
//! the cost of a request with a new or renewed instance.

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::{Job, Made, Verb};
use cwasi_testbed::languages::Example;

use super::Group;
use crate::fixture::{Fixture, TOUCH_NONE, WORKFLOW, stage};
use crate::placement::Placement;
use crate::session::Session;
use crate::turns::{Contestant, take};

/// See the file's head.
pub const GROUP: Group = Group {
    name: "languages",
    about: "a function in C, AssemblyScript, Zig and Go",
    cases: |_| CASES.iter().flat_map(Case::entries).collect(),
    run,
};

/// Payload in bytes.
const SIZE: usize = 64;
/// What the functions call.
const CALLEE: &str = "reverse";
const RUST: &str = "rust";

/// A function and how long its instances live.
struct Case {
    name: &'static str,
    example: Example,
    isolation: &'static str,
}

const CASES: [Case; 5] = [
    Case { name: "language-c", example: Example::C, isolation: "request" },
    Case {
        name: "language-assemblyscript",
        example: Example::AssemblyScript,
        isolation: "request",
    },
    Case { name: "language-zig", example: Example::Zig, isolation: "request" },
    Case { name: "language-go", example: Example::Go, isolation: "request" },
    Case { name: "language-go-snapshot", example: Example::Go, isolation: "snapshot" },
];

impl Case {
    /// The call, and until the payload was there.
    fn entries(&self) -> [String; 2] {
        [format!("{}-call", self.name), self.name.to_owned()]
    }
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-languages")?;
    let fixture = Fixture::on(&scene);
    fixture.callee((CALLEE, TOUCH_NONE.1), &[]);
    let rust = scene.guest(RUST, "actor").args(["chain", CALLEE]);
    scene.start(secondary(rust, RUST, "request"));
    for case in CASES {
        let entries = case.entries();
        if entries.iter().any(|name| wanted.contains(name)) {
            session.case(&entries, |session| measure(session, &fixture, &case));
        }
    }
    Ok(())
}

fn secondary(run: cwasi_testbed::run::Run, name: &str, isolation: &str) -> cwasi_testbed::run::Run {
    run.annotation("cwasi.role", "secondary")
        .annotation("cwasi.function", name)
        .annotation("cwasi.workflow", WORKFLOW)
        .annotation("cwasi.isolation", isolation)
}

fn measure(session: &mut Session, fixture: &Fixture<'_>, case: &Case) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let module = case.example.build(folder.path())?;
    let module = std::fs::read(&module).with_context(|| format!("read {}", module.display()))?;
    let image = fixture.scene.import_module(case.name, &module);
    fixture.scene.start(secondary(
        fixture.scene.image(&image, case.name),
        case.name,
        case.isolation,
    ));
    let turns = session.effort.turns(SIZE);
    let contestants = [("ours", case.name), (RUST, RUST)].map(|(name, target)| {
        let driver = fixture.driver(&[])?;
        fixture.place(&driver, &[target, CALLEE], Placement::Default)?;
        let job = Job {
            verb: Verb::Call,
            targets: vec![target.to_owned()],
            size: SIZE,
            made: Made::InPlace,
            touch: false,
            count: turns.block,
            branches: 1,
        };
        Ok(Contestant { name, side: driver.side, job })
    });
    let contestants = contestants.into_iter().collect::<Result<Vec<_>>>()?;
    let measured = take(contestants, turns)?;
    fixture.scene.remove(case.name);
    let conditions = format!(
        "{SIZE} B payload, which the function sends on to a function in Rust; back to back, one worker, \
         cwasi.isolation={}; the baseline is the same function in Rust; {}",
        case.isolation,
        Session::turns_text(turns)
    );
    session.report.add_turns(case.name, &conditions, &measured);
    Ok(())
}
