//! CPU time and memory of processes and cgroups, read from outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cwasi_testbed::leaks::cgroups_of;
use cwasi_testbed::processes::{Process, descendants};
use cwasi_testbed::scene::Scene;

/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// Everything of ours in a test bed: shims, zygotes, inits and workers, but not containerd.
#[must_use]
pub fn ours(scene: &Scene) -> Vec<i32> {
    let containerd = scene.containerd.ready().containerd_pid();
    let below = descendants(scene.containerd.guard_pid());
    below.iter().map(|one| one.pid).filter(|pid| *pid != containerd).collect()
}

/// A process and all below it.
#[must_use]
pub fn family(pid: i32) -> Vec<i32> {
    let mut family = vec![pid];
    family.extend(descendants(pid).iter().map(|one: &Process| one.pid));
    family
}

/// CPU time of processes at one moment.
#[derive(Clone, Debug)]
pub struct CpuTimes(BTreeMap<i32, u64>);

impl CpuTimes {
    /// Of these processes, now; one that has ended since it was listed has none.
    ///
    /// # Errors
    /// When the kernel has no such files.
    pub fn of(pids: &[i32]) -> Result<Self> {
        let mut times = BTreeMap::new();
        for pid in pids {
            match process_cpu(*pid) {
                Ok(time) => {
                    times.insert(*pid, time);
                }
                Err(_gone) if !Path::new(&format!("/proc/{pid}")).exists() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self(times))
    }

    /// Nanoseconds that the same processes used since.
    ///
    /// # Errors
    /// When one of them is gone, and with it what it used.
    pub fn used(&self) -> Result<u64> {
        let mut used = 0;
        for (pid, before) in &self.0 {
            used += process_cpu(*pid)?.saturating_sub(*before);
        }
        Ok(used)
    }
}

/// Time on a processor of all threads of a process, ns.
fn process_cpu(pid: i32) -> Result<u64> {
    let tasks = format!("/proc/{pid}/task");
    let mut total = 0;
    for task in fs::read_dir(&tasks).with_context(|| format!("process {pid} is gone"))? {
        // A thread that ends meanwhile takes little with it.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let first = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        total += first.with_context(|| format!("schedstat of process {pid}"))?;
    }
    Ok(total)
}

/// Proportional share of memory of these processes, MiB; one that has ended has none.
///
/// # Errors
/// When the kernel has no such file.
pub fn proportional_memory(pids: &[i32]) -> Result<f64> {
    let mut total = 0.0;
    for pid in pids {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
        total += pss(&text).with_context(|| format!("smaps_rollup of process {pid}"))?;
    }
    Ok(total)
}

/// True for a process in a cgroup of this containerd namespace.
#[must_use]
pub fn in_container(pid: i32, namespace: &str) -> bool {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    cgroups.lines().any(|line| line.split('/').any(|part| part == namespace))
}

/// `Pss: 1234 kB` in MiB.
fn pss(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? / 1024.0)
}

/// Memory charged to the containers of a containerd namespace, MiB, and how many there are.
///
/// # Errors
/// When there is no memory controller.
pub fn charged(namespace: &str) -> Result<(f64, usize)> {
    let (mut total, mut count) = (0.0, 0);
    for parent in cgroups_of(namespace) {
        for container in fs::read_dir(&parent).into_iter().flatten().flatten() {
            if let Some(bytes) = charge(&container.path()) {
                total += bytes / MIB;
                count += 1;
            }
        }
    }
    if count == 0 {
        bail!("no cgroup of {namespace} has a memory controller");
    }
    Ok((total, count))
}

/// Bytes of one cgroup, by the files of version 1 or 2: pages of its processes, files, and the kernel's memory for
/// them. The counter (`memory.usage_in_bytes`, `memory.current`) has more: the kernel charges up to 64 pages for each
/// processor ahead, to the cgroups that used memory last.
fn charge(cgroup: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(cgroup.join(name)).ok();
    let stat = read("memory.stat")?;
    let value = |key: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.parse::<f64>().ok()
    };
    if let Some(kernel) = read("memory.kmem.usage_in_bytes") {
        return Some(value("rss")? + value("cache")? + kernel.trim().parse::<f64>().ok()?);
    }
    Some(value("anon")? + value("file")? + value("kernel")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn a_process_that_has_ended_used_no_time() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = i32::try_from(child.id()).unwrap();
        child.wait().unwrap();
        let times = CpuTimes::of(&[own(), gone]).unwrap();
        assert_eq!(times.0.keys().copied().collect::<Vec<_>>(), [own()]);
        times.used().unwrap();
    }

    #[test]
    fn memory_is_read_from_the_kernels_words() {
        assert_eq!(pss("Rss:   9 kB\nPss:            2048 kB\nPss_Anon: 1 kB\n"), Some(2.0));
        assert_eq!(pss("Rss: 9 kB\n"), None);
        assert!(proportional_memory(&[own()]).unwrap() > 0.1);
    }

    #[test]
    fn both_versions_of_a_cgroups_files_are_read() {
        let files: [&[(&str, &str)]; 2] = [
            &[
                ("memory.stat", "cache 4096\nrss 8192\nrss_huge 0\ntotal_cache 9\n"),
                ("memory.kmem.usage_in_bytes", "16384\n"),
            ],
            &[("memory.stat", "anon 8192\nanon_thp 0\nfile 4096\nkernel_stack 9\nkernel 16384\n")],
        ];
        for version in files {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in version {
                fs::write(dir.path().join(name), text).unwrap();
            }
            assert_eq!(charge(dir.path()), Some(28672.0));
        }
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(charge(empty.path()), None);
    }
}
