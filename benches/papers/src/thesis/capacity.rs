//! Table 17, Figures 31 and 32: how many invocations sleep at a time until one fails, and what they use meanwhile.

use std::fs;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::accounts::{ours, proportional_memory};
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;
use cwasi_testbed::scene::Scene;
use serde_json::json;

use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::platform::{Action, Kind, Platform};
use crate::openwhisk::{ABOUT, SERVER, platforms};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::load::at_once;

pub const GROUP: Group = Group {
    name: "thesis: capacity",
    entries: &["thesis-capacity", "thesis-capacity-cpu", "thesis-capacity-ram"],
    run,
};

const ACTION: &str = "sleep";
/// How long an invocation sleeps: longer than the test, and less than OpenWhisk's longest deadline.
const SLEEP_MS: u64 = 50 * 60 * 1000;
/// Part of the machine's memory that stays free.
const RESERVE: f64 = 0.15;
/// Case of the counts.
const CASE: &str = "at a time";

/// Where a side stops if nothing fails.
struct Limits {
    invocations: usize,
    /// Invocations between two looks at processors and memory; they start at a time.
    step: usize,
    time: Duration,
}

const fn limits(effort: Effort) -> Limits {
    let (invocations, step, seconds) = match effort {
        Effort::Full => (10_000, 50, 2400),
        Effort::Quick => (4000, 20, 45),
        Effort::Smoke => (2, 1, 60),
    };
    Limits { invocations, step, time: Duration::from_secs(seconds) }
}

/// Why a side started no more invocations.
enum Stop {
    /// One failed.
    Failed(String),
    /// This test has a bound.
    Bound(String),
}

/// What a side came to.
struct Capacity {
    invocations: usize,
    stop: Stop,
    /// Invocations, percent of a processor, MiB.
    steps: Vec<(usize, f64, f64)>,
}

/// An invocation that sleeps.
struct Invocation<'a> {
    _action: Action<'a>,
    /// Its response would come here.
    stream: TcpStream,
}

impl Invocation<'_> {
    /// True until the response, or the end of the connection.
    fn sleeps(&self) -> bool {
        let waits = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        self.stream.set_nonblocking(true).is_ok() && self.stream.peek(&mut [0]).is_err_and(waits)
    }
}

#[expect(clippy::cast_precision_loss, reason = "thousands of invocations")]
fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let [mut counts, mut cpu, mut ram] = [Vec::new(), Vec::new(), Vec::new()];
    let (mut reasons, mut bounded) = (Vec::new(), Vec::new());
    for side in 0.. {
        // Each side begins with nothing beside it.
        let scene = stage(&run.programs, &format!("papers-capacity-{side}"))?;
        let platform = platforms(run, &scene, 1, &[ACTION])?.swap_remove(side);
        let name = platform.name.clone();
        // The last one.
        if name == SERVER {
            break;
        }
        let platform = platform.of_one_workflow().unwrap_or(platform);
        let found = fill(&scene, &platform, &limits(run.effort)).with_context(|| name.clone())?;
        let reason = match found.stop {
            Stop::Failed(reason) => reason,
            Stop::Bound(reason) => {
                bounded.push(name.clone());
                format!("{reason}, so its number is a lower bound")
            }
        };
        reasons.push(format!("{name}: {reason}"));
        counts.push(Series::new(&name, CASE, "invocations", vec![found.invocations as f64]));
        for (count, used, memory) in found.steps {
            cpu.push(Series::new(&name, count, "% CPU", vec![used]));
            ram.push(Series::new(&name, count, "MiB", vec![memory]));
        }
    }
    Ok(exhibits([counts, cpu, ram], &reasons, &bounded))
}

fn exhibits(
    [counts, cpu, ram]: [Vec<Series>; 3],
    reasons: &[String],
    bounded: &[String],
) -> Vec<Exhibit> {
    let conditions = format!(
        "One action after the other gets its code and one invocation that sleeps, until one fails. An executor has an action for \
         each invocation, the other sides a container; containers of ours are of one workflow. What stopped it: {}. CPU is that \
         of the whole machine while invocations start, 100 % is one processor. Memory is the proportional set size of all processes \
         but containerd: the executor and its actions, or functions, our one shim daemon, zygote, and runc’s shims. {SERVER} is \
         left out: it differs from the proxy by one process for each. {ABOUT}",
        reasons.join("; ")
    );
    let counts = Exhibit::new("thesis-capacity", Form::Table, &conditions, counts).bounded(bounded);
    vec![
        counts.published(&[
            ("OpenWhisk with Docker", CASE, 81.0),
            ("OpenWhisk with WOW", CASE, 878.0),
        ]),
        Exhibit::new("thesis-capacity-cpu", Form::Lines, &conditions, cpu)
            .published(&[("Docker, most", "81", 773.37), ("WOW, most", "878", 182.0)]),
        Exhibit::new("thesis-capacity-ram", Form::Lines, conditions, ram)
            .published(&[("Docker, RSS", "81", 4947.56), ("WOW, RSS", "878", 1030.58)]),
    ]
}

fn fill(scene: &Scene, platform: &Platform, limits: &Limits) -> Result<Capacity> {
    // Compiles the module, and keeps the shim daemon of a workflow running.
    let _first = platform.start(scene, "first", ACTION)?;
    let (began, mut asleep, mut steps) = (Instant::now(), Vec::new(), Vec::new());
    let stop = loop {
        let count = asleep.len();
        if let Some(bound) = bound(count, began, limits)? {
            break Stop::Bound(bound);
        }
        let (started, before) = (Instant::now(), processor_time()?);
        let ids: Vec<usize> = (count..count + limits.step).collect();
        let more = at_once(&ids, |id| Ok(invoke(scene, platform, *id)))?;
        let used =
            100.0 * (processor_time()? - before).as_secs_f64() / started.elapsed().as_secs_f64();
        let mut failure = None;
        for invocation in more {
            match invocation {
                Ok(invocation) => asleep.push(invocation),
                Err(error) => failure = Some(format!("{error:#}")),
            }
        }
        let all = asleep.len();
        asleep.retain(Invocation::sleeps);
        if all > asleep.len() {
            failure = Some(format!("{} of {all} invocations ended", all - asleep.len()));
        }
        if let Some(failure) = failure {
            break Stop::Failed(failure);
        }
        steps.push((asleep.len(), used, proportional_memory(&processes(scene, platform))?));
    };
    ensure!(
        !steps.is_empty(),
        "the first invocation failed: {}",
        match stop {
            Stop::Failed(reason) | Stop::Bound(reason) => reason,
        }
    );
    let invocations = asleep.len();
    remove(asleep);
    Ok(Capacity { invocations, stop, steps })
}

/// Removes them, several at a time: one by one takes as long as the test.
fn remove(mut invocations: Vec<Invocation<'_>>) {
    /// Of containerd's clients.
    const AT_A_TIME: usize = 8;
    let share = invocations.len().div_ceil(AT_A_TIME).max(1);
    std::thread::scope(|scope| {
        while !invocations.is_empty() {
            let part = invocations.split_off(invocations.len().saturating_sub(share));
            scope.spawn(move || drop(part));
        }
    });
}

/// Why this test starts no more, with this many.
fn bound(count: usize, began: Instant, limits: &Limits) -> Result<Option<String>> {
    let free = free_memory()?;
    if free < RESERVE {
        let left = free * 100.0;
        return Ok(Some(format!("the test stopped with {left:.0} % of the machine’s memory left")));
    }
    if count >= limits.invocations {
        return Ok(Some(format!("nothing failed up to {count}, where this run ends")));
    }
    let is_over = began.elapsed() > limits.time;
    Ok(is_over.then(|| format!("nothing failed in {:?}, where this run ends", limits.time)))
}

fn invoke<'a>(scene: &'a Scene, platform: &'a Platform, number: usize) -> Result<Invocation<'a>> {
    let action = platform.start(scene, &format!("sleeps-{number}"), ACTION)?;
    let stream = action.activation(&json!({ "milliseconds": SLEEP_MS })).send()?;
    Ok(Invocation { _action: action, stream })
}

/// Everything that the side runs.
fn processes(scene: &Scene, platform: &Platform) -> Vec<i32> {
    match &platform.kind {
        Kind::Executor(executor) => executor.processes(),
        Kind::Container(_) => ours(scene),
    }
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

    #[test]
    fn a_test_that_reaches_its_end_has_a_bound() {
        let limits = Limits { invocations: 5, step: 1, time: Duration::from_secs(3600) };
        assert!(bound(5, Instant::now(), &limits).unwrap().is_some());
        let limits = Limits { time: Duration::ZERO, invocations: 6, ..limits };
        let began = Instant::now();
        while began.elapsed().is_zero() {}
        assert!(bound(5, began, &limits).unwrap().is_some());
    }
}
