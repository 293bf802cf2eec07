//! Frames that a test sends in a caller's or a callee's place, and receives, without further descriptors.

use std::os::fd::{AsFd, BorrowedFd};

use cwasi_modes::OutgoingPayload;
use cwasi_modes::local::{LocalError, ReceivedFrame, open_frame, send_as_is};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;
use cwasi_wire::frame::Enveloped;

pub fn send_frame<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    payload: &[u8],
    until: Option<Deadline>,
) -> Result<(), LocalError> {
    send_as_is(fd, envelope, OutgoingPayload::Bytes(payload), &[], until)
}

pub fn receive_frame<E: Enveloped>(
    fd: &impl AsFd,
    buffer: &mut [u8],
    max_payload: u64,
    until: Option<Deadline>,
) -> Result<ReceivedFrame<E>, LocalError> {
    let received = seqpacket::receive(fd.as_fd(), buffer, until)?;
    open_frame(&buffer[..received.len], received.descriptors, 0, max_payload)
}
