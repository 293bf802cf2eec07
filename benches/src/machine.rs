//! Properties of the measured machine, and its engine, for the report.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use cwasi_testbed::engines;
use serde::Serialize;

/// Part of its processors' time above which a machine counts as busy with other things when a run starts. (Its load
/// average still remembers the build.)
const QUIET_MAX: f64 = 0.1;
/// How long that is watched.
const WATCH: Duration = Duration::from_millis(500);

/// A machine at the start of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// The engine that functions run in.
    pub engine: &'static str,
    pub kernel: String,
    pub processor: String,
    pub processors: usize,
    pub memory: u64,
    /// Transparent huge pages: for anonymous memory, for shared memory.
    pub huge_pages: [String; 2],
    /// Resolution of the clock that times are taken with, ns.
    pub clock_resolution: u64,
    /// Part of its processors' time that something else used when the run started, 0 to 1.
    pub busy: f64,
    /// Load averages of the last minute: at the start, and at the end of the run.
    pub load: [f64; 2],
}

impl Machine {
    #[must_use]
    pub fn read() -> Self {
        let load = load();
        Self {
            engine: engines::tested().name(),
            kernel: read("/proc/sys/kernel/osrelease"),
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory(&field("/proc/meminfo", "MemTotal")),
            huge_pages: ["enabled", "shmem_enabled"].map(huge_pages),
            clock_resolution: clock_resolution(),
            busy: busy(),
            load: [load; 2],
        }
    }

    /// Notes the load at the end.
    pub fn finish(&mut self) {
        self.load[1] = load();
    }

    /// True when nothing else kept it busy before the run.
    #[must_use]
    pub fn was_quiet(&self) -> bool {
        self.busy <= QUIET_MAX
    }

    #[must_use]
    pub fn sentence(&self) -> String {
        let quiet = if self.was_quiet() {
            "quiet".to_owned()
        } else {
            "NOT QUIET: something else ran, and the figures are noise".to_owned()
        };
        let [anonymous, shared] = &self.huge_pages;
        format!(
            "engine {}; {}, {} processors, {} MiB, Linux {}; huge pages: {anonymous}, for shared memory {shared}; clock: \
             CLOCK_MONOTONIC, {} ns; load average {:.2} before, {:.2} after; {:.0} % busy before: {quiet}",
            self.engine,
            self.processor,
            self.processors,
            self.memory,
            self.kernel,
            self.clock_resolution,
            self.load[0],
            self.load[1],
            self.busy * 100.0,
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Value of the first line `name : value`.
fn field(path: &str, name: &str) -> String {
    let text = read(path);
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(key, _)| key.trim() == name)
        .map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

/// MiB of `12345 kB`.
fn memory(text: &str) -> u64 {
    text.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
}

/// The choice in brackets: `always [madvise] never`.
fn huge_pages(file: &str) -> String {
    let text = read(&format!("/sys/kernel/mm/transparent_hugepage/{file}"));
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or_else(|| "not there".to_owned(), |(word, _)| word.to_owned())
}

fn clock_resolution() -> u64 {
    nix::time::clock_getres(nix::time::ClockId::CLOCK_MONOTONIC)
        .ok()
        .and_then(|resolution| u64::try_from(resolution.tv_nsec()).ok())
        .unwrap_or(0)
}

/// Part of the processors' time that is used, watched for a moment.
fn busy() -> f64 {
    let before = ticks(&read("/proc/stat"));
    sleep(WATCH);
    share(before, ticks(&read("/proc/stat")))
}

/// Used and all ticks of all processors: `cpu user nice system idle iowait irq softirq steal …`.
fn ticks(stat: &str) -> [f64; 2] {
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<f64> =
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let all: f64 = fields.iter().sum();
    let idle: f64 = fields.iter().skip(3).take(2).sum();
    [all - idle, all]
}

fn share([used_before, all_before]: [f64; 2], [used, all]: [f64; 2]) -> f64 {
    if all > all_before { (used - used_before) / (all - all_before) } else { 0.0 }
}

fn load() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_said_to_be_one() {
        let machine = Machine { busy: 0.5, ..Machine::read() };
        assert!(machine.sentence().contains("50 % busy before: NOT QUIET"));
        let machine = Machine { busy: 0.02, load: [3.0, 9.0], ..machine };
        assert!(!machine.sentence().contains("NOT QUIET"));
    }

    #[test]
    fn a_share_is_that_of_the_ticks_between_two_looks() {
        let before = ticks("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 1 1 1\n");
        assert_eq!(before, [20.0, 100.0]);
        let after = ticks("cpu  40 0 30 110 20 0 0 0 0 0\n");
        assert_eq!(share(before, after), 0.5);
        assert_eq!(share(before, before), 0.0);
    }
}
