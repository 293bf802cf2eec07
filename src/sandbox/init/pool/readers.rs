//! The readers: workers that read from callers' connections themselves, and their leader. Runs in sandbox init.

use std::os::fd::AsFd;

use nix::unistd::Pid;

use crate::modes::local::{CallerConnection, LocalError, send_frame};
use crate::sandbox::worker_table::{Phase, WorkerSlot};
use crate::sys::clock::Deadline;
use crate::sys::seqpacket::SocketError;
use crate::wire::envelope;

use super::process::WorkerProcess;
use super::{ForkWorker, PoolEntry, WorkerPool};

impl<F: ForkWorker> WorkerPool<F> {
    /// The workers that may read from connections.
    fn readers(&self) -> impl Iterator<Item = (&WorkerProcess, WorkerSlot<'_>)> {
        self.workers().filter(|(.., slot)| slot.is_reader()).map(|(_, worker, slot)| (worker, slot))
    }

    /// True when a reader is free, or is still making its instance.
    #[must_use]
    pub fn has_free_reader(&self) -> bool {
        self.readers().any(|(worker, slot)| worker.can_begin(slot.state()))
    }

    /// Lets workers read from a connection; false if some cannot be told now.
    pub fn share(&self, connection: &CallerConnection) -> bool {
        let envelope = envelope::SharedConnection {
            connection: connection.id.0,
            caller: connection.caller.clone(),
            lends: connection.lends,
            ..envelope::SharedConnection::default()
        };
        let told = self.readers().filter(|(worker, _)| {
            let (socket, extra) = (worker.socket.as_fd(), [connection.fd.as_fd()]);
            match send_frame(socket, &envelope, b"", &extra, Some(Deadline::PASSED)) {
                // Its exit is on the way.
                Ok(()) | Err(LocalError::Socket(SocketError::Closed)) => true,
                Err(_no_room) => false,
            }
        });
        told.count() == self.readers().count()
    }

    /// Records the workers with long-running requests; none of them stays leader. Suspended workers do not count as
    /// readers at work either.
    pub fn note_long_running(&self, entries: impl Iterator<Item = usize>) {
        let suspended = self.entries.iter().enumerate();
        let suspended = suspended.filter(|(_, entry)| matches!(entry, PoolEntry::Suspended));
        let entries = entries.chain(suspended.map(|(index, _)| index));
        if self.table.control().set_long_running(entries) {
            self.wakeup.wake_one();
        }
    }

    /// Replaces a leader that does not read from the connections.
    pub fn depose_leader(&self) {
        if self.table.control().depose_leader() {
            self.wakeup.wake_one();
        }
    }

    /// Records that a signal stopped or continued a process. A stopped worker gets no work and loses the lead.
    pub fn set_stopped(&mut self, pid: Pid, stopped: bool) {
        let processes = self.entries.iter_mut().filter_map(|entry| match entry {
            PoolEntry::Occupied(worker) => Some(worker),
            PoolEntry::Vacant { .. } | PoolEntry::Suspended => None,
        });
        let Some(worker) = processes.into_iter().find(|worker| worker.pid == pid) else { return };
        worker.stopped = stopped;
        if stopped {
            // It may be the leader.
            self.depose_leader();
        }
    }

    /// A connection has ended: wakes the readers, which close their copies before they sleep again.
    pub fn unshare(&self) {
        self.readers().for_each(|(worker, _)| worker.wake());
    }

    /// Enables or disables direct reads.
    pub fn set_direct_reads(&self, enabled: bool) {
        if self.table.control().set_direct_reads(enabled) && enabled {
            let parked = |slot: &WorkerSlot<'_>| slot.state().phase() == Phase::Parked;
            self.readers().filter(|(_, slot)| parked(slot)).for_each(|(worker, _)| worker.wake());
        }
    }
}
