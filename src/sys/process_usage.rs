//! What another process of this host uses: processor time and memory.

use std::fs;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Processor time that a process has used, in nanoseconds; `None` when it is gone.
#[must_use]
pub fn cpu_ns(pid: Pid) -> Option<u64> {
    let used = clock_gettime(clock_getcpuclockid(pid).ok()?).ok()?;
    let seconds = u64::try_from(used.tv_sec()).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(used.tv_nsec()).ok()?)
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

    /// No process has it: above every number that the kernel gives.
    const NO_PID: Pid = Pid::from_raw(1 << 30);

    #[test]
    fn time_and_memory_grow_with_use() {
        let me = getpid();
        let time = cpu_ns(me).unwrap();
        let filled = vec![1_u8; 32 << 20];
        assert!(filled.iter().all(|byte| *byte == 1));
        assert!(cpu_ns(me).unwrap() > time);
        // The kernel counts pages in batches for each processor.
        assert!(peak_memory(me).unwrap() >= 24 << 20);
        assert_eq!((cpu_ns(NO_PID), peak_memory(NO_PID)), (None, None));
    }
}
