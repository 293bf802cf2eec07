//! How cost grows with functions, callers, chains, payloads, instances, nodes and calls in flight (`make bench-scale`).
//!
//! Each group makes some [`curve`]s on containers of the harness' private containerd; the [`report`] shows them with
//! their exponents. What cannot be measured is in the report with its reason.

mod calls;
pub mod curve;
mod functions;
mod instances;
mod nodes;
mod page;
pub mod report;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::{Job, Made, Verb};
use cwasi_testbed::scene::Scene;

use crate::plan::Effort;
use crate::session::caught;
use curve::Curve;
use report::Report;

/// Bytes of a payload that does not matter.
const SMALL: usize = 64;
/// Containers that one `ctr` removes.
const REMOVED_AT_ONCE: usize = 25;

/// What the groups share.
struct Scale {
    effort: Effort,
    programs: PathBuf,
}

/// Curves that share their containers.
struct Group {
    name: &'static str,
    run: fn(&Scale) -> Result<Vec<Curve>>,
}

const GROUPS: [Group; 8] = [
    Group { name: "functions", run: functions::ours },
    Group { name: "runc", run: functions::runc },
    Group { name: "callers", run: calls::callers },
    Group { name: "in-flight", run: calls::in_flight },
    Group { name: "chain", run: calls::chain },
    Group { name: "payload", run: calls::payload },
    Group { name: "instances", run: instances::run },
    Group { name: "nodes", run: nodes::run },
];

/// Measures the groups whose name contains `filter`.
///
/// # Errors
/// When there is none.
pub fn measure(effort: Effort, programs: &Path, filter: &str) -> Result<Report> {
    let scale = Scale { effort, programs: programs.to_owned() };
    let mut report = Report::new(effort);
    for group in GROUPS.iter().filter(|group| group.name.contains(filter)) {
        eprintln!("\n{}", group.name);
        let ended = caught(|| {
            for curve in (group.run)(&scale)? {
                report.add(curve);
            }
            Ok(())
        });
        if let Err(error) = ended {
            report.fail(group.name, &error);
        }
    }
    anyhow::ensure!(!report.is_empty(), "no group's name contains `{filter}`");
    report.machine.finish();
    Ok(report)
}

/// Writes `report.json`, `report.csv` and `report.html` into `dir`.
///
/// # Errors
/// When they cannot be written.
pub fn write(report: &Report, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    write("report.json", serde_json::to_string_pretty(&report.json())?)?;
    write("report.csv", report.csv())?;
    write("report.html", page::render(report)?)
}

impl Scale {
    /// Amounts of this run: all of them, those up to `quick`, or the first two.
    fn amounts(&self, all: &'static [usize], quick: usize) -> impl Iterator<Item = usize> + use<> {
        let last = match self.effort {
            Effort::Full => usize::MAX,
            Effort::Quick => quick,
            Effort::Smoke => all.get(1).copied().unwrap_or(0),
        };
        all.iter().copied().take_while(move |amount| *amount <= last)
    }
}

/// Small calls of `targets` in turn, `branches` at a time, `count` times.
fn calls_at_once(targets: Vec<String>, branches: usize, count: usize) -> Job {
    let (verb, made) = (Verb::FanOut, Made::Vector);
    Job { verb, targets, size: SMALL, made, touch: false, count, branches }
}

/// Small calls of `target`, one after the other.
fn calls_of(target: &str, count: usize) -> Job {
    Job {
        verb: Verb::Call,
        targets: vec![target.to_owned()],
        size: SMALL,
        made: Made::Vector,
        touch: false,
        count,
        branches: 1,
    }
}

/// Removes all containers of a scene, many with one command.
fn remove_containers(scene: &Scene) {
    let list = scene.ctr(["container", "ls", "--quiet"]).text();
    let ids: Vec<&str> = list.split_whitespace().collect();
    for some in ids.chunks(REMOVED_AT_ONCE) {
        for verb in [&["task", "rm", "--force"][..], &["container", "rm"]] {
            // What is left fails the scene's own check.
            let _removed = scene.ctr(verb.iter().chain(some));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(effort: Effort) -> Vec<usize> {
        let scale = Scale { effort, programs: PathBuf::new() };
        scale.amounts(&[1, 10, 100, 1000], 100).collect()
    }

    #[test]
    fn a_shorter_run_has_the_first_amounts() {
        assert_eq!(amounts(Effort::Full), [1, 10, 100, 1000]);
        assert_eq!(amounts(Effort::Quick), [1, 10, 100]);
        assert_eq!(amounts(Effort::Smoke), [1, 10]);
    }

    #[test]
    fn an_unknown_group_is_an_error() {
        assert!(measure(Effort::Smoke, Path::new(""), "no-such-group").is_err());
    }
}
