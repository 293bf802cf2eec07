//! Messages and payloads on a direct connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use cwasi_modes::Payload;
use cwasi_modes::pool::TakenSegment;
use cwasi_sys::segment::{Segment, SegmentError, UnsealedSegment};
use cwasi_wire::network::MESSAGE_MAX;

/// Bytes of a message's head.
const HEAD: usize = 8;
/// Bytes of a payload that are read or written at a time.
const STEP: usize = 256 << 10;
/// Longest time in which nothing of a payload moves.
const STALL_MAX: Duration = Duration::from_secs(5);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A [`cwasi_wire::network::Call`].
    Call = 1,
    /// A [`cwasi_wire::network::TryId`], which its caller gives up.
    GiveUp = 2,
    /// A [`cwasi_wire::network::Answer`].
    Answer = 3,
    /// The first one of the callee's shim: it knows the caller's node. Empty.
    Ready = 4,
    /// In its place: why it takes no calls, as text.
    Refusal = 5,
    /// A [`cwasi_wire::network::Question`].
    Question = 6,
    /// A [`cwasi_wire::network::LocationList`].
    Locations = 7,
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("nothing of a payload has moved for {} s", STALL_MAX.as_secs())]
    Stalled,
    /// What came, or was to go, is no message.
    #[error(
        "a message of kind {kind} with {length} bytes is none of ours, which have {MESSAGE_MAX} at most"
    )]
    Malformed { kind: u8, length: u32 },
    /// Not what is expected now.
    #[error("a message of the other side has no sense now: {what}")]
    Unexpected { what: String },
    #[error(transparent)]
    Memory(#[from] SegmentError),
}

impl ConnectionError {
    /// True if the other side has said nothing for too long, as when packets are lost on the way.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Broken(error) => error.kind() == io::ErrorKind::TimedOut,
            Self::Stalled => true,
            Self::Malformed { .. } | Self::Unexpected { .. } | Self::Memory(_) => false,
        }
    }
}

/// A message's head. Fails when it is none of ours.
fn parse_head(head: [u8; HEAD]) -> Result<(Kind, usize), ConnectionError> {
    let [kind, zeros @ .., a, b, c, d] = head;
    let length = u32::from_be_bytes([a, b, c, d]);
    let known = match kind {
        1 => Some(Kind::Call),
        2 => Some(Kind::GiveUp),
        3 => Some(Kind::Answer),
        4 => Some(Kind::Ready),
        5 => Some(Kind::Refusal),
        6 => Some(Kind::Question),
        7 => Some(Kind::Locations),
        _ => None,
    };
    let len = usize::try_from(length).unwrap_or(usize::MAX);
    let malformed = ConnectionError::Malformed { kind, length };
    let known = known.filter(|_| zeros == [0; 3] && len <= MESSAGE_MAX);
    known.map(|kind| (kind, len)).ok_or(malformed)
}

/// Sends one message.
///
/// # Errors
/// When the connection is broken, or the message is longer than [`MESSAGE_MAX`].
pub async fn write_message(
    to: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    message: &[u8],
) -> Result<(), ConnectionError> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    if message.len() > MESSAGE_MAX {
        return Err(ConnectionError::Malformed { kind: kind as u8, length });
    }
    // Together, so that they become one record and one packet.
    let mut bytes = Vec::with_capacity(HEAD + message.len());
    bytes.extend_from_slice(&[kind as u8, 0, 0, 0]);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message);
    to.write_all(&bytes).await?;
    to.flush().await?;
    Ok(())
}

/// The next message; `None` when the other side has ended the connection between two.
///
/// # Errors
/// When the connection is broken, or what comes is no message.
pub async fn read_message(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<(Kind, Vec<u8>)>, ConnectionError> {
    let mut head = [0; HEAD];
    if from.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..]).await?;
    let (kind, len) = parse_head(head)?;
    let mut message = vec![0; len];
    from.read_exact(&mut message).await?;
    Ok(Some((kind, message)))
}

/// Bytes to move next, of so many that are left.
fn step(left: u64) -> usize {
    usize::try_from(left).unwrap_or(STEP).min(STEP)
}

/// Sends the bytes of a payload, of which there are some; calls `complete` before the last ones.
///
/// # Errors
/// When the connection is broken, or the other side takes nothing.
pub async fn write_payload(
    to: &mut (impl AsyncWrite + Unpin),
    payload: &Payload,
    complete: impl FnOnce(),
) -> Result<(), ConnectionError> {
    let len = payload.len();
    let mut complete = Some(complete);
    let mut buffer = vec![0; step(len)];
    let mut offset = 0;
    while offset < len {
        let part = &mut buffer[..step(len - offset)];
        read_at(payload, part, offset)?;
        offset += part.len() as u64;
        if offset == len
            && let Some(complete) = complete.take()
        {
            complete();
        }
        timeout(STALL_MAX, to.write_all(part))
            .await
            .map_err(|_elapsed| ConnectionError::Stalled)??;
    }
    timeout(STALL_MAX, to.flush()).await.map_err(|_elapsed| ConnectionError::Stalled)??;
    Ok(())
}

fn read_at(payload: &Payload, part: &mut [u8], offset: u64) -> Result<(), SegmentError> {
    match payload {
        Payload::Segment(segment) => segment.read_exact_at(part, offset),
        Payload::Inline(bytes) => {
            let start = usize::try_from(offset).expect("an inline payload fits into memory");
            part.copy_from_slice(&bytes[start..start + part.len()]);
            Ok(())
        }
    }
}

/// Receives a payload of `length` bytes into a segment: the one that is taken for so many, or else a new one.
///
/// # Errors
/// When the connection is broken, the other side sends nothing, or memory runs out.
pub async fn read_payload(
    from: &mut (impl AsyncRead + Unpin),
    length: u64,
    take: impl FnOnce(u64) -> Option<TakenSegment>,
) -> Result<Segment, ConnectionError> {
    let Some(mut taken) = take(length) else { return read_into_new(from, length).await };
    while !taken.is_full() {
        let count = read_some(from, taken.unfilled(STEP)).await?;
        taken.advance(count);
    }
    Ok(taken.lend()?)
}

async fn read_some(
    from: &mut (impl AsyncRead + Unpin),
    room: &mut [u8],
) -> Result<usize, ConnectionError> {
    let reading = timeout(STALL_MAX, from.read(room));
    match reading.await.map_err(|_elapsed| ConnectionError::Stalled)?? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        count => Ok(count),
    }
}

async fn read_into_new(
    from: &mut (impl AsyncRead + Unpin),
    length: u64,
) -> Result<Segment, ConnectionError> {
    let mut draft = UnsealedSegment::new(length)?;
    let mut buffer = vec![0; step(length)];
    let mut offset = 0;
    while offset < length {
        let count = read_some(from, &mut buffer[..step(length - offset)]).await?;
        draft.write_at(&buffer[..count], offset)?;
        offset += count as u64;
    }
    Ok(draft.seal()?)
}

#[cfg(test)]
mod tests {
    use cwasi_modes::pool::ReceivePools;
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn messages_and_payloads_round_trip() {
        round_trip(|_length| None).await;
        let pools = ReceivePools::new(8 << 20);
        for _ in 0..2 {
            round_trip(|length| pools.take("reader", length)).await;
        }
        assert_eq!(pools.bytes(), 1 << 20, "one segment does for both");
    }

    async fn round_trip(take: impl FnOnce(u64) -> Option<TakenSegment>) {
        let (mut one, mut other) = duplex(1 << 16);
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let payload = Payload::Segment(Segment::copy_of(&bytes).unwrap());
        let sending = async {
            write_message(&mut one, Kind::Call, b"call").await.unwrap();
            let mut complete = 0;
            write_payload(&mut one, &payload, || complete += 1).await.unwrap();
            assert_eq!(complete, 1);
            drop(one);
        };
        let receiving = async {
            let message = read_message(&mut other).await.unwrap();
            assert_eq!(message, Some((Kind::Call, b"call".to_vec())));
            let segment = read_payload(&mut other, payload.len(), take).await.unwrap();
            assert_eq!(segment.to_vec().unwrap(), bytes);
            assert_eq!(read_message(&mut other).await.unwrap(), None);
        };
        tokio::join!(sending, receiving);
    }

    #[tokio::test]
    async fn a_payload_that_is_cut_off_is_none() {
        let (mut one, mut other) = duplex(1 << 10);
        one.write_all(&[1; 100]).await.unwrap();
        drop(one);
        let pools = ReceivePools::new(8 << 20);
        let read = read_payload(&mut other, 101, |length| pools.take("reader", length)).await;
        assert!(matches!(read, Err(ConnectionError::Broken(_))));
        let none = read_payload(&mut other, 1, |_length| None).await;
        assert!(matches!(none, Err(ConnectionError::Broken(_))));
    }
}
