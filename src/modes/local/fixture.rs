//! Frames for tests: sent with bytes, and received, without further descriptors.

use std::os::fd::{AsFd, BorrowedFd};

use super::{LocalError, ReceivedFrame, open_frame, send_as_is};
use crate::OutgoingPayload;
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
