//! On which processors the two ends of a call run.

use std::fmt;

use anyhow::{Context as _, Result};
use cwasi_testbed::processes::descendants;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Where caller and callee run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the kernel puts them.
    Default,
    /// Both on processor 0.
    SameCore,
    /// The caller on processor 0, the callee on processor 1.
    OtherCore,
}

impl Placement {
    /// Processor of the caller.
    #[must_use]
    pub const fn caller(self) -> Option<usize> {
        match self {
            Self::Default => None,
            Self::SameCore | Self::OtherCore => Some(0),
        }
    }

    /// Processor of the callee.
    #[must_use]
    pub const fn callee(self) -> Option<usize> {
        match self {
            Self::Default => None,
            Self::SameCore => Some(0),
            Self::OtherCore => Some(1),
        }
    }

    /// What the name of a case ends with.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Default => "",
            Self::SameCore => "-same-core",
            Self::OtherCore => "-other-core",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "processors left to the kernel",
            Self::SameCore => "both ends on processor 0",
            Self::OtherCore => "ends on processors 0 and 1",
        })
    }
}

/// Puts a process on one processor, or back on all.
///
/// # Errors
/// When there is no such process or processor.
pub fn pin(pid: i32, processor: Option<usize>) -> Result<()> {
    let mut set = CpuSet::new();
    match processor {
        Some(processor) => set.set(processor)?,
        None => {
            for processor in 0..processors()? {
                set.set(processor)?;
            }
        }
    }
    sched_setaffinity(Pid::from_raw(pid), &set)
        .with_context(|| format!("put process {pid} on processor {processor:?}"))
}

/// Processors of the machine that are online, whatever this process may use.
fn processors() -> Result<usize> {
    let count = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN)?;
    usize::try_from(count.unwrap_or(1)).context("the number of processors")
}

/// As [`pin`], for the init of a function and its workers; those that it forks later inherit it.
///
/// # Errors
/// As [`pin`].
pub fn pin_function(init: i32, processor: Option<usize>) -> Result<()> {
    pin(init, processor)?;
    for worker in descendants(init) {
        pin(worker.pid, processor)?;
    }
    Ok(())
}
