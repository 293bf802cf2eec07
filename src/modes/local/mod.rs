//! Local buffer: caller and callee on one host, a `SOCK_SEQPACKET` connection that the broker made.
//!
//! A payload of up to [`INLINE_MAX`] bytes travels in the frame. A longer one travels as a segment: the one in which
//! the guest produced it, or a copy. Leased segments are sent to and taken from peers of our own trust group only, as
//! the shim says; other peers get sealed ones. What a shim has received for one reader goes no further without the
//! shim's knowledge ([`Segment::pass_on`]). One call is one message each way, so a connection needs no reassembly,
//! and several processes of the callee can share it.
//!
//! - [`caller`]: the worker's side of a call ([`LocalMode`]).
//! - [`incoming`]: a request, as init and workers read it.
//! - [`receiver`]: the callee's side in its sandbox init.
//! - [`shared_connections`]: the callee's side in its workers.
//! - [`answer`]: a callee's answer, from the worker or from init.
//! - [`send_queue`]: answers that wait for room at their callers.
//! - [`load`]: what waiting requests and answers hold.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::pool::SegmentPool;
use crate::{OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::{Segment, SegmentError};
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::frame::{self, Enveloped, FrameError, INLINE_MAX, PayloadRef};

pub mod answer;
pub mod caller;
#[cfg(test)]
mod fixture;
pub mod incoming;
pub mod load;
pub mod receiver;
pub mod send_queue;
pub mod shared_connections;

pub use answer::{error_answer, found_no_room, send_answer};
pub use caller::{LocalMode, LocalRoute, ReceivedAnswer, open_answer};
pub use incoming::{CallKey, CallerConnection, ConnectionId, IncomingRequest};
pub use receiver::Receiver;
pub use shared_connections::SharedConnections;

/// Why a frame could not be sent or a message is no acceptable frame.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A frame that announces a segment without its descriptor, or brings descriptors that do not belong to it.
    #[error("frame brings {found} descriptors, {expected} expected")]
    Descriptors {
        found: usize,
        /// How many belong to such a frame.
        expected: usize,
    },
    /// A leased segment of a peer from whom we take none.
    #[error("a leased segment comes from outside the trust group")]
    Lease,
    /// A payload above the receiver's limit.
    #[error("payload of {length} bytes is larger than the limit of {limit} bytes")]
    TooLarge {
        /// Length in bytes.
        length: u64,
        /// Limit in bytes.
        limit: u64,
    },
}

/// Sends one frame with a payload that the peer may have as it is: a segment without copying it, few bytes inline, many
/// as a sealed copy. `extra` descriptors go first.
///
/// # Errors
/// When the peer is gone, the deadline passes, or memory runs out; then nothing was sent.
pub fn send_as_is<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    payload: OutgoingPayload<'_>,
    extra: &[BorrowedFd<'_>],
    deadline: Option<Deadline>,
) -> Result<(), LocalError> {
    let segment = match payload {
        OutgoingPayload::Bytes(bytes) if bytes.len() <= INLINE_MAX => {
            let head = frame::encode_head(envelope, PayloadRef::Inline(bytes))?;
            return Ok(seqpacket::send(fd, &[&head, bytes], extra, deadline)?);
        }
        OutgoingPayload::Bytes(bytes) => {
            let copy = Segment::copy_of(bytes)?;
            return send_as_is(fd, envelope, OutgoingPayload::from(&copy), extra, deadline);
        }
        OutgoingPayload::Segment(segment) => segment,
    };
    let token = segment.token().map(|token| token.as_fd());
    let payload = match token {
        Some(_) if segment.is_for_one_reader() => PayloadRef::LeasedToOne(segment.len()),
        Some(_) => PayloadRef::Leased(segment.len()),
        None => PayloadRef::Segment(segment.len()),
    };
    let head = frame::encode_head(envelope, payload)?;
    let descriptors: Vec<_> = extra.iter().copied().chain([segment.as_fd()]).chain(token).collect();
    Ok(seqpacket::send(fd, &[&head], &descriptors, deadline)?)
}

/// Sends one frame. Large payloads go as a leased copy while `lender` has room; without a lender as a sealed copy, also
/// if the payload is a leased segment.
///
/// # Errors
/// As [`send_as_is`].
pub fn send_payload<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    payload: OutgoingPayload<'_>,
    lender: Option<&SegmentPool>,
    deadline: Option<Deadline>,
) -> Result<(), LocalError> {
    let copy = copy_for_peer(payload, lender.is_some(), lender)?;
    let payload = copy.as_ref().map_or(payload, OutgoingPayload::from);
    send_as_is(fd, envelope, payload, &[], deadline)
}

/// The copy that goes to a peer instead of this payload: of many bytes, leased from `pool` while it has room, and of a
/// leased segment if we lend the peer none. A segment that is leased to us as its one reader is passed on instead, without a copy.
/// `None` when the payload goes as it is.
///
/// # Errors
/// When memory or descriptors run out.
pub fn copy_for_peer(
    payload: OutgoingPayload<'_>,
    lends: bool,
    pool: Option<&SegmentPool>,
) -> Result<Option<Segment>, SegmentError> {
    match payload {
        OutgoingPayload::Bytes(bytes) if bytes.len() > INLINE_MAX => {
            let lent = pool.and_then(|pool| pool.copy_of(bytes));
            lent.map_or_else(|| Segment::copy_of(bytes), Ok).map(Some)
        }
        OutgoingPayload::Segment(segment) if segment.token().is_some() && !lends => {
            segment.sealed_copy().map(Some)
        }
        OutgoingPayload::Segment(segment) if segment.is_for_one_reader() => {
            segment.pass_on().map(Some)
        }
        _ => Ok(None),
    }
}

/// A frame taken out of a message: envelope, payload, and the descriptors that came before the segment's.
#[derive(Debug)]
pub struct ReceivedFrame<E> {
    pub envelope: E,
    /// The payload, its segment checked.
    pub payload: Payload,
    /// `extra` of the sender.
    pub extra: Vec<OwnedFd>,
}

/// Decodes a message of the reader's own sandbox or shim, which may lend. It must be a frame of kind `E` with `extra`
/// descriptors before the segment's.
///
/// # Errors
/// For anything else; all descriptors are closed then.
pub fn open_frame<E: Enveloped>(
    message: &[u8],
    descriptors: Vec<OwnedFd>,
    extra: usize,
    max_payload: u64,
) -> Result<ReceivedFrame<E>, LocalError> {
    let frame = frame::decode(message)?;
    let envelope = frame.open::<E>()?;
    let (payload, extra) = open_payload(frame.payload, descriptors, extra, max_payload, true)?;
    Ok(ReceivedFrame { envelope, payload, extra })
}

/// The payload that a frame announces, and the descriptors before its segment's. A peer may lend us segments if
/// `lends`.
fn open_payload(
    payload: PayloadRef<'_>,
    mut descriptors: Vec<OwnedFd>,
    extra: usize,
    max_payload: u64,
    lends: bool,
) -> Result<(Payload, Vec<OwnedFd>), LocalError> {
    let length = payload.len();
    if length > max_payload {
        return Err(LocalError::TooLarge { length, limit: max_payload });
    }
    let found = descriptors.len();
    let expected = extra + payload.descriptors();
    if found != expected {
        return Err(LocalError::Descriptors { found, expected });
    }
    let mut last = || descriptors.pop().ok_or(LocalError::Descriptors { found, expected });
    let payload = match payload {
        PayloadRef::Inline(bytes) => Payload::Inline(bytes.to_vec()),
        PayloadRef::Segment(len) => Payload::Segment(Segment::accept(last()?, len)?),
        PayloadRef::Leased(_) | PayloadRef::LeasedToOne(_) if !lends => {
            return Err(LocalError::Lease);
        }
        PayloadRef::Leased(len) => {
            let token = last()?;
            Payload::Segment(Segment::accept_leased(last()?, len, token)?)
        }
        PayloadRef::LeasedToOne(len) => {
            let token = last()?;
            let leased = Segment::accept_leased(last()?, len, token)?;
            Payload::Segment(leased.for_one_reader())
        }
    };
    Ok((payload, descriptors))
}

#[cfg(test)]
mod tests;
