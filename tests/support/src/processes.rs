//! Reads the process table: descendants of a process. A process that ends meanwhile is absent.

use std::collections::BTreeMap;
use std::fs;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// One-letter state; `Z` has ended and waits to be reaped.
    pub state: char,
    /// Command line, or the bare name when there is none.
    pub command: String,
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
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
    let command = if command.is_empty() { format!("[{name}]") } else { command };
    Some(Process { pid, parent, state, command })
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
    let is_below = |process: &Process| {
        let mut parent = process.parent;
        // A parent chain is never longer than the table.
        for _ in 0..table.len() {
            if parent == root {
                return true;
            }
            match table.get(&parent) {
                Some(next) => parent = next.parent,
                None => return false,
            }
        }
        false
    };
    table.values().filter(|process| is_below(process)).cloned().collect()
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
}
