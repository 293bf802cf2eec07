//! Table 17, Figures 31 and 32: how many invocations sleep at a time until one fails, and what they use meanwhile.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cwasi_bench::accounts::{ours, proportional_memory};
use cwasi_bench::fixture::{WORKFLOW, stage};
use cwasi_bench::plan::Effort;
use cwasi_testbed::scene::Scene;

use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::actions::{ABOUT, sides};
use crate::sides::door::{Door, Function};

pub const GROUP: Group = Group {
    name: "thesis: capacity",
    entries: &["thesis-capacity", "thesis-capacity-cpu", "thesis-capacity-ram"],
    run,
};

/// What a sleeping invocation is asked for: longer than the test.
const SLEEP: &str = "sleep=3600000";
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

#[expect(clippy::cast_precision_loss, reason = "thousands of invocations")]
fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let [mut counts, mut cpu, mut ram] = [Vec::new(), Vec::new(), Vec::new()];
    let mut reasons = Vec::new();
    let numbers = 0..run.engines().len() + 1;
    for side in numbers {
        let scene = stage(&run.programs, &format!("papers-capacity-{side}"))?;
        let function = sides(run, &scene, 1)?.swap_remove(side);
        let function = function.with("cwasi.workflow", WORKFLOW).with("cwasi.timeout", "2h");
        let found = fill(&scene, &function, limits(run.effort))?;
        let name = &function.side;
        reasons.push(format!("{name}: {}", found.stopped_by));
        counts.push(Series::new(name, "at a time", "invocations", vec![found.invocations as f64]));
        for (count, used, memory) in found.steps {
            cpu.push(Series::new(name, count, "% CPU", vec![used]));
            ram.push(Series::new(name, count, "MiB", vec![memory]));
        }
    }
    let conditions = format!(
        "One container after the other, each with one invocation that sleeps, until one of them fails. What stopped it: {}. CPU is \
         that of the whole machine while containers start, 100 % is one processor. Memory is the proportional set size of all \
         processes but containerd: functions, our one shim daemon and zygote, runc’s shims. {ABOUT} The thesis’ Docker has a \
         container for each invocation, as all sides have here; its Wasm ran them in one executor.",
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

fn fill(scene: &Scene, function: &Function, (most, step): (usize, usize)) -> Result<Capacity> {
    let mut held: Vec<(Door<'_>, TcpStream)> = Vec::new();
    let mut steps = Vec::new();
    let stopped_by = loop {
        if held.len() >= most {
            break format!("nothing failed up to {most}, where this run ends");
        }
        let free = free_memory()?;
        if free < RESERVE {
            break format!("this test, with {:.0} % of the machine’s memory left", free * 100.0);
        }
        let (started, before) = (Instant::now(), processor_time()?);
        let failed =
            add(scene, function, &mut held, step).and_then(|()| all_sleep(&mut held)).err();
        let used =
            100.0 * (processor_time()? - before).as_secs_f64() / started.elapsed().as_secs_f64();
        if let Some(error) = failed {
            // Without one that works there is no capacity.
            ensure!(!held.is_empty(), "{error:#}");
            break format!("{error:#}");
        }
        steps.push((held.len(), used, proportional_memory(&ours(scene))?));
    };
    Ok(Capacity { invocations: held.len(), stopped_by, steps })
}

fn add<'a>(
    scene: &'a Scene,
    function: &Function,
    held: &mut Vec<(Door<'a>, TcpStream)>,
    step: usize,
) -> Result<()> {
    for _ in 0..step {
        let door = function.open(scene, &format!("sleeps-{}", held.len()), "hello")?;
        let stream = door.target(SLEEP).send()?;
        held.push((door, stream));
    }
    Ok(())
}

/// An error for the first invocation that has an answer, or lost its connection.
fn all_sleep(held: &mut [(Door<'_>, TcpStream)]) -> Result<()> {
    for (number, (door, stream)) in held.iter_mut().enumerate() {
        stream.set_nonblocking(true)?;
        let mut head = [0; 64];
        match stream.peek(&mut head) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                return Err(error).with_context(|| format!("invocation {number}, {}", door.id));
            }
            Ok(length) => {
                bail!("invocation {number} ended: {:?}", String::from_utf8_lossy(&head[..length]))
            }
        }
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
