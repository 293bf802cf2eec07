//! Tests of segments that a shim lends to one reader: the reader's processes hand them on as they are, and tell the
//! shim before other functions get them.

use cwasi_wire::envelope::{Assignment, Request};

use super::*;
use crate::pool::ReceivePools;

const LEN: usize = 100_000;

fn received(pools: &ReceivePools) -> Segment {
    let mut taken = pools.take("reader", LEN as u64).unwrap();
    while !taken.is_full() {
        let room = taken.unfilled(usize::MAX);
        room.fill(7);
        let count = room.len();
        taken.advance(count);
    }
    taken.lend().unwrap()
}

fn sent<E: Enveloped + Default>(segment: &Segment) -> Segment {
    let (one, other) = seqpacket::pair().unwrap();
    send_as_is(one.as_fd(), &E::default(), segment.into(), &[], None).unwrap();
    let mut buffer = vec![0; frame::FRAME_MAX];
    let received = seqpacket::try_receive(other.as_fd(), &mut buffer).unwrap().unwrap();
    let message = &buffer[..received.len];
    let opened = open_frame::<E>(message, received.descriptors, 0, LEN as u64).unwrap();
    let Payload::Segment(segment) = opened.payload else { panic!("it is a segment") };
    segment
}

#[test]
fn others_get_it_with_the_shims_knowledge() {
    let pools = ReceivePools::new(1 << 20);
    let of_worker = sent::<Assignment>(&sent::<Request>(&received(&pools)));
    assert!(of_worker.is_for_one_reader());
    drop(of_worker);
    let bytes = pools.bytes();
    let again = sent::<Request>(&received(&pools));
    assert_eq!(pools.bytes(), bytes, "it is received into again");
    let passed_on = copy_for_peer((&again).into(), true, None).unwrap().unwrap();
    let of_other = sent::<Request>(&passed_on);
    assert!(!of_other.is_for_one_reader() && of_other.token().is_some());
    drop((again, passed_on));
    let next = received(&pools);
    assert_eq!(pools.bytes(), 2 * bytes, "the other one reads");
    assert!(of_other.to_vec().unwrap() == [7; LEN]);
    drop((of_other, next));
    let _next = received(&pools);
    assert_eq!(pools.bytes(), bytes, "it is not received into any more");
}

#[test]
fn outsiders_get_a_copy() {
    let pools = ReceivePools::new(1 << 20);
    let segment = received(&pools);
    let copy = copy_for_peer((&segment).into(), false, None).unwrap().unwrap();
    assert!(copy.token().is_none() && copy.to_vec().unwrap() == [7; LEN]);
    drop(segment);
    let bytes = pools.bytes();
    let _again = received(&pools);
    assert_eq!(pools.bytes(), bytes);
}

#[test]
fn peers_that_may_not_lend_are_refused() {
    let segment = received(&ReceivePools::new(1 << 20));
    let (payload, fds) = (PayloadRef::LeasedToOne(LEN as u64), |segment: &Segment| {
        let token = segment.token().unwrap().try_clone().unwrap();
        vec![segment.as_fd().try_clone_to_owned().unwrap(), token]
    });
    let refused = open_payload(payload, fds(&segment), 0, LEN as u64, false);
    assert!(matches!(refused, Err(LocalError::Lease)));
    assert!(open_payload(payload, fds(&segment), 0, LEN as u64, true).is_ok());
}
