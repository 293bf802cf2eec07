//! The readers: workers that read from callers' connections themselves, and their leader. Runs in sandbox init.

use std::os::fd::AsFd;

use crate::worker_table::Phase;
use cwasi_modes::OutgoingPayload;
use cwasi_modes::local::{CallerConnection, LocalError, send_as_is};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::SocketError;

use super::WorkerPool;
use super::process::WorkerProcess;

impl<'t> WorkerPool<'t> {
    /// The workers that may read from connections.
    fn readers(&self) -> impl Iterator<Item = &WorkerProcess<'t>> {
        self.workers().filter(|worker| worker.slot.is_reader())
    }

    /// True when a reader is free, or is still making its instance.
    #[must_use]
    pub fn has_free_reader(&self) -> bool {
        self.readers().any(WorkerProcess::can_begin)
    }

    /// Lets workers read from a connection; false if some cannot get it now.
    pub fn share(&self, connection: &CallerConnection) -> bool {
        let (envelope, extra) = (connection.envelope(), [connection.fd.as_fd()]);
        let now = Some(Deadline::PASSED);
        let sent = self.readers().map(|worker| {
            let socket = worker.socket.as_fd();
            let sent = send_as_is(socket, &envelope, OutgoingPayload::EMPTY, &extra, now);
            // A closed socket: its exit is on the way.
            matches!(sent, Ok(()) | Err(LocalError::Socket(SocketError::Closed)))
        });
        // All of them, also after a failure.
        sent.fold(true, |all, one| all & one)
    }

    /// Records the workers with long-running requests; none of them stays leader. Workers that are not there do not
    /// count as readers at work either.
    pub fn note_long_running(&self, entries: impl Iterator<Item = usize>) {
        let absent = self.entries.iter().enumerate().filter(|(_, entry)| entry.worker.is_none());
        let entries = entries.chain(absent.map(|(index, _)| index));
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

    /// Records that a signal stopped or continued a worker. A stopped worker gets no work and loses the lead.
    pub fn set_stopped(&mut self, index: usize, stopped: bool) {
        let Some(worker) = self.worker_mut(index) else { return };
        worker.stopped = stopped;
        if stopped {
            // It may be the leader.
            self.depose_leader();
        }
    }

    /// A connection has ended: wakes the readers, which close their copies before they sleep again.
    pub fn unshare(&self) {
        self.readers().for_each(WorkerProcess::wake);
    }

    /// Enables or disables direct reads.
    pub fn set_direct_reads(&self, enabled: bool) {
        if self.table.control().set_direct_reads(enabled) && enabled {
            let idle = self.readers().filter(|it| it.slot.state().phase() == Phase::Idle);
            idle.for_each(WorkerProcess::wake);
        }
    }
}
