//! Cases of components: called by name beside the same function as a core module, and over HTTP beside
//! `wasmtime serve`.

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::{Job, Made, Verb};
use cwasi_testbed::paths::component_guest;

use super::Group;
use super::gateway::Gateway;
use super::http::flood;
use super::sequential::WORKERS;
use crate::fixture::{Fixture, TOUCH_ALL, TOUCH_NONE, WORKFLOW, stage};
use crate::peers::{Baseline, Peer, WasmtimeServe};
use crate::placement::Placement;
use crate::plan::{Effort, MIB, size_name};
use crate::report::{Comparison, bars};
use crate::session::Session;
use crate::side::Side;
use crate::stats::Rounds;
use crate::turns::{Contestant, take};

/// Components called by name.
pub const CALLS: Group = Group {
    name: "components",
    about: "one function calls a component",
    cases: |_| {
        let mut names = CASES.map(|case| format!("{}-call", case.name())).to_vec();
        names.push(format!("{EMBEDDED}-call"));
        names
    },
    run: run_calls,
};

/// A component behind HTTP.
pub const HTTP: Group = Group {
    name: "component-http",
    about: "HTTP clients call a component through the gateway",
    cases: |effort| connections(effort).iter().map(|count| http_name(*count)).collect(),
    run: run_http,
};

/// Components that do what the core modules of the same name do.
const COMPONENTS: [(&str, &str); 2] =
    [("component-touch-none", "touch_none"), ("component-touch-all", "touch_all")];
/// The component behind HTTP, which answers every request with the same bytes.
const HELLO: (&str, &str) = ("component-hello", "hello");
/// The component that takes jobs.
const DRIVER: &str = "driver";
/// The case of a component that calls what it embeds, and the name by which it does.
const EMBEDDED: &str = "component-embedded-64B";
const INSIDE: &str = "inside";
/// Name of the side that makes the same call in mode local.
const LOCAL: &str = "local";
/// Name of the core module's side in the report.
const CORE_MODULE: &str = "core-module";
/// Parts that a case of HTTP is cut into, for taking turns.
const PARTS: u32 = 4;

#[derive(Clone, Copy)]
struct Case {
    size: usize,
    touch: bool,
}

const CASES: [Case; 3] = [
    Case { size: 64, touch: false },
    Case { size: 2 * MIB, touch: true },
    Case { size: 100 * MIB, touch: false },
];

impl Case {
    fn name(self) -> String {
        let what = match (self.size, self.touch) {
            (64, _) => "",
            (_, true) => "-read",
            (_, false) => "-passed",
        };
        format!("component-{}{what}", size_name(self.size))
    }

    fn job(self, callee: &str, count: usize) -> Job {
        Job {
            verb: Verb::Call,
            targets: vec![callee.to_owned()],
            size: self.size,
            made: if self.size == 64 { Made::Vector } else { Made::InPlace },
            touch: self.touch,
            count,
            branches: 1,
        }
    }
}

fn run_calls(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-components")?;
    let fixture = Fixture::on(&scene);
    for (component, core) in COMPONENTS.into_iter().zip([TOUCH_NONE, TOUCH_ALL]) {
        start(&fixture, component, &[])?;
        fixture.callee(core, &[("cwasi.concurrency", WORKERS)]);
    }
    for case in CASES {
        let entry = format!("{}-call", case.name());
        if wanted.contains(&entry) {
            session.case(&[entry], |session| measure_calls(session, &fixture, case));
        }
    }
    let entry = format!("{EMBEDDED}-call");
    if wanted.contains(&entry) {
        session.case(&[entry], |session| measure_embedded(session, &fixture));
    }
    Ok(())
}

/// An image with the component `guest`.
fn image(fixture: &Fixture<'_>, name: &str, guest: &str) -> Result<String> {
    let path = component_guest(guest);
    let module = std::fs::read(&path)
        .with_context(|| format!("{}: make guests builds it", path.display()))?;
    Ok(fixture.scene.import_module(name, &module))
}

/// Starts a component as a secondary.
fn start(
    fixture: &Fixture<'_>,
    (name, guest): (&str, &str),
    annotations: &[(&str, &str)],
) -> Result<()> {
    let image = image(fixture, name, guest)?;
    let mut run = fixture
        .scene
        .image(&image, name)
        .annotation("cwasi.role", "secondary")
        .annotation("cwasi.function", name)
        .annotation("cwasi.workflow", WORKFLOW)
        .annotation("cwasi.engine", "wasmtime")
        .annotation("cwasi.concurrency", WORKERS);
    for (key, value) in annotations {
        run = run.annotation(key, value);
    }
    fixture.scene.start(run);
    Ok(())
}

fn measure_calls(session: &mut Session, fixture: &Fixture<'_>, case: Case) -> Result<()> {
    let turns = session.effort.turns(case.size);
    let index = usize::from(case.touch);
    let callees = [("ours", COMPONENTS[index].0), (CORE_MODULE, [TOUCH_NONE, TOUCH_ALL][index].0)];
    let mut contestants = Vec::new();
    for (name, callee) in callees {
        let driver = fixture.driver(&[])?;
        fixture.place(&driver, &[callee], Placement::Default)?;
        contestants.push(Contestant {
            name,
            side: driver.side,
            job: case.job(callee, turns.block),
        });
    }
    let measured = take(contestants, turns)?;
    let conditions = format!(
        "{} payload to a component with `payload-handler`, which {}, or to a core module that does the same; a fresh \
         instance for each request, cwasi.concurrency={WORKERS}; {}",
        size_name(case.size),
        if case.touch { "reads all of it in one `read`" } else { "reads nothing of it" },
        Session::turns_text(turns)
    );
    session.report.add_calls(&case.name(), &conditions, &measured);
    Ok(())
}

/// A component calls a component and a core module that it embeds, and the component in mode local.
fn measure_embedded(session: &mut Session, fixture: &Fixture<'_>) -> Result<()> {
    let case = CASES[0];
    let turns = session.effort.turns(case.size);
    let driver = image(fixture, "component-driver", DRIVER)?;
    let (local, guest) = COMPONENTS[0];
    let component = image(fixture, local, guest)?;
    let (_, module) = TOUCH_NONE;
    let module =
        fixture.scene.import_module(module, &crate::fixture::guest(&session.programs, module)?);
    let mut contestants = Vec::new();
    for (name, inside) in [("ours", Some(component)), (CORE_MODULE, Some(module)), (LOCAL, None)] {
        let wish = inside.as_ref().map(|image| format!("{INSIDE}={image}"));
        let annotations = match &wish {
            Some(wish) => vec![("cwasi.embed", wish.as_str()), ("cwasi.mode", "embedded")],
            None => Vec::new(),
        };
        let driver = fixture
            .driver_of(&annotations, |id| fixture.scene.image(&driver, id).args(["/m.wasm"]))?;
        let callee = if wish.is_some() { INSIDE } else { local };
        fixture.place(&driver, &[local], Placement::Default)?;
        contestants.push(Contestant {
            name,
            side: driver.side,
            job: case.job(callee, turns.block),
        });
    }
    let measured = take(contestants, turns)?;
    let conditions = format!(
        "64 B payload, a list of bytes, from a component to a component with `payload-handler` that it embeds; to a \
         core module that it embeds; or to the same component in mode local, with a fresh instance for each request; \
         what is embedded keeps its instance as long as its caller; {}",
        Session::turns_text(turns)
    );
    session.report.add_calls(EMBEDDED, &conditions, &measured);
    Ok(())
}

const fn connections(effort: Effort) -> &'static [usize] {
    match effort {
        Effort::Smoke => &[2],
        _ => &[1, 32, 128],
    }
}

fn http_name(connections: usize) -> String {
    format!("component-http-hello-{connections}-connections")
}

fn run_http(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-component-http")?;
    let fixture = Fixture::on(&scene);
    let annotations = [("cwasi.http", "gateway"), ("cwasi.queue", "1024")];
    start(&fixture, HELLO, &annotations)?;
    let gateway = Gateway::start(&session.programs, &scene)?;
    let theirs = WasmtimeServe::start(&component_guest(HELLO.1))?;
    let ours = format!("{}/function/{}", gateway.address, HELLO.0);
    let addresses = std::iter::once(ours).chain(theirs.iter().map(WasmtimeServe::address));
    let peers: Vec<Peer> =
        addresses.map(|address| Peer::new(Baseline::HttpLoopback).through(&address)).collect();
    let program = std::env::current_exe()?;
    let mut clients: Vec<Vec<Side>> = peers.iter().map(|_| Vec::new()).collect();
    for &count in connections(session.effort) {
        let name = http_name(count);
        if !wanted.contains(&name) {
            continue;
        }
        for (sides, peer) in clients.iter_mut().zip(&peers) {
            while sides.len() < count {
                sides.push(peer.start(&program)?);
            }
        }
        let sides = clients.iter_mut().map(|sides| &mut sides[..count]).collect();
        session.case(std::slice::from_ref(&name), |session| measure_http(session, &name, sides));
    }
    clients.into_iter().flatten().try_for_each(Side::end)
}

/// Our clients and those of `wasmtime serve`, if it is there, take turns.
fn measure_http(session: &mut Session, name: &str, mut sides: Vec<&mut [Side]>) -> Result<()> {
    let job = Job {
        verb: Verb::Flood,
        targets: vec![HELLO.0.to_owned()],
        // The component's answer is that to an empty payload.
        size: 0,
        made: Made::Vector,
        touch: false,
        count: usize::try_from((session.effort.load() / PARTS).as_millis())?,
        branches: 1,
    };
    let count = sides.first().map_or(0, |sides| sides.len());
    let mut measured: Vec<Rounds> = sides.iter().map(|_| Rounds::default()).collect();
    for round in 0..=PARTS {
        for (sides, measured) in sides.iter_mut().zip(&mut measured) {
            let durations = flood(sides, &job)?;
            if round > 0 {
                measured.0.push(durations);
            }
        }
    }
    let theirs = measured.get(1).map(|theirs| (WasmtimeServe::NAME, theirs));
    let not_measured = match theirs {
        Some(_) => String::new(),
        None => format!("; {}", WasmtimeServe::MISSING),
    };
    session.report.add(Comparison {
        case: name,
        unit: "us",
        ours: measured.first().context("ours is the first")?,
        baseline: theirs,
        direction: bars::direction(name, WasmtimeServe::NAME),
        conditions: format!(
            "{count} clients, processes of their own with a connection each, POST nothing and read 16 bytes: through \
             the gateway to a component with cwasi.concurrency={WORKERS}, or to the same component in {}; a fresh \
             instance for each request on both sides; {PARTS} parts of {} ms in turns, after one to warm \
             up{not_measured}",
            WasmtimeServe::NAME,
            job.count
        ),
    });
    Ok(())
}
