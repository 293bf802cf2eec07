//! Reads the process table: descendants of a process, and the containerd namespace of each. A process that ends meanwhile
//! is absent.

use std::collections::BTreeMap;
use std::fs;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Clock ticks from the machine's boot to its start. Ids of processes are used again, so they have no order.
    pub started: u64,
    /// One-letter state; `Z` has ended and waits to be reaped.
    pub state: char,
    /// Command line, or the bare name when there is none.
    pub command: String,
}

impl Process {
    /// The containerd namespace that its command line names: launchers and shims have this flag.
    fn named_namespace(&self) -> Option<&str> {
        let mut words = self.command.split_whitespace();
        words.find(|word| *word == "-namespace")?;
        words.next()
    }
}

/// Every process, by id.
#[must_use]
pub fn all() -> BTreeMap<i32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| read(pid).map(|process| (pid, process)))
        .collect()
}

/// One process, `None` when it does not exist (any more).
#[must_use]
pub fn read(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state ppid …; the name may hold spaces and parentheses.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let mut fields = tail.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // The 22nd field; the parent is the 4th.
    let started = fields.nth(17)?.parse().ok()?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
    let command = if command.is_empty() { format!("[{name}]") } else { command };
    Some(Process { pid, parent, started, state, command })
}

/// The process' ids in its pid namespace and all above it, the reader's own first; none when it has ended.
#[must_use]
pub fn ids_in_namespaces(pid: i32) -> Vec<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    ids.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Everything below `root`, itself excluded, zombies included.
#[must_use]
pub fn descendants(root: i32) -> Vec<Process> {
    let table = all();
    below(&table, root).cloned().collect()
}

fn below(table: &BTreeMap<i32, Process>, root: i32) -> impl Iterator<Item = &Process> {
    table.values().filter(move |process| {
        let mut ancestors = lineage(table, process);
        ancestors.any(|ancestor| ancestor.parent == root)
    })
}

/// The process and its ancestors.
fn lineage<'a>(
    table: &'a BTreeMap<i32, Process>,
    process: &'a Process,
) -> impl Iterator<Item = &'a Process> {
    // A parent chain is never longer than the table.
    std::iter::successors(Some(process), |one| table.get(&one.parent)).take(table.len())
}

/// Everything below the fixture's subreaper, with the containerd namespace that it works for: its own or an ancestor's
/// command line names a shim's, or it is in the cgroup of a container of one of `namespaces`. `None` = unknown, as for
/// containerd itself, and for a zygote between its shim's end and its own.
#[must_use]
pub fn by_namespace(guard: i32, namespaces: &[String]) -> Vec<(Process, Option<String>)> {
    let table = all();
    let namespace = |process: &Process| {
        // Above the guard is the test process.
        let mut ours = lineage(&table, process).take_while(|one| one.pid != guard);
        let named = ours.find_map(Process::named_namespace).map(str::to_owned);
        named.or_else(|| {
            let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok()?;
            let is_in =
                |name: &&String| cgroups.lines().any(|line| line.split('/').any(|it| it == *name));
            namespaces.iter().find(is_in).cloned()
        })
    };
    below(&table, guard).map(|process| (process.clone(), namespace(process))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(descendants(own).iter().any(|process| process.pid == pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(read(pid).is_none());
    }

    #[test]
    fn a_process_works_for_the_namespace_that_its_shim_names() {
        let own = i32::try_from(std::process::id()).unwrap();
        let script = "sleep 60 & echo; wait";
        let shim = |namespace: &str| {
            let mut shim = std::process::Command::new("sh");
            shim.args(["-c", script, "shim", "-namespace", namespace, "-id", "c"]);
            shim.stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let mut shims = [shim("one"), shim("other")];
        for shim in &mut shims {
            // The line says that its child is there.
            std::io::Read::read_exact(shim.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        }
        let found = by_namespace(own, &[]);
        let pids = |namespace: &str| -> Vec<i32> {
            let of = found.iter().filter(|(_, name)| name.as_deref() == Some(namespace));
            of.map(|(process, _)| process.pid).collect()
        };
        let (one, other) = (pids("one"), pids("other"));
        for pid in one.iter().chain(&other) {
            let _gone = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(*pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        for shim in &mut shims {
            shim.wait().unwrap();
        }
        assert_eq!((one.len(), other.len()), (2, 2), "{found:?}");
    }
}
