//! Local buffer: caller and callee on one host, a `SOCK_SEQPACKET` connection that the broker made.
//!
//! A payload travels inside the frame up to [`INLINE_MAX`] bytes and as a segment above: the one that the
//! guest produced it in, or a copy. Leased segments go to peers only that the shim named as of one group with us, and
//! are taken from such only; anybody else gets sealed ones. One call is one message each way, so a connection needs no reassembly and can be shared by
//! the callee's processes.
//!
//! - [`caller`]: the worker's side of a call ([`LocalMode`]).
//! - [`receiver`]: the callee's side in its sandbox init.
//! - [`lines`]: the callee's side in its workers.
//! - [`answer`]: a callee's answer, from the worker or from init.
//! - [`outbox`]: answers whose callers read late.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::modes::{Outgoing, Payload};
use crate::sys::pool::SegmentPool;
use crate::sys::segment::{Segment, SegmentError, SegmentRef};
use crate::sys::seqpacket::{self, Deadline, SocketError};
use crate::wire::frame::{self, Enveloped, FrameError, INLINE_MAX, PayloadRef};

pub mod answer;
pub mod caller;
pub mod lines;
pub mod outbox;
pub mod receiver;

pub use answer::{Answer, error_text, found_no_room, respond, respond_with};
pub use caller::{Heard, LocalMode, LocalRoute};
pub use lines::{Line, Lines};
pub use receiver::{Incoming, Receiver};

/// Why a frame could not be sent or a message is no acceptable frame.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The connection.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The segment.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// A frame that announces a segment without its descriptor, or brings descriptors that nobody asked for.
    #[error("frame brings {found} descriptors, {expected} expected")]
    Descriptors {
        /// How many came.
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

/// Sends one frame: small payloads inline, large ones as a sealed copy. `extra` descriptors go first.
///
/// # Errors
/// When the peer is gone, the deadline passes, or memory runs out; then nothing was sent.
pub fn send_frame<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    payload: &[u8],
    extra: &[BorrowedFd<'_>],
    deadline: Deadline,
) -> Result<(), LocalError> {
    if payload.len() <= INLINE_MAX {
        let head = frame::encode_head(envelope, PayloadRef::Inline(payload))?;
        return Ok(seqpacket::send(fd, &[&head, payload], extra, deadline)?);
    }
    let copy = Segment::copy_of(payload)?;
    send_segment(fd, envelope, SegmentRef::from(&copy), extra, deadline)
}

/// Sends one frame whose payload is already a segment. `extra` descriptors go first.
///
/// # Errors
/// As [`send_frame`].
pub fn send_segment<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    segment: SegmentRef<'_>,
    extra: &[BorrowedFd<'_>],
    deadline: Deadline,
) -> Result<(), LocalError> {
    let token = segment.token();
    let payload = match token {
        Some(_) => PayloadRef::Leased(segment.len()),
        None => PayloadRef::Segment(segment.len()),
    };
    let head = frame::encode_head(envelope, payload)?;
    let mut descriptors = extra.to_vec();
    descriptors.push(segment.as_fd());
    descriptors.extend(token);
    Ok(seqpacket::send(fd, &[&head], &descriptors, deadline)?)
}

/// Sends one frame to a peer to whom `lender` may lend: large payloads as a leased copy, as long as it has room.
/// `None`: as a sealed copy, a leased segment too.
///
/// # Errors
/// As [`send_frame`].
pub fn send_payload<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    payload: Outgoing<'_>,
    lender: Option<&SegmentPool>,
    deadline: Deadline,
) -> Result<(), LocalError> {
    match (payload, lender) {
        (Outgoing::Bytes(bytes), Some(pool)) if bytes.len() > INLINE_MAX => {
            match pool.copy_of(bytes) {
                Some(copy) => send_segment(fd, envelope, SegmentRef::from(&copy), &[], deadline),
                None => send_frame(fd, envelope, bytes, &[], deadline),
            }
        }
        (Outgoing::Bytes(bytes), _) => send_frame(fd, envelope, bytes, &[], deadline),
        (Outgoing::Segment(segment), None) if segment.token().is_some() => {
            let copy = segment.sealed_copy()?;
            send_segment(fd, envelope, SegmentRef::from(&copy), &[], deadline)
        }
        (Outgoing::Segment(segment), _) => send_segment(fd, envelope, segment, &[], deadline),
    }
}

/// Sends one frame with a payload that arrived before, without copying a segment.
///
/// # Errors
/// As [`send_frame`].
pub fn forward_frame<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    payload: &Payload,
    extra: &[BorrowedFd<'_>],
    deadline: Deadline,
) -> Result<(), LocalError> {
    send_as_is(fd, envelope, payload.outgoing(), extra, deadline)
}

/// Sends one frame with a payload that the peer may have as it is.
///
/// # Errors
/// As [`send_frame`].
pub fn send_as_is<E: Enveloped>(
    fd: BorrowedFd<'_>,
    envelope: &E,
    payload: Outgoing<'_>,
    extra: &[BorrowedFd<'_>],
    deadline: Deadline,
) -> Result<(), LocalError> {
    match payload {
        Outgoing::Bytes(bytes) => send_frame(fd, envelope, bytes, extra, deadline),
        Outgoing::Segment(segment) => send_segment(fd, envelope, segment, extra, deadline),
    }
}

/// A frame taken out of a message: envelope, payload, and the descriptors that came before the segment's.
#[derive(Debug)]
pub struct Opened<E> {
    /// The envelope.
    pub envelope: E,
    /// The payload, its segment checked.
    pub payload: Payload,
    /// `extra` of the sender.
    pub extra: Vec<OwnedFd>,
}

impl<E> Opened<E> {
    /// Whether to take it from a peer that lends to us only when `lends`.
    ///
    /// # Errors
    /// [`LocalError::Lease`] for a leased segment of any other.
    pub fn unless_lent(self, lends: bool) -> Result<Self, LocalError> {
        let Self { envelope, payload, extra } = self;
        Ok(Self { envelope, payload: admitted(payload, lends)?, extra })
    }
}

/// A payload from a peer that lends to us only when `lends`.
fn admitted(payload: Payload, lends: bool) -> Result<Payload, LocalError> {
    match &payload {
        Payload::Segment(segment) if segment.token().is_some() && !lends => Err(LocalError::Lease),
        _ => Ok(payload),
    }
}

/// Opens a received message that must be a frame of kind `E` with `extra` descriptors before the segment's. Who reads
/// from somebody else than its own sandbox or shim says next whether it takes leased ones ([`Opened::unless_lent`]).
///
/// # Errors
/// For anything else; all descriptors are closed then.
pub fn open_frame<E: Enveloped>(
    message: &[u8],
    descriptors: Vec<OwnedFd>,
    extra: usize,
    max_payload: u64,
) -> Result<Opened<E>, LocalError> {
    let frame = frame::decode(message)?;
    let envelope = frame.open::<E>()?;
    let (payload, extra) = open_payload(frame.payload, descriptors, extra, max_payload)?;
    Ok(Opened { envelope, payload, extra })
}

/// The payload that a frame announces, and the descriptors before its segment's.
fn open_payload(
    payload: PayloadRef<'_>,
    mut descriptors: Vec<OwnedFd>,
    extra: usize,
    max_payload: u64,
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
        PayloadRef::Leased(len) => {
            let token = last()?;
            Payload::Segment(Segment::accept_leased(last()?, len, token)?)
        }
    };
    Ok((payload, descriptors))
}

/// Receives one frame of kind `E` without extra descriptors.
///
/// # Errors
/// As [`open_frame`], and when the connection ends or the deadline passes.
pub fn receive_frame<E: Enveloped>(
    fd: &impl AsFd,
    buffer: &mut [u8],
    max_payload: u64,
    deadline: Deadline,
) -> Result<Opened<E>, LocalError> {
    let received = seqpacket::receive(fd.as_fd(), buffer, deadline)?;
    open_frame(&buffer[..received.len], received.descriptors, 0, max_payload)
}
