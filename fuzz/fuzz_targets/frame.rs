//! Frames and envelopes: what any process sends over a caller's connection (`wire::frame`, `wire::envelope`).
#![no_main]

use cwasi_fuzz::memory::{PROTOBUF, bounded, bounded_beside};
use cwasi_sys::clock::Deadline;
use cwasi_wire::envelope::{Assignment, Hello, Request, Response, SharedConnection, Undelivered};
use cwasi_wire::frame::{
    ENVELOPE_MAX, Enveloped, Frame, FrameKind, HEADER_LEN, INLINE_MAX, PayloadRef, decode,
    encode_head,
};
use libfuzzer_sys::fuzz_target;

/// Bytes that an envelope may grow by when it is written again: numbers that came shorter than they are written.
const GROWTH: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Ok(frame) = bounded(data, 0, || decode(data)) else { return };
    assert!(frame.envelope.len() <= ENVELOPE_MAX);
    let announced = data[8..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    assert_eq!(announced, Some(frame.payload.len()));
    if let PayloadRef::Inline(bytes) = frame.payload {
        assert!(bytes.len() <= INLINE_MAX);
        assert_eq!(HEADER_LEN + frame.envelope.len() + bytes.len(), data.len());
    }
    match frame.kind {
        FrameKind::Hello => drop(again::<Hello>(&frame)),
        FrameKind::Request => {
            let Some(request) = again::<Request>(&frame) else { return };
            assert_eq!(request.id().is_some(), request.call_id.len() == 16);
            assert!(request.run_id().is_some() || request.id().is_none());
            let received = Deadline::at_ns(1 << 50);
            let deadline = request.remaining().map(|remaining| received.plus(remaining));
            assert_eq!(deadline.is_none(), request.remaining_us == 0);
            assert!(
                deadline.map(|deadline| deadline.left(received.as_ns())) <= request.remaining()
            );
        }
        FrameKind::Response => drop(again::<Response>(&frame).map(|it| (it.id(), it.outcome()))),
        FrameKind::Assignment => drop(again::<Assignment>(&frame)),
        FrameKind::SharedConnection => drop(again::<SharedConnection>(&frame)),
        FrameKind::Undelivered => drop(again::<Undelivered>(&frame)),
    }
});

/// The frame's envelope, which is the same when it was written and read again.
fn again<E: Enveloped + PartialEq>(frame: &Frame<'_>) -> Option<E> {
    let envelope = bounded_beside(PROTOBUF, frame.envelope, 16, || frame.open::<E>()).ok()?;
    let mut bytes = match encode_head(&envelope, frame.payload) {
        Ok(bytes) => bytes,
        Err(_) => {
            assert!(frame.envelope.len() + GROWTH > ENVELOPE_MAX, "what came cannot be sent");
            return None;
        }
    };
    if let PayloadRef::Inline(payload) = frame.payload {
        bytes.extend_from_slice(payload);
    }
    let again = decode(&bytes).expect("what was written is a frame");
    assert_eq!((again.kind, again.payload), (frame.kind, frame.payload));
    assert!(again.open::<E>().expect("of this kind") == envelope);
    Some(envelope)
}
