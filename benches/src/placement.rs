//! Pins the two ends of a call to processors, and keeps processors busy.

use std::fmt;
use std::process::{Child, Command, Stdio};

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

/// A process for each processor that computes until this is dropped.
#[derive(Debug)]
pub struct BusyLoops(Vec<Child>);

impl BusyLoops {
    /// Starts them.
    ///
    /// # Errors
    /// When a shell cannot be started.
    pub fn start() -> Result<Self> {
        let mut loops = Self(Vec::new());
        for _ in 0..processors()? {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            loops.0.push(shell.spawn().context("start a busy loop")?);
        }
        Ok(loops)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for one in &mut self.0 {
            // It fails for one that has ended only.
            let _ended = one.kill().and_then(|()| one.wait());
        }
    }
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
