//! Table 17, Figures 31 and 32: how many invocations sleep at a time until one fails, and what they use meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::accounts::{ours, proportional_memory};
use cwasi_bench::fixture::{WORKFLOW, stage};
use cwasi_bench::plan::Effort;
use cwasi_testbed::run::Run as ContainerRun;
use cwasi_testbed::scene::{GUESTS, Scene};

use crate::actions::NATIVE;
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::images::{PROGRAM, RUNC};

pub const GROUP: Group = Group {
    name: "thesis: capacity",
    entries: &["thesis-capacity", "thesis-capacity-cpu", "thesis-capacity-ram"],
    run,
};

/// What an invocation does: longer than the test.
const SLEEP: &str = "sleep=36000000";
/// The guest that does it.
const GUEST: &str = "/papers-action.wasm";
/// Part of the machine's memory that stays free.
const RESERVE: f64 = 0.15;

/// Most invocations, and those of one step.
const fn limits(effort: Effort) -> (usize, usize) {
    match effort {
        Effort::Full => (4000, 50),
        Effort::Quick => (60, 20),
        Effort::Smoke => (2, 1),
    }
}

/// What a side came to.
struct Capacity {
    invocations: usize,
    stopped_by: String,
    /// Invocations, percent of a processor, MiB.
    steps: Vec<(usize, f64, f64)>,
}

/// Who starts invocations.
struct Side {
    name: String,
    image: String,
    /// Arguments without the action.
    args: Vec<&'static str>,
    /// Ours, or that of native containers.
    engine: Option<&'static str>,
}

impl Side {
    fn all(run: &Run, scene: &Scene) -> Result<Vec<Self>> {
        let ours = |engine: &'static str| Self {
            name: format!("CWASI {engine}"),
            image: GUESTS.to_owned(),
            args: vec![GUEST],
            engine: Some(engine),
        };
        let mut sides: Vec<Self> = run.engines().into_iter().map(ours).collect();
        let (name, image) = (NATIVE.to_owned(), run.own_image(scene)?);
        sides.push(Self { name, image, args: vec![PROGRAM, "action"], engine: None });
        Ok(sides)
    }

    /// Starts one invocation, which sleeps.
    fn start(&self, scene: &Scene, id: &str, query: &str) -> Result<()> {
        let args = self.args.iter().copied().chain([query]);
        let run = ContainerRun::new(&scene.namespace, &self.image, id).args(args);
        let run = match self.engine {
            Some(engine) => {
                run.annotation("cwasi.engine", engine).annotation("cwasi.workflow", WORKFLOW)
            }
            None => run.runtime(RUNC),
        };
        let output = run.command(&scene.containerd, true).output().context("ctr run")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{id} did not start: {said}");
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "thousands of invocations")]
fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let [mut counts, mut cpu, mut ram] = [Vec::new(), Vec::new(), Vec::new()];
    let mut reasons = Vec::new();
    for side in 0..run.engines().len() + 1 {
        // Each side begins with nothing beside it.
        let scene = stage(&run.programs, &format!("papers-capacity-{side}"))?;
        let side = Side::all(run, &scene)?.swap_remove(side);
        let found = fill(&scene, &side, limits(run.effort))?;
        reasons.push(format!("{}: {}", side.name, found.stopped_by));
        let count = vec![found.invocations as f64];
        counts.push(Series::new(&side.name, "at a time", "invocations", count));
        for (count, used, memory) in found.steps {
            cpu.push(Series::new(&side.name, count, "% CPU", vec![used]));
            ram.push(Series::new(&side.name, count, "MiB", vec![memory]));
        }
    }
    let conditions = format!(
        "One `ctr run` after the other of a program that sleeps, each an invocation in a container of its own, until one fails. What \
         stopped it: {}. CPU is that of the whole machine while containers start, 100 % is one processor. Memory is the \
         proportional set size of all processes but containerd: functions, our one shim daemon and zygote (the functions are of one \
         workflow), runc’s shims. The thesis’ Docker has a container for each invocation, as all sides have here; its Wasm ran \
         them in one executor.",
        reasons.join("; ")
    );
    let counts = Exhibit::new("thesis-capacity", Form::Table, &conditions, counts);
    Ok(vec![
        counts.published(&[
            ("OpenWhisk with Docker", "at a time", 81.0),
            ("OpenWhisk with WOW", "at a time", 878.0),
        ]),
        Exhibit::new("thesis-capacity-cpu", Form::Lines, &conditions, cpu)
            .published(&[("Docker, most", "81", 773.37), ("WOW, most", "878", 182.0)]),
        Exhibit::new("thesis-capacity-ram", Form::Lines, conditions, ram)
            .published(&[("Docker, RSS", "81", 4947.56), ("WOW, RSS", "878", 1030.58)]),
    ])
}

fn fill(scene: &Scene, side: &Side, (most, step): (usize, usize)) -> Result<Capacity> {
    // Compiles the module.
    side.start(scene, "first", "hello")?;
    scene.wait_stopped("first");
    scene.remove("first");
    let (mut asleep, mut steps) = (0, Vec::new());
    let stopped_by = loop {
        if asleep >= most {
            break format!("nothing failed up to {most}, where this run ends");
        }
        let free = free_memory()?;
        if free < RESERVE {
            break format!("this test, with {:.0} % of the machine’s memory left", free * 100.0);
        }
        let (started, before) = (Instant::now(), processor_time()?);
        let mut starting = asleep..asleep + step;
        let failed = starting.find_map(|number| {
            side.start(scene, &format!("sleeps-{number}"), SLEEP).err().map(|error| (number, error))
        });
        let used =
            100.0 * (processor_time()? - before).as_secs_f64() / started.elapsed().as_secs_f64();
        let all = failed.as_ref().map_or(asleep + step, |(number, _)| *number);
        let running = running(scene);
        if let Some((_, error)) = failed {
            break stopped(&mut asleep, running, format!("{error:#}"))?;
        }
        if running < all {
            let reason = format!("{} of {all} invocations ended", all - running);
            break stopped(&mut asleep, running, reason)?;
        }
        asleep = all;
        steps.push((asleep, used, proportional_memory(&ours(scene))?));
    };
    remove(scene)?;
    Ok(Capacity { invocations: asleep, stopped_by, steps })
}

/// Notes how many sleep still; without one there is no capacity.
fn stopped(asleep: &mut usize, running: usize, reason: String) -> Result<String> {
    ensure!(running > 0 && *asleep > 0, "{reason}");
    *asleep = running;
    Ok(reason)
}

/// Containers whose program runs.
fn running(scene: &Scene) -> usize {
    let list = scene.ctr(["task", "ls"]).success().text();
    list.lines().filter(|line| line.split_whitespace().last() == Some("RUNNING")).count()
}

/// All at once: one by one takes as long as the test.
fn remove(scene: &Scene) -> Result<()> {
    for noun in ["task", "container"] {
        let list = scene.ctr([noun, "ls", "--quiet"]).success().text();
        let force = (noun == "task").then_some("--force");
        let words = [noun, "rm"].into_iter().chain(force).chain(list.split_whitespace());
        let removed = scene.ctr(words);
        ensure!(removed.code == 0, "{}", removed.stderr);
    }
    Ok(())
}

/// Part of the machine's memory that is available.
fn free_memory() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let kib = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number =
            line.and_then(|line| line.trim().strip_suffix(" kB")).context("/proc/meminfo")?;
        Ok(number.trim().parse()?)
    };
    Ok(kib("MemAvailable:")? / kib("MemTotal:")?)
}

/// Time of all processors that was used since the machine's start.
fn processor_time() -> Result<Duration> {
    /// Of `/proc/stat`, on every Linux.
    const TICKS_PER_SECOND: u64 = 100;
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat")?;
    // user nice system idle iowait irq softirq steal
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let used: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).sum();
    Ok(Duration::from_millis(used * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory_and_uses_its_processors() {
        let free = free_memory().unwrap();
        assert!(free > 0.0 && free < 1.0, "{free}");
        let before = processor_time().unwrap();
        while processor_time().unwrap() <= before {
            std::hint::black_box([0_u8; 4096].iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
    }
}
