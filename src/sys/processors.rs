//! The number of processors that a process may use.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Counts the processors in this process' affinity, which follows its cpuset; `None` where the kernel does not say.
#[must_use]
pub fn count() -> Option<usize> {
    let affinity = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let allowed = |index: &usize| affinity.is_set(*index).unwrap_or(false);
    Some((0..CpuSet::count()).filter(allowed).count())
}

#[cfg(test)]
mod tests {
    use nix::sched::{sched_getcpu, sched_setaffinity};

    use super::*;

    #[test]
    fn follows_the_affinity() {
        // Of this thread alone.
        let one = sched_getcpu().unwrap();
        let mut only = CpuSet::new();
        only.set(one).unwrap();
        assert!(count().unwrap() >= 1);
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
        assert_eq!(count(), Some(1));
    }
}
