//! The callers of a function: their connections, and the answers for which they have no room yet.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;

use cwasi_modes::local::send_queue::{SendLimits, SendQueue};
use cwasi_modes::local::{CallKey, ConnectionId, Receiver};
use cwasi_modes::{CallError, Payload};
use cwasi_sys::clock::{Deadline, monotonic_ns};
use cwasi_wire::envelope::Undelivered;

use super::caller_errors::CallerErrors;
use super::events::{PollSet, Source};

/// How long new connections wait when descriptors ran out, in nanoseconds.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// The connections of one function's callers.
pub(super) struct Callers<'a> {
    pub receiver: Receiver,
    errors: CallerErrors<'a>,
    send_queue: SendQueue<Rc<OwnedFd>>,
    accept_after: u64,
}

impl<'a> Callers<'a> {
    /// The callers that connect to `listener`.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(
        listener: OwnedFd,
        max_payload: u64,
        limits: SendLimits,
        errors: CallerErrors<'a>,
    ) -> io::Result<Self> {
        let receiver = Receiver::new(listener, max_payload)?;
        Ok(Self { receiver, errors, send_queue: SendQueue::new(limits), accept_after: 0 })
    }

    /// Adds the connections, `shared` for those that workers read too, and the listener.
    pub fn add_to<'s>(&'s self, poll_set: &mut PollSet<'s>, shared: Option<Source>, now: u64) {
        poll_set.input(Source::Connections, self.receiver.as_fd());
        if let Some(source) = shared {
            poll_set.input(source, self.receiver.shared_fd());
        }
        if let Some(listener) = self.receiver.listener().filter(|_| self.accept_after <= now) {
            poll_set.input(Source::Listener, listener);
        }
        for (number, fd) in self.send_queue.sockets() {
            poll_set.room(Source::Caller(number), fd);
        }
    }

    /// When there is something to do without an event.
    pub fn next_wakeup(&self, now: u64) -> Option<Deadline> {
        let accept = (self.accept_after > now).then(|| Deadline::at_ns(self.accept_after));
        [accept, self.send_queue.next_deadline()].into_iter().flatten().min()
    }

    /// True when no answer waits.
    pub fn have_all_answers(&self) -> bool {
        self.send_queue.is_empty()
    }

    pub fn accept(&mut self) {
        if let Err(error) = self.receiver.accept() {
            self.accept_after = monotonic_ns().saturating_add(ACCEPT_PAUSE_NS);
            self.errors.log(&format!("new callers wait, raise RLIMIT_NOFILE: {error}"));
        }
    }

    pub fn stop_accepting(&mut self) {
        if let Err(error) = self.receiver.stop_accepting() {
            let what = "some callers that had connected were not accepted";
            self.errors.log(&format!("{what}: {error}"));
        }
    }

    /// Answers calls with an error. Callers whose connections have ended need none.
    pub fn refuse(&mut self, calls: impl IntoIterator<Item = CallKey>, error: &CallError) {
        for call in calls {
            if let Some(caller) = self.receiver.reply_to(call.connection) {
                self.send_queue.send_error(&caller, call.id, error);
            }
        }
    }

    /// Queues the answers for which their callers have no room. A caller that has gone needs none.
    pub fn enqueue(&mut self, undelivered: Vec<(Undelivered, Payload)>) {
        for (Undelivered { response, connection, deadline_mono_ns, .. }, payload) in undelivered {
            let caller = self.receiver.reply_to(ConnectionId(connection));
            let response = response.into_option().filter(|response| response.id().is_some());
            let Some((caller, response)) = caller.zip(response) else { continue };
            let until = Deadline::at_ns(deadline_mono_ns);
            self.send_queue.enqueue(&caller, response, payload, until);
        }
    }

    /// Sends waiting answers to the callers that have `room`.
    pub fn flush(&mut self, room: &[RawFd]) {
        self.send_queue.flush(room, monotonic_ns());
        if let Some((_, complaint)) = self.send_queue.complaint.take() {
            self.errors.log(&complaint);
        }
    }
}
