//! Reaps all children of the shim daemon: zygote, builders, sandbox inits, compilers. Runs in the shim daemon.
//!
//! An exit can arrive before its process id is known. So exits are kept while a [`Ticket`] is open: take a ticket
//! before making the process, and claim the process id afterwards.
//!
//! Invariant: unclaimed exits (of builders) are dropped with the last ticket, so a reused pid never gets an older
//! process's exit.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cwasi_sys::children::{Change, next_change};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Offset of a signal's number in an exit status, as in shells.
const SIGNAL_BASE: i32 = 128;
/// Exit status of a process whose end was not seen.
const STATUS_UNKNOWN: i32 = 255;

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, or 128 plus the signal.
    pub status: i32,
    /// When it was reaped.
    pub at: SystemTime,
}

impl Exit {
    /// The end of a process that was not seen.
    #[must_use]
    pub fn unseen() -> Self {
        Self { status: STATUS_UNKNOWN, at: SystemTime::now() }
    }

    /// The status as containerd's messages carry it.
    #[must_use]
    pub fn api_status(self) -> u32 {
        u32::try_from(self.status).unwrap_or(STATUS_UNKNOWN.unsigned_abs())
    }
}

/// The reaper; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Reaper {
    state: Arc<Mutex<Exits>>,
}

#[derive(Debug, Default)]
struct Exits {
    clock: u64,
    tickets: BTreeSet<u64>,
    kept: HashMap<i32, (u64, Exit)>,
    waiting: HashMap<i32, oneshot::Sender<Exit>>,
}

/// While it exists, exits of processes made after it are kept.
#[derive(Debug)]
pub struct Ticket {
    reaper: Reaper,
    since: u64,
}

impl Reaper {
    /// Starts reaping, on a task of its own.
    ///
    /// # Errors
    /// When the signal cannot be watched.
    pub fn start() -> std::io::Result<Self> {
        let reaper = Self::default();
        let mut children = signal(SignalKind::child())?;
        let reaping = reaper.clone();
        tokio::spawn(async move {
            while children.recv().await.is_some() {
                reaping.reap();
            }
        });
        Ok(reaper)
    }

    /// Opens a ticket; take it before making the process.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        let mut exits = self.exits();
        exits.clock += 1;
        let since = exits.clock;
        exits.tickets.insert(since);
        Ticket { reaper: self.clone(), since }
    }

    fn exits(&self) -> MutexGuard<'_, Exits> {
        // Every change is one insertion or removal: a panic elsewhere leaves the tables consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaps all ended children.
    fn reap(&self) {
        loop {
            let (pid, status) = match next_change() {
                Ok(Some((pid, Change::Exited(code)))) => (pid, code),
                Ok(Some((pid, Change::Killed(signal)))) => (pid, SIGNAL_BASE + signal),
                Ok(Some((_pid, Change::Stopped | Change::Continued))) => continue,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "waiting for children failed");
                    return;
                }
            };
            self.exits().record(pid, Exit { status, at: SystemTime::now() });
        }
    }
}

impl Exits {
    fn record(&mut self, pid: i32, exit: Exit) {
        if let Some(waiter) = self.waiting.remove(&pid) {
            // The waiter may have gone with its container.
            let _ = waiter.send(exit);
        } else if !self.tickets.is_empty() {
            self.clock += 1;
            self.kept.insert(pid, (self.clock, exit));
        }
    }
}

impl Ticket {
    /// The exit of process `pid`, which was made after the ticket. It may have happened already.
    #[must_use]
    pub fn claim(&self, pid: i32) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        let mut exits = self.reaper.exits();
        match exits.kept.remove(&pid) {
            Some((when, exit)) if when > self.since => {
                let _ = sender.send(exit);
            }
            _ => drop(exits.waiting.insert(pid, sender)),
        }
        receiver
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut exits = self.reaper.exits();
        exits.tickets.remove(&self.since);
        let oldest = exits.tickets.first().copied();
        exits.kept.retain(|_, (when, _)| oldest.is_some_and(|since| *when > since));
    }
}

// No test with real children here: `waitpid(-1)` would reap those of other tests. `ctr run` tests cover it.
#[cfg(test)]
mod tests {
    use super::*;

    fn exit(status: i32) -> Exit {
        Exit { status, at: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn early_and_late_exits_reach_who_claims_them() {
        let reaper = Reaper::default();
        let ticket = reaper.ticket();
        reaper.exits().record(7, exit(3));
        assert_eq!(ticket.claim(7).blocking_recv().unwrap(), exit(3));
        let late = ticket.claim(8);
        reaper.exits().record(8, exit(4));
        assert_eq!(late.blocking_recv().unwrap(), exit(4));
    }

    #[test]
    fn exits_from_before_a_ticket_are_never_claimed() {
        let reaper = Reaper::default();
        reaper.exits().record(7, exit(1));
        let first = reaper.ticket();
        reaper.exits().record(7, exit(2));
        let second = reaper.ticket();
        drop(first);
        let mut claimed = second.claim(7);
        assert!(claimed.try_recv().is_err());
        reaper.exits().record(7, exit(3));
        assert_eq!(claimed.blocking_recv().unwrap(), exit(3));
        drop(second);
        assert!(reaper.exits().kept.is_empty());
    }
}
