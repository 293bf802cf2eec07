//! Messages of init to a secondary's worker: assignments, further connections, wake-ups. Runs in a worker.

use std::os::fd::AsFd;
use std::rc::Rc;

use crate::work::Work;
use cwasi_modes::local::{
    CallerConnection, IncomingRequest, LocalError, ReceivedFrame, open_frame,
};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, Received as Message, SocketError};
use cwasi_wire::envelope::{Assignment, SharedConnection};
use cwasi_wire::frame::{self, FrameError, Kind};

use super::{Invocation, Requests};

/// An assignment without an id, a connection or a call.
const INCOMPLETE: FrameError = FrameError::Kind { kind: Kind::Assignment as u8, flags: 0 };

impl Requests<'_> {
    /// Reads a message of init: an assignment, a further connection, or a wake-up.
    pub(super) fn read_init(&mut self) -> Result<Option<Invocation>, LocalError> {
        let message = self.receive()?;
        if frame::decode(&self.buffer[..message.len])?.kind == Kind::SharedConnection {
            self.add_connection(message)?;
            return Ok(None);
        }
        let work = self.receive_work(message)?;
        // All of it is here. Until now init could assign it to another worker.
        self.assigned = self.slot.begin_assigned();
        if !self.assigned {
            return Ok(None);
        }
        if work.expected.is_some() {
            // Init may hold thousands of the group's descriptors. Without init there is no next request either.
            let _told = self.init.nudge();
        }
        Ok(Some(self.invocation(work)))
    }

    fn receive(&mut self) -> Result<Message, SocketError> {
        seqpacket::receive(self.init.0.as_fd(), &mut self.buffer, None)
    }

    /// Adds a connection. A message without one only wakes the worker.
    fn add_connection(&mut self, Message { len, descriptors }: Message) -> Result<(), LocalError> {
        let brought = descriptors.len().min(1);
        let message = &self.buffer[..len];
        let mut opened = open_frame::<SharedConnection>(message, descriptors, brought, 0)?;
        let Some(fd) = opened.extra.pop() else { return Ok(()) };
        let connection = CallerConnection::of(opened.envelope, Rc::new(fd));
        self.connections.add(connection).map_err(|source| {
            LocalError::Socket(SocketError::Os { operation: "epoll_ctl", source })
        })
    }

    /// The work of an assignment, whose first message has arrived.
    fn receive_work(&mut self, mut message: Message) -> Result<Work, LocalError> {
        let mut calls = Vec::new();
        loop {
            let (call, Assignment { group, deadline_mono_ns, .. }) = self.open(message, &calls)?;
            calls.push((group.number, call));
            if group.following > 0 {
                message = self.receive()?;
                continue;
            }
            let deadline = Deadline::at_ns(deadline_mono_ns);
            let work = match group.into_option() {
                Some(group) => Work::group(group.expected, deadline, calls),
                None => calls.pop().map(|(_, call)| Work::one(call, deadline)),
            };
            return Ok(work.ok_or(INCOMPLETE)?);
        }
    }

    /// Opens an assignment. Its connection comes with it, or has come with one of the `earlier` calls of its group.
    fn open(
        &self,
        Message { len, descriptors }: Message,
        earlier: &[(u32, Box<IncomingRequest>)],
    ) -> Result<(Box<IncomingRequest>, Assignment), LocalError> {
        let message = &self.buffer[..len];
        let payload = frame::decode(message)?.payload;
        let brought = descriptors.len().saturating_sub(payload.descriptors()).min(1);
        let max_payload = self.launch.max_payload;
        let ReceivedFrame { mut envelope, payload, mut extra } =
            open_frame::<Assignment>(message, descriptors, brought, max_payload)?;
        let request = envelope.request.take().unwrap_or_default();
        let connection = envelope.connection.take().unwrap_or_default();
        let known = |(_, call): &&(u32, Box<IncomingRequest>)| {
            call.connection.id.0 == connection.connection
        };
        let earlier = || earlier.iter().find(known).map(|(_, call)| Rc::clone(&call.connection.fd));
        let fd = extra.pop().map(Rc::new).or_else(earlier).ok_or(INCOMPLETE)?;
        let id = request.id().ok_or(INCOMPLETE)?;
        let connection = CallerConnection::of(connection, fd);
        Ok((Box::new(IncomingRequest { connection, id, request, payload }), envelope))
    }
}
