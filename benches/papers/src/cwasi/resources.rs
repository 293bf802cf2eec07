//! Figures 7c and 8c: processor time and memory of everything that takes part.

use anyhow::Result;
use cwasi_bench::accounts::{CpuTimes, family, ours, proportional_memory};
use cwasi_bench::fixture::{Fixture, TOUCH_ALL, guest, stage};
use cwasi_bench::plan::Effort;
use cwasi_bench::side::Side;
use cwasi_bench_protocol::{Job, Verb};
use cwasi_testbed::scene::Scene;

use super::fan::{WASMEDGE_IN_TURN, callees, together, widths};
use super::{BRANCH, EMBEDDED, INSIDE, LOCAL, MB, NATIVE, WASMEDGE, WORKERS, calls};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::payload_server::PayloadServer;

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
        let conditions = format!("{what} {HOW}");
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
    embedded(run, &mut usage, &cases(INSIDE))?;
    let local = stage(&run.programs, "papers-resources-local")?;
    let fixture = Fixture::on(&local);
    fixture.callee(TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
    drivers(run, &mut usage, LOCAL, &fixture, &cases(TOUCH_ALL.0))?;
    drop(local);
    native(run, &mut usage, 1, &cases(""))?;
    let peer = run.wasmedge_http()?;
    for (case, job) in cases("") {
        let mut side = peer.start(&std::env::current_exe()?)?;
        usage.add(WASMEDGE, &case, rounds(run), &mut side, &job, |side| Ok(family(side.pid())))?;
        side.end()?;
    }
    Ok(usage.exhibits(
        ["cwasi-figure-7c-cpu", "cwasi-figure-7c-ram"],
        &format!("{block} calls a round, payloads read by the callee; each side by itself."),
    ))
}

fn fan_out(run: &Run) -> Result<Vec<Exhibit>> {
    let mut usage = Usage::default();
    let scene = stage(&run.programs, "papers-resources-fan-out")?;
    let fixture = Fixture::on(&scene);
    let names = callees(&fixture, run.effort);
    let cases = |targets: &[String]| -> Vec<Case> {
        let case =
            |width: &usize| (width.to_string(), together(Verb::FanOut, targets.to_vec(), *width));
        widths(run.effort).iter().map(case).collect()
    };
    drivers(run, &mut usage, LOCAL, &fixture, &cases(&names))?;
    drop(scene);
    native(run, &mut usage, *widths(run.effort).last().unwrap_or(&1), &cases(&[]))?;
    let peer = run.wasmedge_http()?;
    for &width in widths(run.effort) {
        let mut side = peer.start(&std::env::current_exe()?)?;
        let job = calls(Verb::Call, "", BRANCH, width);
        let of = |side: &Side| Ok(family(side.pid()));
        usage.add(WASMEDGE_IN_TURN, &width.to_string(), rounds(run), &mut side, &job, of)?;
        side.end()?;
    }
    Ok(usage.exhibits(
        ["cwasi-figure-8c-cpu", "cwasi-figure-8c-ram"],
        "One payload of 2 MB to N callees at a time, read by each. Ours keeps as many worker processes as the widest fan-out has \
         callees, 250 at most for each of its functions; hyper’s server is one process. WasmEdge HTTP: N calls in turn, as its client \
         makes single calls only; its numbers do not compare with those at a time.",
    ))
}

fn rounds(run: &Run) -> usize {
    run.effort.pick(10, 3)
}

fn embedded(run: &Run, usage: &mut Usage, cases: &[Case]) -> Result<()> {
    let scene = stage(&run.programs, "papers-resources-embedded")?;
    let (_, module) = TOUCH_ALL;
    let image = scene.import_module(module, &guest(&run.programs, module)?);
    let wish = format!("{INSIDE}={image}");
    let mut driver =
        Fixture::on(&scene).driver(&[("cwasi.embed", &wish), ("cwasi.mode", "embedded")])?;
    for (case, job) in cases {
        usage.add(EMBEDDED, case, rounds(run), &mut driver.side, job, |_| Ok(ours(&scene)))?;
    }
    driver.side.end()
}

fn drivers(
    run: &Run,
    usage: &mut Usage,
    name: &str,
    fixture: &Fixture<'_>,
    cases: &[Case],
) -> Result<()> {
    let scene: &Scene = fixture.scene;
    let mut driver = fixture.driver(&[])?;
    for (case, job) in cases {
        usage.add(name, case, rounds(run), &mut driver.side, job, |_| Ok(ours(scene)))?;
    }
    driver.side.end()
}

fn native(run: &Run, usage: &mut Usage, connections: usize, cases: &[Case]) -> Result<()> {
    let scene = stage(&run.programs, "papers-resources-native")?;
    let program = std::env::current_exe()?;
    let server = PayloadServer::start(&scene, "payload-server", &run.own_image(&scene)?)?;
    let mut side = server.peer(connections).start(&program)?;
    for (case, job) in cases {
        usage.add(NATIVE, case, rounds(run), &mut side, job, |side| {
            Ok([family(side.pid()), server.processes()?].concat())
        })?;
    }
    side.end()
}
