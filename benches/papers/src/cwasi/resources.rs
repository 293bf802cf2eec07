//! Figures 7c and 8c: processor time and memory of everything that takes part.

use anyhow::Result;
use cwasi_bench::accounts::{CpuTimes, family, ours, proportional_memory};
use cwasi_bench::fixture::{Fixture, TOUCH_ALL, guest, stage};
use cwasi_bench::peers::Peer;
use cwasi_bench::plan::Effort;
use cwasi_bench::side::Side;
use cwasi_bench_protocol::{Job, Verb};
use cwasi_testbed::scene::Scene;

use super::engines::Sides;
use super::fan::{NATIVE_IN_TURN, NATIVE_TOGETHER, callees, together, widths};
use super::{BRANCH, ENGINES, INSIDE, MB, NATIVE, WORKERS, calls, engines};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::payload_server::PayloadServer;
use crate::sides::wasmedge_http::{self, ABOUT as HTTP_IN_WASMEDGE};

pub const SEQUENCE: Group = Group {
    name: "CWASI: resources of a sequence",
    entries: &["cwasi-figure-7c-cpu", "cwasi-figure-7c-ram"],
    run: sequence,
};

pub const FAN_OUT: Group = Group {
    name: "CWASI: resources of a fan-out",
    entries: &["cwasi-figure-8c-cpu", "cwasi-figure-8c-ram"],
    run: fan_out,
};

const HOW: &str = "All processes of a side: ours are the functions, the shim daemon and the zygote; a native side’s are client \
    and server, with the container’s shim; containerd is nobody’s. By process tree, as one side’s processes are in several \
    cgroups or in none. CPU: processor time without what making the payloads took, by the time of the calls; 100 % is one \
    processor. RAM: proportional set size after the calls, shared pages once. Mode networked is not among them: its Redis \
    would be a third party’s.";

const fn sizes(effort: Effort) -> &'static [usize] {
    match effort {
        Effort::Smoke => &[2],
        _ => &[2, 50, 100],
    }
}

/// What a side used: percent of a processor, MiB.
#[derive(Default)]
struct Usage {
    cpu: Vec<Series>,
    ram: Vec<Series>,
}

impl Usage {
    /// Lets a side work in rounds, after one to warm up.
    fn add(
        &mut self,
        name: &str,
        case: &str,
        rounds: usize,
        side: &mut Side,
        job: &Job,
        processes: impl Fn(&Side) -> Result<Vec<i32>>,
    ) -> Result<()> {
        let (mut cpu, mut ram) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let before = CpuTimes::of(&processes(side)?)?;
            let answer = side.perform(job)?;
            let used = before.used()?.saturating_sub(answer.making_cpu);
            if round > 0 {
                let time: u64 = answer.call.iter().sum();
                #[expect(clippy::cast_precision_loss, reason = "durations far below 2^52 ns")]
                cpu.push(100.0 * used as f64 / time as f64);
                ram.push(proportional_memory(&processes(side)?)?);
            }
        }
        self.cpu.push(Series::new(name, case, "% CPU", cpu));
        self.ram.push(Series::new(name, case, "MiB", ram));
        Ok(())
    }

    fn exhibits(self, [cpu, ram]: [&'static str; 2], what: &str) -> Vec<Exhibit> {
        let conditions = format!("{what} {ENGINES} {HTTP_IN_WASMEDGE} {HOW}");
        vec![
            Exhibit::new(cpu, Form::Boxes, &conditions, self.cpu),
            Exhibit::new(ram, Form::Boxes, conditions, self.ram),
        ]
    }
}

/// A job with its name in the report.
type Case = (String, Job);

fn sequence(run: &Run) -> Result<Vec<Exhibit>> {
    let block = run.effort.pick(10, 5);
    let cases = |target: &str| -> Vec<Case> {
        let case =
            |size: &usize| (format!("{size} MB"), calls(Verb::Call, target, size * MB, block));
        sizes(run.effort).iter().map(case).collect()
    };
    let mut usage = Usage::default();
    for sides in engines::built(run) {
        embedded(run, &mut usage, sides, &cases(INSIDE))?;
        let local = stage(&run.programs, "papers-resources-local")?;
        let fixture = Fixture::on(&local);
        let callee = sides.callee(&fixture, TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
        driver(run, &mut usage, (sides, sides.local), &fixture, &cases(&callee))?;
    }
    native(run, &mut usage, (NATIVE, 1), &cases(""))?;
    for side in wasmedge_http::sides(&run.programs) {
        for case in cases("") {
            guests(run, &mut usage, side.name, &side.peer(run.wasmedge_guests()?)?, &case)?;
        }
    }
    Ok(usage.exhibits(
        ["cwasi-figure-7c-cpu", "cwasi-figure-7c-ram"],
        &format!("{block} calls a round, payloads read by the callee; each side by itself."),
    ))
}

fn fan_out(run: &Run) -> Result<Vec<Exhibit>> {
    let mut usage = Usage::default();
    let widths = widths(run.effort);
    let at_once = |targets: &[String]| -> Vec<Case> {
        let case =
            |width: &usize| (width.to_string(), together(Verb::FanOut, targets.to_vec(), *width));
        widths.iter().map(case).collect()
    };
    let in_turn = |target: &str| -> Vec<Case> {
        let case = |width: &usize| (width.to_string(), calls(Verb::Call, target, BRANCH, *width));
        widths.iter().map(case).collect()
    };
    for sides in engines::built(run) {
        let scene = stage(&run.programs, "papers-resources-fan-out")?;
        let fixture = Fixture::on(&scene);
        let names = callees(&fixture, sides, run.effort);
        driver(run, &mut usage, (sides, sides.local_together), &fixture, &at_once(&names))?;
        drop(scene);
        let scene = stage(&run.programs, "papers-resources-in-turn")?;
        let fixture = Fixture::on(&scene);
        let callee = sides.callee(&fixture, TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
        driver(run, &mut usage, (sides, sides.local_in_turn), &fixture, &in_turn(&callee))?;
    }
    let connections = widths.last().copied().unwrap_or(1);
    native(run, &mut usage, (NATIVE_TOGETHER, connections), &at_once(&[]))?;
    native(run, &mut usage, (NATIVE_IN_TURN, 1), &in_turn(""))?;
    for side in wasmedge_http::sides(&run.programs) {
        for case in in_turn("") {
            guests(run, &mut usage, side.in_turn, &side.peer(run.wasmedge_guests()?)?, &case)?;
        }
    }
    Ok(usage.exhibits(
        ["cwasi-figure-8c-cpu", "cwasi-figure-8c-ram"],
        "One payload of 2 MB to N callees at a time, or N calls of one callee in turn; each callee reads it. At a time ours \
         keeps as many worker processes as the widest fan-out has callees, 250 at most for each of its functions; hyper’s server \
         is one process. Numbers in turn and at a time do not compare.",
    ))
}

fn rounds(run: &Run) -> usize {
    run.effort.pick(10, 3)
}

fn embedded(run: &Run, usage: &mut Usage, sides: &Sides, cases: &[Case]) -> Result<()> {
    let scene = stage(&run.programs, "papers-resources-embedded")?;
    let (_, module) = TOUCH_ALL;
    let image = scene.import_module(module, &guest(&run.programs, module)?);
    let wish = format!("{INSIDE}={image}");
    let annotations = [("cwasi.embed", wish.as_str()), ("cwasi.mode", "embedded")];
    let mut driver = sides.driver(&Fixture::on(&scene), &annotations)?;
    for (case, job) in cases {
        usage
            .add(sides.embedded, case, rounds(run), &mut driver.side, job, |_| Ok(ours(&scene)))?;
    }
    driver.side.end()
}

/// Lets a driver of an engine call functions on its node; the name is that of the side.
fn driver(
    run: &Run,
    usage: &mut Usage,
    (sides, name): (&Sides, &str),
    fixture: &Fixture<'_>,
    cases: &[Case],
) -> Result<()> {
    let scene: &Scene = fixture.scene;
    let mut driver = sides.driver(fixture, &[])?;
    for (case, job) in cases {
        usage.add(name, case, rounds(run), &mut driver.side, job, |_| Ok(ours(scene)))?;
    }
    driver.side.end()
}

/// A client with that many connections to a native server.
fn native(
    run: &Run,
    usage: &mut Usage,
    (name, connections): (&str, usize),
    cases: &[Case],
) -> Result<()> {
    let scene = stage(&run.programs, "papers-resources-native")?;
    let program = std::env::current_exe()?;
    let server = PayloadServer::start(&scene, "payload-server", &run.own_image(&scene)?)?;
    let mut side = server.peer(connections).start(&program)?;
    for (case, job) in cases {
        usage.add(name, case, rounds(run), &mut side, job, |side| {
            Ok([family(side.pid()), server.processes()?].concat())
        })?;
    }
    side.end()
}

/// Two guests under the `wasmedge` command, new ones for each case.
fn guests(run: &Run, usage: &mut Usage, name: &str, peer: &Peer, (case, job): &Case) -> Result<()> {
    let mut side = peer.start(&std::env::current_exe()?)?;
    usage.add(name, case, rounds(run), &mut side, job, |side| Ok(family(side.pid())))?;
    side.end()
}
