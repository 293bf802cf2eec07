//! Messages of init to a secondary's worker: assignments, further connections, wake-ups. Runs in a worker.

use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::work::Work;
use cwasi_modes::local::{
    CallerConnection, IncomingRequest, LocalError, ReceivedFrame, open_frame,
};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, Received as Message};
use cwasi_wire::envelope::{Assignment, SharedConnection};
use cwasi_wire::frame::{self, FrameError, FrameKind};

/// An assignment without an id, a connection or a call.
const INCOMPLETE: FrameError = FrameError::Kind { kind: FrameKind::Assignment as u8, flags: 0 };

pub(super) enum InitMessage {
    Assignment(Work),
    Connection(CallerConnection),
    WakeUp,
}

/// Reads a message of init; an assignment with all its parts.
pub(super) fn receive(
    init: BorrowedFd<'_>,
    buffer: &mut [u8],
    max_payload: u64,
) -> Result<InitMessage, LocalError> {
    let message = seqpacket::receive(init, buffer, None)?;
    if frame::decode(&buffer[..message.len])?.kind == FrameKind::SharedConnection {
        let connection = open_connection(&buffer[..message.len], message)?;
        return Ok(connection.map_or(InitMessage::WakeUp, InitMessage::Connection));
    }
    let work = receive_work(init, buffer, message, max_payload)?;
    Ok(InitMessage::Assignment(work))
}

/// The connection of a message; one without a connection only wakes the worker.
fn open_connection(
    bytes: &[u8],
    Message { descriptors, .. }: Message,
) -> Result<Option<CallerConnection>, LocalError> {
    let extra = descriptors.len().min(1);
    let mut opened = open_frame::<SharedConnection>(bytes, descriptors, extra, 0)?;
    Ok(opened.extra.pop().map(|fd| CallerConnection::of(opened.envelope, Rc::new(fd))))
}

/// The work of an assignment, whose first message has arrived.
fn receive_work(
    init: BorrowedFd<'_>,
    buffer: &mut [u8],
    mut message: Message,
    max_payload: u64,
) -> Result<Work, LocalError> {
    let mut calls = Vec::new();
    loop {
        let bytes = &buffer[..message.len];
        let (call, Assignment { group, deadline_mono_ns, .. }) =
            open_assignment(bytes, message, &calls, max_payload)?;
        calls.push((group.number, call));
        if group.following > 0 {
            message = seqpacket::receive(init, buffer, None)?;
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
fn open_assignment(
    bytes: &[u8],
    Message { descriptors, .. }: Message,
    earlier: &[(u32, Box<IncomingRequest>)],
    max_payload: u64,
) -> Result<(Box<IncomingRequest>, Assignment), LocalError> {
    let payload = frame::decode(bytes)?.payload;
    let extra = descriptors.len().saturating_sub(payload.descriptors()).min(1);
    let ReceivedFrame { mut envelope, payload, mut extra } =
        open_frame::<Assignment>(bytes, descriptors, extra, max_payload)?;
    let request = envelope.request.take().unwrap_or_default();
    let connection = envelope.connection.take().unwrap_or_default();
    let known =
        |(_, call): &&(u32, Box<IncomingRequest>)| call.connection.id.0 == connection.connection;
    let earlier = || earlier.iter().find(known).map(|(_, call)| Rc::clone(&call.connection.fd));
    let fd = extra.pop().map(Rc::new).or_else(earlier).ok_or(INCOMPLETE)?;
    let id = request.id().ok_or(INCOMPLETE)?;
    let connection = CallerConnection::of(connection, fd);
    Ok((Box::new(IncomingRequest { connection, id, request, payload }), envelope))
}
