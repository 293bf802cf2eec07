//! Answers that wait, with real sockets.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::*;
use crate::modes::local::receive_frame;
use crate::sys::segment::Segment;
use crate::wire::envelope::Response;
use crate::wire::frame::FRAME_MAX;

const BOUNDS: Bounds = Bounds {
    caller_answers: 100,
    caller_bytes: 1 << 20,
    answers: 150,
    bytes: 2 << 20,
    segments: 3,
};
const NEVER: Option<u64> = Some(u64::MAX);

/// A caller whose socket is full.
struct Late {
    theirs: OwnedFd,
    reply_to: Rc<OwnedFd>,
    /// Answers that it has in its socket.
    inside: usize,
}

impl Late {
    fn new() -> Self {
        let (theirs, ours) = seqpacket::pair().unwrap();
        let mut late = Self { theirs, reply_to: Rc::new(ours), inside: 0 };
        while !found_no_room(&respond_with(
            late.reply_to.as_fd(),
            CallId([0; 16]),
            Outcome::ANSWERED,
            Payload::Inline(vec![0; 20_000]).outgoing(),
            Some(0),
        )) {
            late.inside += 1;
        }
        late
    }

    fn reply(&self, id: u8) -> Reply<Rc<OwnedFd>> {
        Reply { reply_to: Rc::clone(&self.reply_to), id: CallId([id; 16]) }
    }

    /// Reads all that is there: id, errno and length of each answer, but for those that filled its socket.
    fn read(&mut self) -> Vec<(u8, i32, u64)> {
        let mut buffer = vec![0; FRAME_MAX];
        let mut answers = Vec::new();
        while let Ok(answer) =
            receive_frame::<Response>(&self.theirs, &mut buffer, u64::MAX, Some(0))
        {
            let Response { call_id, errno, .. } = answer.envelope;
            answers.push((call_id[0], errno, answer.payload.len()));
        }
        let inside = self.inside.min(answers.len());
        self.inside -= inside;
        answers.split_off(inside)
    }
}

/// The numbers of those that have room.
fn room(outbox: &Outbox<Rc<OwnedFd>>) -> Vec<usize> {
    let sockets = outbox.sockets().filter(|(_, fd)| seqpacket::has_room(*fd));
    sockets.map(|(number, _)| number).collect()
}

fn flush(outbox: &mut Outbox<Rc<OwnedFd>>) {
    outbox.flush(&room(outbox), 1);
}

#[test]
fn answers_wait_for_their_callers_alone() {
    let mut outbox = Outbox::new(BOUNDS);
    let (mut one, mut two) = (Late::new(), Late::new());
    for id in 1..=3 {
        outbox.hold(&one.reply(id), Outcome::ANSWERED, Payload::Inline(vec![7; 60_000]), NEVER);
    }
    let segment = Segment::copy_of(&[7; 100_000]).unwrap();
    outbox.hold(&two.reply(4), Outcome::ANSWERED, Payload::Segment(segment), NEVER);
    outbox.tell(&two.reply(5), &CallError::Failed { message: "no".to_owned() });
    assert!(room(&outbox).is_empty());
    flush(&mut outbox);
    assert!(two.read().is_empty());
    flush(&mut outbox);
    assert_eq!(two.read(), [(4, 0, 100_000), (5, cwasi_abi::Errno::Failed.code(), 2)]);
    assert_eq!((outbox.callers.len(), outbox.callers[0].bytes), (1, 180_000));
    one.read();
    flush(&mut outbox);
    assert_eq!(one.read(), [1, 2, 3].map(|id| (id, 0, 60_000)));
    assert!(outbox.is_empty() && outbox.take_complaint().is_none());
}

#[test]
fn a_deadline_drops_an_answer_and_an_end_all() {
    let mut outbox = Outbox::new(BOUNDS);
    let (mut one, two) = (Late::new(), Late::new());
    outbox.hold(&one.reply(1), Outcome::ANSWERED, Payload::Inline(vec![1]), Some(10));
    outbox.hold(&one.reply(2), Outcome::ANSWERED, Payload::Inline(vec![1]), Some(20));
    outbox.hold(&two.reply(3), Outcome::ANSWERED, Payload::Inline(vec![1]), Some(30));
    assert_eq!(outbox.next_deadline(), Some(10));
    outbox.flush(&[], 10);
    assert_eq!(outbox.next_deadline(), Some(20));
    one.read();
    flush(&mut outbox);
    assert_eq!(one.read(), [(2, 0, 1)]);
    drop(two);
    flush(&mut outbox);
    assert!(outbox.is_empty());
}

#[test]
fn what_is_too_much_for_one_caller_is_its_own_problem() {
    let mut outbox = Outbox::new(BOUNDS);
    let (mut greedy, mut modest) = (Late::new(), Late::new());
    outbox.hold(&modest.reply(1), Outcome::ANSWERED, Payload::Inline(vec![1; 1000]), NEVER);
    for id in 0..20 {
        outbox.hold(&greedy.reply(id), Outcome::ANSWERED, Payload::Inline(vec![1; 60_000]), NEVER);
    }
    assert!(outbox.take_complaint().is_some());
    greedy.read();
    modest.read();
    flush(&mut outbox);
    let mut read = Vec::new();
    while !outbox.is_empty() {
        read.extend(greedy.read());
        flush(&mut outbox);
    }
    read.extend(greedy.read());
    let too_large = cwasi_abi::Errno::PayloadTooLarge.code();
    let dropped: Vec<_> = read.iter().filter(|(_, errno, _)| *errno == too_large).collect();
    assert_eq!((read.len(), dropped.len()), (20, 20 - (1 << 20) / 60_000));
    assert_eq!(modest.read(), [(1, 0, 1000)]);
    // An answer that is longer than all that may wait is no problem alone.
    let mut large = Late::new();
    outbox.hold(
        &large.reply(1),
        Outcome::ANSWERED,
        Payload::Segment(Segment::copy_of(&[0; 3 << 20]).unwrap()),
        NEVER,
    );
    assert_eq!(outbox.callers[0].bytes, 3 << 20);
    large.read();
}

#[test]
fn the_one_that_reads_least_pays_for_what_is_too_much_in_all() {
    let mut outbox = Outbox::new(BOUNDS);
    let mut callers: Vec<_> = (0..4).map(|_| Late::new()).collect();
    // The third has most.
    for (caller, count) in callers.iter().zip([8, 8, 14, 8]) {
        for id in 0..count {
            outbox.hold(
                &caller.reply(id),
                Outcome::ANSWERED,
                Payload::Inline(vec![1; 60_000]),
                NEVER,
            );
        }
    }
    assert!(outbox.take_complaint().is_some());
    let bytes: Vec<_> = outbox.callers.iter().map(|backlog| backlog.bytes).collect();
    assert_eq!([bytes[0], bytes[1], bytes[3]], [480_000; 3]);
    assert_eq!(bytes[2], 0);
    assert_eq!(outbox.callers[2].unread.len(), 14, "each has an end");
    callers[2].read();
    flush(&mut outbox);
    assert_eq!(callers[2].read().len(), 14);
}

#[test]
fn descriptors_and_numbers_are_bounded_too() {
    let mut outbox = Outbox::new(BOUNDS);
    let (mut one, mut two) = (Late::new(), Late::new());
    for (caller, count) in [(&one, 1), (&two, 3)] {
        for id in 0..count {
            let segment = Segment::copy_of(&[7; 100]).unwrap();
            outbox.hold(&caller.reply(id), Outcome::ANSWERED, Payload::Segment(segment), NEVER);
        }
    }
    assert_eq!([0, 1].map(|index| outbox.callers[index].segments), [1, 0]);
    for id in 0..98 {
        outbox.hold(&two.reply(id), Outcome::ANSWERED, Payload::Inline(Vec::new()), NEVER);
    }
    assert!(outbox.take_complaint().is_some_and(|(_, text)| text.contains("101 answers")));
    flush(&mut outbox);
    assert_eq!(outbox.callers.len(), 1, "the other one's connection has ended");
    assert!(two.read().is_empty() && one.read().is_empty());
    let ended = seqpacket::receive(two.theirs.as_fd(), &mut [0; 9], Some(0));
    assert!(matches!(ended, Err(seqpacket::SocketError::Closed)));
    flush(&mut outbox);
    assert_eq!(one.read(), [(0, 0, 100)]);
}

#[test]
fn one_caller_is_served_and_forgotten_apart_from_the_others() {
    let mut outbox = Outbox::new(BOUNDS);
    let (mut one, mut two) = (Late::new(), Late::new());
    for (late, until) in [(&one, 10), (&one, 20), (&two, 30), (&two, 40)] {
        outbox.hold(&late.reply(1), Outcome::ANSWERED, Payload::Inline(vec![1]), Some(until));
    }
    assert_eq!(outbox.flush_one(&one.reply_to, 1), Some(10));
    assert_eq!(outbox.flush_one(&one.reply_to, 10), Some(20), "the first has expired");
    one.read();
    assert_eq!(outbox.flush_one(&one.reply_to, 10), None);
    assert_eq!(one.read(), [(1, 0, 1)]);
    assert_eq!(outbox.flush_one(&two.reply_to, 10), Some(30));
    outbox.forget(&two.reply_to);
    outbox.forget(&one.reply_to);
    assert!(outbox.is_empty());
    two.read();
    assert_eq!(outbox.flush_one(&two.reply_to, 10), None);
    assert!(two.read().is_empty());
}

#[test]
fn a_caller_whose_calls_have_ended_is_not_taken_for_one_with_too_many() {
    let mut outbox = Outbox::new(BOUNDS);
    let late = Late::new();
    for id in 0..=100 {
        let until = Some(if id < 50 { monotonic_ns() } else { u64::MAX });
        outbox.hold(&late.reply(id), Outcome::ANSWERED, Payload::Inline(Vec::new()), until);
    }
    assert!(outbox.take_complaint().is_none());
    assert_eq!(outbox.callers[0].unread.len(), 51);
}
