//! Workers that are only sockets: what init knows of them, and what becomes of their requests.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::modes::Payload;
use crate::modes::local::Incoming;
use crate::modes::local::receiver::ConnectionId;
use crate::sandbox::board::Role;
use crate::sandbox::init::work::Parts;
use crate::wire::envelope::Part;
use crate::wire::frame::{self, FRAME_MAX};
use crate::wire::ids::{CallId, Identity};

/// Workers that are only sockets; their far ends are kept here.
#[derive(Default)]
struct Sockets(RefCell<Vec<OwnedFd>>);

impl Fork for &Sockets {
    fn fork(&self, _seat: Seat<'_>) -> io::Result<(Pid, OwnedFd)> {
        let (ours, theirs) = seqpacket::pair().unwrap();
        self.0.borrow_mut().push(theirs);
        let number = i32::try_from(self.0.borrow().len()).unwrap();
        // Above every real pid, so that a kill hits nobody.
        Ok((Pid::from_raw((1 << 30) + number), ours))
    }
}

impl Sockets {
    fn say(&self, number: usize, message: &WorkerMessage) {
        let sockets = self.0.borrow();
        seqpacket::send(sockets[number].as_fd(), &[&control::encode(message)], &[], Some(0))
            .unwrap();
    }
}

/// A worker has its first instance.
fn ready(pool: &Pool<&Sockets>, sockets: &Sockets, number: usize) {
    let _gate = pool.board().slot(number).unwrap().settle();
    sockets.say(number, &WorkerMessage::Ready);
}

/// The first worker.
fn worker<'a>(pool: &'a Pool<&Sockets>) -> Slot<'a> {
    pool.board().slot(0).unwrap()
}

/// What a lost worker had been given.
fn given(lost: &Lost) -> &Running {
    match &lost.doing {
        Doing::Given(running) => running,
        other => panic!("{other:?}"),
    }
}

fn pid(number: i32) -> Pid {
    Pid::from_raw((1 << 30) + number)
}

#[test]
fn a_worker_that_dies_at_once_is_replaced_later_and_later() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    let mut now = 1;
    let mut waits = Vec::new();
    for number in 1..=12 {
        pool.fork_due(now, Vec::new).unwrap();
        let lost = pool.remove(pid(number), Ending::Exited(1), now).unwrap();
        assert!(lost.starting && matches!(lost.doing, Doing::Nothing));
        waits.push(pool.next_wakeup().unwrap() - now);
        now = pool.next_wakeup().unwrap();
    }
    assert_eq!(waits[0], BACKOFF_MIN_NS);
    assert_eq!(waits[1], 2 * BACKOFF_MIN_NS);
    assert_eq!(waits[11], BACKOFF_MAX_NS);
}

#[test]
fn workers_are_idle_once_they_said_so() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 2).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    assert!(pool.idle().is_none() && !pool.complete());
    ready(&pool, &sockets, 1);
    assert_eq!(pool.read(1).failed, None);
    assert_eq!(pool.idle(), Some(1));
    assert!(!pool.complete());
    sockets.say(0, &WorkerMessage::StartFailed { message: "no".into() });
    assert_eq!(pool.read(0).failed.as_deref(), Some("no"));
}

/// A group of `count` parts that came over two connections, more than a socket holds.
fn group(count: u32) -> Work {
    let (one, two) = seqpacket::pair().unwrap();
    let connections = [Rc::new(one), Rc::new(two)];
    let calls = (0..count).map(|number| {
        let index = usize::try_from(number % 2).unwrap();
        let incoming = Incoming {
            connection: ConnectionId(u64::from(number % 2)),
            reply_to: Rc::clone(&connections[index]),
            caller: Identity {
                namespace: String::new(),
                pod_namespace: String::new(),
                function: "a".into(),
            },
            id: CallId([u8::try_from(number).unwrap(); 16]),
            request: Request { call_id: vec![0; 16], ..Request::default() },
            payload: Payload::Inline(vec![u8::try_from(number).unwrap(); 60_000]),
            lends: false,
        };
        (number, Box::new(incoming))
    });
    Work::Group(Parts::of(count, calls.collect()).unwrap())
}

#[test]
fn a_group_goes_to_its_worker_as_fast_as_that_takes_it() {
    const PARTS: u32 = 40;
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.assign(0, group(PARTS), u64::MAX).unwrap();
    assert!(pool.idle().is_none() && pool.unfed().next().is_some(), "more is to be sent");
    let mut buffer = vec![0; FRAME_MAX];
    let (mut came, mut brought) = (Vec::new(), Vec::new());
    for number in 0..PARTS {
        let far = sockets.0.borrow()[0].try_clone().unwrap();
        let received = seqpacket::receive(far.as_fd(), &mut buffer, Some(0)).unwrap();
        brought.push(received.descriptors.len());
        let frame = frame::decode(&buffer[..received.len]).unwrap();
        if number == 0 {
            let group = frame.open::<Assignment>().unwrap().group.unwrap();
            assert_eq!((group.expected, group.parts, group.number), (PARTS, PARTS, 0));
            came.push((0, 0));
        } else {
            let part = frame.open::<Part>().unwrap();
            came.push((part.number, part.connection));
        }
        pool.feed(0).unwrap();
    }
    assert_eq!(came, (0..PARTS).map(|number| (number, number % 2)).collect::<Vec<_>>());
    assert_eq!(brought.iter().sum::<usize>(), 2, "each connection once");
    assert!(pool.unfed().next().is_none());
    let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
    assert!(!lost.unbegun && given(&lost).replies().count() == PARTS as usize);
}

#[test]
fn a_worker_that_dies_before_it_has_all_parts_had_not_begun() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.assign(0, group(40), u64::MAX).unwrap();
    sockets.0.borrow_mut().clear();
    pool.feed(0).unwrap();
    let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
    assert!(lost.unbegun && given(&lost).replies().count() == 40);
}

#[test]
fn when_the_leader_dies_a_follower_is_woken() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 3).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    let calls = Watch::new().unwrap();
    calls.add(pool.wakeup.as_fd(), 0).unwrap();
    let role = |pool: &Pool<_>, number| pool.board().slot(number).unwrap().take_role();
    assert_eq!(role(&pool, 0), Role::Leader);
    assert_eq!([1, 2].map(|number| role(&pool, number)), [Role::Follower; 2]);
    pool.remove(pid(2), Ending::Exited(1), 0).unwrap();
    assert_eq!(calls.wait_one(Some(0)), None, "there still is a leader");
    pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
    assert_eq!(calls.wait_one(Some(0)), Some(0));
    assert_eq!(role(&pool, 2), Role::Leader);
}

#[test]
fn strangers_are_nobodys_workers() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    assert!(pool.remove(pid(77), Ending::Exited(0), 0).is_none());
}

fn one_call() -> Work {
    let Work::Group(parts) = group(1) else { panic!("no group") };
    Work::One(parts.first)
}

#[test]
fn a_done_of_an_earlier_turn_ends_no_later_one() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.set_gate(true);
    let _anybody = worker(&pool).settle();
    assert!(worker(&pool).take(ConnectionId(3)) && !worker(&pool).run(CallId([7; 16]), 50));
    assert!(pool.idle().is_none() && !pool.at_rest());
    pool.expire(0, None);
    assert_eq!(pool.next_wakeup(), Some(50));
    assert!(worker(&pool).rest());
    sockets.say(0, &WorkerMessage::Done);
    pool.assign(0, one_call(), 60).unwrap();
    assert_eq!(pool.read(0).failed, None);
    assert!(pool.idle().is_none() && pool.next_wakeup() == Some(60), "it has the second one");
    assert!(pool.board().slot(0).unwrap().rest());
    sockets.say(0, &WorkerMessage::Done);
    assert_eq!(pool.read(0).failed, None);
    assert!(pool.idle() == Some(0) && pool.at_rest());
    let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
    assert!(matches!(lost.doing, Doing::Nothing) && !lost.starting);
}

#[test]
fn only_the_turn_whose_deadline_passed_is_killed_for_it() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.assign(0, one_call(), 10).unwrap();
    assert!(pool.board().slot(0).unwrap().rest(), "it was in time");
    pool.expire(11, None);
    pool.set_gate(true);
    let worker = pool.board().slot(0).unwrap();
    let _anybody = worker.settle();
    assert!(worker.take(ConnectionId(3)) && !worker.run(CallId([7; 16]), 20));
    pool.expire(19, None);
    assert_eq!(pool.read(0).failed, None);
    pool.expire(20, None);
    assert!(!pool.board().slot(0).unwrap().rest(), "it is late");
    let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
    let Doing::Took { took, expired: true } = lost.doing else { panic!("{lost:?}") };
    assert_eq!((took.id, took.connection), (CallId([7; 16]), ConnectionId(3)));
}

#[test]
fn a_worker_cannot_put_off_the_end_of_what_it_took() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    pool.set_gate(true);
    let call = CallId([7; 16]);
    for (said, limit, until) in [(20, None, 20), (20, Some(15), 15)] {
        let _anybody = worker(&pool).settle();
        assert!(worker(&pool).take(ConnectionId(3)) && !worker(&pool).run(call, said));
        pool.expire(1, limit);
        let _asleep = worker(&pool).run(call, 1000);
        pool.expire(until - 1, Some(2000));
        assert_eq!(pool.next_wakeup(), Some(until));
        assert_eq!(worker(&pool).seen().phase(), Phase::Running);
        pool.expire(until, Some(2000));
        assert_eq!(worker(&pool).seen().phase(), Phase::Expired);
        worker(&pool).reset();
        pool.expire(0, None);
    }
}

#[test]
fn one_that_dies_while_it_reads_says_from_where() {
    let sockets = Sockets::default();
    let mut pool = Pool::new(&sockets, 1).unwrap();
    pool.fork_due(0, Vec::new).unwrap();
    pool.set_gate(true);
    let worker = pool.board().slot(0).unwrap();
    let _anybody = worker.settle();
    assert!(worker.take(ConnectionId(9)));
    let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
    assert!(matches!(lost.doing, Doing::Taking(ConnectionId(9))));
    pool.fork_due(0, Vec::new).unwrap();
    assert_eq!(pool.board().slot(0).unwrap().seen().phase(), Phase::Starting);
}
