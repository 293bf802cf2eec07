//! Messages of init to a secondary's worker: assignments, further connections, wake-ups. Runs in a worker.

use std::os::fd::AsFd;
use std::rc::Rc;

use crate::modes::Payload;
use crate::modes::local::{CallerConnection, ConnectionId, LocalError, ReceivedFrame, open_frame};
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::worker::Worker;
use crate::sandbox::worker::replies::{Destination, Replies};
use crate::sys::clock::Deadline;
use crate::sys::seqpacket::{self, Received as Message, SocketError};
use crate::vm::Module;
use crate::wire::envelope::{self, Assignment, Part};
use crate::wire::frame::{self, Kind};

use super::{Invocation, NoMoreRequests, RequestInput, Requests, context, span};

impl Requests<'_> {
    /// Reads a message of init: an assignment, a further connection, or a wake-up.
    pub(super) fn read_init<M: Module>(
        &mut self,
        worker: &Worker<'_, M>,
    ) -> Result<Option<Invocation>, NoMoreRequests> {
        let message = receive(worker, &mut self.buffer)?;
        let malformed =
            |error: LocalError| NoMoreRequests::Malformed(format!("message of init: {error}"));
        let kind = frame::decode(&self.buffer[..message.len]).map(|frame| frame.kind);
        if kind.map_err(|error| malformed(error.into()))? == Kind::SharedConnection {
            self.add_connection(message).map_err(malformed)?;
            return Ok(None);
        }
        let task = self.assignment(worker, message)?;
        // All of it is here. Until now init could assign it to another worker.
        self.assigned = self.slot.begin_assigned();
        if self.assigned && matches!(task.input, RequestInput::Parts { .. }) {
            // Init may hold thousands of the group's descriptors. Without init there is no next request either.
            let _told = worker.nudge(&WorkerMessage::Took);
        }
        Ok(self.assigned.then_some(task))
    }

    /// Adds a connection. A message without one only wakes the worker.
    fn add_connection(&mut self, message: Message) -> Result<(), LocalError> {
        let Message { len, descriptors } = message;
        let extra = descriptors.len().min(1);
        let message = &self.buffer[..len];
        let ReceivedFrame { envelope, mut extra, .. } =
            open_frame::<envelope::SharedConnection>(message, descriptors, extra, 0)?;
        let Some(fd) = extra.pop() else { return Ok(()) };
        let id = ConnectionId(envelope.connection);
        let connection = CallerConnection {
            id,
            fd: Rc::new(fd),
            caller: envelope.caller,
            lends: envelope.lends,
        };
        self.connections.add(connection).map_err(|source| {
            LocalError::Socket(SocketError::Os { operation: "epoll_ctl", source })
        })
    }

    fn assignment<M: Module>(
        &mut self,
        worker: &Worker<'_, M>,
        message: Message,
    ) -> Result<Invocation, NoMoreRequests> {
        let malformed =
            |error: LocalError| NoMoreRequests::Malformed(format!("assignment: {error}"));
        let ReceivedFrame { mut envelope, payload, mut extra } = open_frame::<Assignment>(
            &self.buffer[..message.len],
            message.descriptors,
            1,
            worker.launch.max_payload,
        )
        .map_err(malformed)?;
        let request = envelope.request.take().unwrap_or_default();
        let (Some(id), Some(reply_to)) = (request.id(), extra.pop()) else {
            return Err(NoMoreRequests::Malformed(
                "assignment without id or connection".to_owned(),
            ));
        };
        let deadline = Deadline::from_field(envelope.deadline_mono_ns);
        let span = span(worker, &request, payload.len());
        let context = context(worker, &request, id, envelope.caller, deadline, span.as_ref());
        let pool = worker.spec.pool.as_ref();
        let caller =
            Destination { connection: ConnectionId(envelope.connection), fd: Rc::new(reply_to) };
        let init = Rc::clone(&worker.init);
        let mut replies = Replies::new(id, caller, envelope.lends, pool, init);
        let input = match envelope.group.as_ref() {
            None => RequestInput::Whole(payload),
            Some(group) => {
                let others = group.parts.saturating_sub(1);
                let mut parts = vec![(group.number, payload)];
                for _ in 0..others {
                    parts.push(receive_part(worker, &mut self.buffer, &mut replies)?);
                }
                RequestInput::Parts { expected: group.expected, parts }
            }
        };
        Ok(Invocation { replies, deadline, context, input, span })
    }
}

fn receive<M: Module>(
    worker: &Worker<'_, M>,
    buffer: &mut [u8],
) -> Result<Message, NoMoreRequests> {
    seqpacket::receive(worker.init.as_fd(), buffer, None).map_err(|_closed| NoMoreRequests::Init)
}

/// Receives one more part of a group: its number and payload.
fn receive_part<M: Module>(
    worker: &Worker<'_, M>,
    buffer: &mut [u8],
    replies: &mut Replies,
) -> Result<(u32, Payload), NoMoreRequests> {
    let received = receive(worker, buffer)?;
    let message = &buffer[..received.len];
    let malformed = |error: LocalError| NoMoreRequests::Malformed(format!("part: {error}"));
    let part: Part = frame::decode(message)
        .and_then(|frame| frame.open())
        .map_err(|error| malformed(error.into()))?;
    let brought = usize::from(!replies.knows(part.connection));
    let mut opened =
        open_frame::<Part>(message, received.descriptors, brought, worker.launch.max_payload)
            .map_err(malformed)?;
    let brought = opened.extra.pop().map(|fd| Destination {
        connection: ConnectionId(part.connection_number),
        fd: Rc::new(fd),
    });
    let known = part.id().is_some_and(|id| replies.add(id, part.connection, brought));
    if !known {
        return Err(NoMoreRequests::Malformed("part without id or connection".to_owned()));
    }
    Ok((part.number, opened.payload))
}
