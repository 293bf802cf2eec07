//! Answers that wait, with real sockets.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::local::fixture::receive_frame;
use crate::local::send_as_is;
use cwasi_sys::segment::Segment;
use cwasi_wire::envelope::CallStatus;
use cwasi_wire::frame::FRAME_MAX;

const BOUNDS: SendLimits = SendLimits {
    caller: Load { messages: 100, bytes: 1 << 20, descriptors: 3 },
    total: Load { messages: 150, bytes: 2 << 20, descriptors: 3 },
    unread: u64::MAX,
};
const NEVER: Deadline = Deadline::NEVER;

const fn call(id: u8) -> CallId {
    CallId([id; 16])
}

fn answer(id: u8) -> Response {
    Response::of(call(id), CallStatus::ANSWERED)
}

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
        while !found_no_room(&send_as_is(
            late.reply_to.as_fd(),
            &answer(0),
            Payload::Inline(vec![0; 20_000]).outgoing(),
            &[],
            Some(Deadline::PASSED),
        )) {
            late.inside += 1;
        }
        late
    }

    /// The answers that wait for it.
    fn queue<'q>(&self, send_queue: &'q SendQueue<Rc<OwnedFd>>) -> &'q CallerQueue<Rc<OwnedFd>> {
        &send_queue.callers[&number(&self.reply_to)]
    }

    /// Reads all that is there: id, errno and length of each answer, but for those that filled its socket.
    fn read(&mut self) -> Vec<(u8, i32, u64)> {
        let mut buffer = vec![0; FRAME_MAX];
        let mut answers = Vec::new();
        while let Ok(answer) =
            receive_frame::<Response>(&self.theirs, &mut buffer, u64::MAX, Some(Deadline::PASSED))
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
fn room(send_queue: &SendQueue<Rc<OwnedFd>>) -> Vec<RawFd> {
    let sockets = send_queue.sockets().filter(|(_, fd)| seqpacket::has_room(*fd));
    sockets.map(|(number, _)| number).collect()
}

fn flush(send_queue: &mut SendQueue<Rc<OwnedFd>>) {
    totals_are_sums(send_queue);
    send_queue.flush(&room(send_queue), 1);
    totals_are_sums(send_queue);
}

/// What each caller's answers hold is counted as they come and go: it equals their sum.
fn totals_are_sums(send_queue: &SendQueue<Rc<OwnedFd>>) {
    for backlog in send_queue.callers.values() {
        assert_eq!(backlog.load, Load::sum(backlog.queued.iter().map(QueuedAnswer::load)));
    }
}

#[test]
fn full_callers_do_not_delay_others() {
    let mut send_queue = SendQueue::new(BOUNDS);
    let (mut one, mut two) = (Late::new(), Late::new());
    for id in 1..=3 {
        send_queue.enqueue(&one.reply_to, answer(id), Payload::Inline(vec![7; 60_000]), NEVER);
    }
    let segment = Segment::copy_of(&[7; 100_000]).unwrap();
    send_queue.enqueue(&two.reply_to, answer(4), Payload::Segment(segment), NEVER);
    send_queue.send_error(&two.reply_to, call(5), &CallError::Failed { message: "no".to_owned() });
    assert!(room(&send_queue).is_empty());
    flush(&mut send_queue);
    assert!(two.read().is_empty());
    flush(&mut send_queue);
    assert_eq!(two.read(), [(4, 0, 100_000), (5, cwasi_abi::Errno::Failed.code(), 2)]);
    assert_eq!((send_queue.callers.len(), one.queue(&send_queue).load.bytes), (1, 180_000));
    one.read();
    flush(&mut send_queue);
    assert_eq!(one.read(), [1, 2, 3].map(|id| (id, 0, 60_000)));
    assert!(send_queue.is_empty() && send_queue.complaint.take().is_none());
}

#[test]
fn unread_large_answers_are_bounded() {
    const LARGE: u64 = 100_000;
    let roomy = Load { descriptors: 100, ..BOUNDS.total };
    let mut send_queue =
        SendQueue::new(SendLimits { caller: roomy, total: roomy, unread: 5 * LARGE });
    let (theirs, ours) = seqpacket::pair().unwrap();
    let mut caller = Late { theirs, reply_to: Rc::new(ours), inside: 0 };
    let bytes = vec![7; 100_000];
    for id in 1..=10 {
        let segment = Segment::copy_of(&bytes).unwrap();
        send_queue.send(&caller.reply_to, answer(id), Payload::Segment(segment), NEVER);
    }
    // A small one is bounded by the connection's own memory.
    send_queue.send(&caller.reply_to, answer(11), Payload::Inline(vec![1]), NEVER);
    assert!(seqpacket::has_room(caller.reply_to.as_fd()));
    let first = caller.read();
    assert!((2..=6).contains(&first.len()), "{first:?}");
    // Nothing polls for room that is there: the rest is tried again after a pause.
    assert!(send_queue.sockets().next().is_some());
    flush(&mut send_queue);
    let (mut read, mut now) = (first, 0);
    while let Some(later) = send_queue.next_deadline() {
        read.extend(caller.read());
        now = later.as_ns().max(now);
        send_queue.flush(&[], now);
    }
    read.extend(caller.read());
    read.sort_unstable();
    let large = (1..=10).map(|id| (id, 0, LARGE));
    assert_eq!(read, large.chain([(11, 0, 1)]).collect::<Vec<_>>());
}

#[test]
fn deadlines_drop_one_answer_and_closing_all() {
    let mut send_queue = SendQueue::new(BOUNDS);
    let (mut one, two) = (Late::new(), Late::new());
    send_queue.enqueue(&one.reply_to, answer(1), Payload::Inline(vec![1]), Deadline::at_ns(10));
    send_queue.enqueue(&one.reply_to, answer(2), Payload::Inline(vec![1]), Deadline::at_ns(20));
    send_queue.enqueue(&two.reply_to, answer(3), Payload::Inline(vec![1]), Deadline::at_ns(30));
    assert_eq!(send_queue.next_deadline(), Some(Deadline::at_ns(10)));
    send_queue.flush(&[], 10);
    assert_eq!(send_queue.next_deadline(), Some(Deadline::at_ns(20)));
    one.read();
    flush(&mut send_queue);
    assert_eq!(one.read(), [(2, 0, 1)]);
    drop(two);
    flush(&mut send_queue);
    assert!(send_queue.is_empty());
}

#[test]
fn each_caller_has_its_own_bounds() {
    let mut send_queue = SendQueue::new(BOUNDS);
    let (mut greedy, mut modest) = (Late::new(), Late::new());
    send_queue.enqueue(&modest.reply_to, answer(1), Payload::Inline(vec![1; 1000]), NEVER);
    for id in 0..20 {
        send_queue.enqueue(&greedy.reply_to, answer(id), Payload::Inline(vec![1; 60_000]), NEVER);
    }
    assert!(send_queue.complaint.take().is_some());
    greedy.read();
    modest.read();
    flush(&mut send_queue);
    let mut read = Vec::new();
    while !send_queue.is_empty() {
        read.extend(greedy.read());
        flush(&mut send_queue);
    }
    read.extend(greedy.read());
    let too_large = cwasi_abi::Errno::PayloadTooLarge.code();
    let dropped: Vec<_> = read.iter().filter(|(_, errno, _)| *errno == too_large).collect();
    assert_eq!((read.len(), dropped.len()), (20, 20 - (1 << 20) / 60_000));
    assert_eq!(modest.read(), [(1, 0, 1000)]);
    // An answer that is longer than all that may wait is no problem alone.
    let mut large = Late::new();
    send_queue.enqueue(
        &large.reply_to,
        answer(1),
        Payload::Segment(Segment::copy_of(&[0; 3 << 20]).unwrap()),
        NEVER,
    );
    assert_eq!(large.queue(&send_queue).load.bytes, 3 << 20);
    large.read();
}

#[test]
fn totals_drop_answers_of_the_slowest_reader() {
    let mut send_queue = SendQueue::new(BOUNDS);
    let mut callers: Vec<_> = (0..4).map(|_| Late::new()).collect();
    // The third has most.
    for (caller, count) in callers.iter().zip([8, 8, 14, 8]) {
        for id in 0..count {
            send_queue.enqueue(
                &caller.reply_to,
                answer(id),
                Payload::Inline(vec![1; 60_000]),
                NEVER,
            );
        }
    }
    assert!(send_queue.complaint.take().is_some());
    let bytes: Vec<_> = callers.iter().map(|late| late.queue(&send_queue).load.bytes).collect();
    assert_eq!([bytes[0], bytes[1], bytes[3]], [480_000; 3]);
    assert_eq!(bytes[2], 0);
    assert_eq!(callers[2].queue(&send_queue).queued.len(), 14, "each has an end");
    callers[2].read();
    flush(&mut send_queue);
    assert_eq!(callers[2].read().len(), 14);
}

#[test]
fn descriptors_and_answers_are_bounded() {
    let mut send_queue = SendQueue::new(BOUNDS);
    let (mut one, mut two) = (Late::new(), Late::new());
    for (caller, count) in [(&one, 1), (&two, 3)] {
        for id in 0..count {
            let segment = Segment::copy_of(&[7; 100]).unwrap();
            send_queue.enqueue(&caller.reply_to, answer(id), Payload::Segment(segment), NEVER);
        }
    }
    assert_eq!([&one, &two].map(|late| late.queue(&send_queue).load.descriptors), [1, 0]);
    for id in 0..98 {
        send_queue.enqueue(&two.reply_to, answer(id), Payload::Inline(Vec::new()), NEVER);
    }
    assert!(send_queue.complaint.take().is_some_and(|(_, text)| text.contains("101 answers")));
    flush(&mut send_queue);
    assert_eq!(send_queue.callers.len(), 1, "the other one's connection has ended");
    assert!(two.read().is_empty() && one.read().is_empty());
    let ended = seqpacket::receive(two.theirs.as_fd(), &mut [0; 9], Some(Deadline::PASSED));
    assert!(matches!(ended, Err(seqpacket::SocketError::Closed)));
    flush(&mut send_queue);
    assert_eq!(one.read(), [(0, 0, 100)]);
}

#[test]
fn callers_are_flushed_and_removed_alone() {
    let mut send_queue = SendQueue::new(BOUNDS);
    let (mut one, mut two) = (Late::new(), Late::new());
    for (late, until) in [(&one, 10), (&one, 20), (&two, 30), (&two, 40)] {
        send_queue.enqueue(
            &late.reply_to,
            answer(1),
            Payload::Inline(vec![1]),
            Deadline::at_ns(until),
        );
    }
    assert_eq!(send_queue.flush_one(&one.reply_to, 1), Some(Deadline::at_ns(10)));
    assert_eq!(
        send_queue.flush_one(&one.reply_to, 10),
        Some(Deadline::at_ns(20)),
        "the first has expired"
    );
    one.read();
    assert_eq!(send_queue.flush_one(&one.reply_to, 10), None);
    assert_eq!(one.read(), [(1, 0, 1)]);
    assert_eq!(send_queue.flush_one(&two.reply_to, 10), Some(Deadline::at_ns(30)));
    send_queue.forget(&two.reply_to);
    send_queue.forget(&one.reply_to);
    assert!(send_queue.is_empty());
    two.read();
    assert_eq!(send_queue.flush_one(&two.reply_to, 10), None);
    assert!(two.read().is_empty());
}

proptest! {
    #[test]
    fn answers_expire_at_their_deadlines(steps in vec((0..3_u8, 0..30_u64), 0..50)) {
        let (mut backlog, mut kept) = (CallerQueue::new(Rc::new(seqpacket::pair().unwrap().0)), Vec::new());
        for (step, number) in steps {
            let until = Deadline::at_ns(number);
            if step > 0 {
                backlog.push(QueuedAnswer { response: answer(1), payload: Payload::Inline(Vec::new()), until });
                kept.push(until);
            } else {
                backlog.expire(number);
                kept.retain(|until| !until.has_passed(number));
            }
            prop_assert_eq!(backlog.queued.iter().map(|queued| queued.until).collect::<Vec<_>>(), kept.clone());
            prop_assert_eq!(backlog.next_deadline(), kept.iter().copied().min().unwrap_or(Deadline::NEVER));
        }
    }
}

#[test]
fn expired_answers_do_not_count() {
    let mut send_queue = SendQueue::new(BOUNDS);
    let late = Late::new();
    for id in 0..=100 {
        let until = Deadline::at_ns(if id < 50 { monotonic_ns() } else { u64::MAX });
        send_queue.enqueue(&late.reply_to, answer(id), Payload::Inline(Vec::new()), until);
    }
    assert!(send_queue.complaint.take().is_none());
    assert_eq!(late.queue(&send_queue).queued.len(), 51);
    totals_are_sums(&send_queue);
}
