//! Messages of other nodes, and what lies in Redis (`wire::network`).
#![no_main]

use cwasi_fuzz::memory::{PROTOBUF, bounded_beside};
use cwasi_sys::clock::Deadline;
use cwasi_wire::network::{
    Answer, Call, Demand, Event, Location, MESSAGE_MAX, TryId, Versioned, decode, encode, parse,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(call) = again::<Call>(data) {
        assert_eq!(call.id().is_ok(), call.call_id.len() == 16);
        assert_eq!(TryId::from_field(&call.try_id).is_ok(), call.try_id.len() == 16);
        let payload = call.payload.get_or_default();
        let beside = payload.follows.max(payload.inline.len() as u64);
        assert!(payload.claim.is_some() || payload.length() == beside);
        let received = Deadline::at_ns(1 << 50);
        assert!(call.remaining().is_none_or(|remaining| received.plus(remaining) > received));
    }
    if let Some(answer) = again::<Answer>(data) {
        let _known = answer.outcome();
    }
    again::<Event>(data);
    if let Ok(location) = bounded_beside(PROTOBUF, data, 32, || Location::decode(data)) {
        let bytes = location.encode();
        assert_eq!(Location::decode(&bytes).expect("what was written is a location"), location);
    }
    if let Ok(demand) = bounded_beside(PROTOBUF, data, 32, || Demand::decode(data)) {
        let bytes = demand.encode();
        assert_eq!(Demand::decode(&bytes).expect("what was written is a demand"), demand);
    }
});

/// A message, which is the same when it was written and read again.
fn again<T: Versioned + PartialEq>(data: &[u8]) -> Option<T> {
    let message = bounded_beside(PROTOBUF, data, 32, || parse::<T>(data)).ok()?;
    assert!(data.len() <= MESSAGE_MAX);
    assert_eq!(decode::<T>(data).is_ok(), message.version() == T::OURS);
    let bytes = encode(&message);
    if bytes.len() <= MESSAGE_MAX {
        assert!(parse::<T>(&bytes).expect("what was written is a message") == message);
    }
    Some(message)
}
