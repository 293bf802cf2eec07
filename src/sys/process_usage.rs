//! What another process of this host uses: processor time and memory.

use std::fs;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// What a process has used of the processors so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorUse {
    /// Nanoseconds that it ran.
    pub ran_ns: u64,
    /// Nanoseconds that it could have run, but had no processor; `None` where `/proc` does not say it.
    pub waited_ns: Option<u64>,
    /// It runs, or waits for a processor.
    pub is_runnable: bool,
}

/// What a process with one thread has used of the processors; `None` when it is gone.
#[must_use]
pub fn processor_use(pid: Pid) -> Option<ProcessorUse> {
    let scheduled = fs::read_to_string(format!("/proc/{pid}/schedstat"));
    if let Some((ran_ns, waited)) = scheduled.ok().as_deref().and_then(two_numbers) {
        return Some(ProcessorUse {
            ran_ns,
            waited_ns: Some(waited),
            is_runnable: is_runnable(pid),
        });
    }
    let used = clock_gettime(clock_getcpuclockid(pid).ok()?).ok()?;
    let seconds = u64::try_from(used.tv_sec()).ok()?.checked_mul(1_000_000_000)?;
    let ran_ns = seconds.checked_add(u64::try_from(used.tv_nsec()).ok()?)?;
    Some(ProcessorUse { ran_ns, waited_ns: None, is_runnable: false })
}

fn is_runnable(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A name may have parentheses itself.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// The first two numbers of a line.
fn two_numbers(line: &str) -> Option<(u64, u64)> {
    let mut numbers = line.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The most memory in bytes that a process has had so far without the pages of files, those that it shares with its
/// parent included; `None` when it is gone, or where `/proc` is not mounted.
#[must_use]
pub fn peak_memory(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let bytes = kib("VmHWM:")?.saturating_sub(kib("RssFile:")?);
    bytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use nix::unistd::getpid;

    use super::*;

    /// No process has it: `PID_MAX_LIMIT` of the kernel.
    const NO_PID: Pid = Pid::from_raw(1 << 22);

    #[test]
    fn a_process_says_what_it_uses() {
        let me = getpid();
        let ran = |pid| processor_use(pid).map(|used| used.ran_ns);
        let now = processor_use(me).unwrap();
        assert!(now.waited_ns.is_some(), "/proc is mounted");
        let filled = vec![1_u8; 32 << 20];
        assert!(filled.iter().all(|byte| *byte == 1));
        // The kernel counts pages in batches for each processor.
        assert!(peak_memory(me).unwrap() >= 24 << 20);
        assert_eq!((ran(NO_PID), peak_memory(NO_PID)), (None, None));
    }
}
