//! Tests of the pool with workers that are only sockets.

use std::cell::RefCell;
use std::fs::File;
use std::process::Command;

use super::*;
use crate::messages::WorkerMessage;
use crate::work::fixture;
use crate::worker_table::ReaderRole;
use cwasi_modes::local::{CallKey, CallerConnection, ConnectionId, IncomingRequest, send_as_is};
use cwasi_modes::{OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;
use cwasi_wire::control;
use cwasi_wire::envelope::{Assignment, Request, Undelivered};
use cwasi_wire::frame::{self, FRAME_MAX};
use cwasi_wire::ids::CallId;

/// Workers that are only sockets; their far ends are kept here.
#[derive(Default)]
struct Sockets(RefCell<Vec<OwnedFd>>);

impl Sockets {
    fn pool<'t>(&'t self, table: &'t WorkerTable) -> WorkerPool<'t> {
        self.pool_of(table, table.slots().count())
    }

    fn pool_of<'t>(&'t self, table: &'t WorkerTable, least: usize) -> WorkerPool<'t> {
        let fork = move |_setup: WorkerSetup<'_>| {
            let (ours, theirs) = seqpacket::pair().unwrap();
            self.0.borrow_mut().push(theirs);
            let number = i32::try_from(self.0.borrow().len()).unwrap();
            // Above every real pid, so that a kill hits no process.
            Ok((Pid::from_raw((1 << 30) + number), ours))
        };
        WorkerPool::new(Box::new(fork), table, least).unwrap()
    }

    fn say(&self, number: usize, message: &WorkerMessage) {
        let sockets = self.0.borrow();
        seqpacket::send(
            sockets[number].as_fd(),
            &[&control::encode(message)],
            &[],
            Some(Deadline::PASSED),
        )
        .unwrap();
    }
}

/// A worker has its first instance.
fn ready(pool: &WorkerPool<'_>, sockets: &Sockets, number: usize) {
    let _gate = pool.table.slot(number).unwrap().become_idle();
    sockets.say(number, &WorkerMessage::Progress);
}

/// The first worker.
fn worker<'t>(pool: &WorkerPool<'t>) -> WorkerSlot<'t> {
    pool.table.slot(0).unwrap()
}

/// The callers of a lost worker's request.
fn begun(lost: LostWorker) -> Vec<CallKey> {
    match lost.activity {
        WorkerActivity::Begun(calls) => calls,
        other => panic!("{other:?}"),
    }
}

fn pid(number: i32) -> Pid {
    Pid::from_raw((1 << 30) + number)
}

#[test]
fn a_worker_that_dies_at_once_is_replaced_later_and_later() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    let mut now = 1;
    let mut waits = Vec::new();
    for _ in 1..=12 {
        pool.fork_due(now, Vec::new).unwrap();
        let lost = pool.remove(0, now).unwrap();
        assert!(!lost.state.has_started() && matches!(lost.activity, WorkerActivity::Nothing));
        waits.push(pool.next_wakeup().unwrap().as_ns() - now);
        now = pool.next_wakeup().unwrap().as_ns();
    }
    assert_eq!(waits[0], BACKOFF_MIN_NS);
    assert_eq!(waits[1], 2 * BACKOFF_MIN_NS);
    assert_eq!(waits[11], BACKOFF_MAX_NS);
}

#[test]
fn what_is_not_forked_says_which_limit_to_raise() {
    let text = |errno: i32| {
        let source = io::Error::from_raw_os_error(errno);
        NotForked { is_added: true, source }.to_string()
    };
    let full = text(libc::EAGAIN);
    let hint =
        "a worker cannot be forked: the container's pids limit, or its user's RLIMIT_NPROC, allows";
    assert!(full.starts_with(hint), "{full}");
    assert!(full.ends_with(&io::Error::from_raw_os_error(libc::EAGAIN).to_string()), "{full}");
    assert!(text(libc::ENOMEM).starts_with("a worker cannot be forked: Cannot"));
}

#[test]
fn workers_are_idle_once_they_said_so() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(2).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    assert!(pool.idle().is_none() && !pool.complete());
    ready(&pool, &sockets, 1);
    assert_eq!(pool.read(1).failed, None);
    assert_eq!(pool.idle(), Some(1));
    assert!(!pool.complete());
    sockets.say(0, &WorkerMessage::StartFailed { message: "no".into() });
    assert_eq!(pool.read(0).failed.as_deref(), Some("no"));
}

fn at(ns: u64) -> Deadline {
    Deadline::at_ns(ns)
}

/// A group of `count` parts that came over two connections, more than a socket holds.
fn group(count: u32, deadline: Deadline) -> Work {
    let (one, two) = seqpacket::pair().unwrap();
    let connections = [Rc::new(one), Rc::new(two)];
    let calls = (0..count).map(|number| {
        let index = usize::try_from(number % 2).unwrap();
        let incoming = IncomingRequest {
            connection: CallerConnection {
                id: ConnectionId(u64::from(number % 2)),
                fd: Rc::clone(&connections[index]),
                caller: "a".into(),
                lends: false,
            },
            id: CallId([u8::try_from(number).unwrap(); 16]),
            request: Request {
                call_id: vec![u8::try_from(number).unwrap(); 16],
                ..Request::default()
            },
            payload: Payload::Inline(vec![u8::try_from(number).unwrap(); 60_000]),
        };
        (number, Box::new(incoming))
    });
    Work::group(count, deadline, calls).unwrap()
}

#[test]
fn a_group_goes_to_its_worker_as_fast_as_that_takes_it() {
    const PARTS: u32 = 40;
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.assign(0, group(PARTS, at(u64::MAX))).unwrap();
    assert!(pool.idle().is_none() && pool.partial_groups().next().is_some(), "more is to be sent");
    let mut buffer = vec![0; FRAME_MAX];
    let (mut came, mut descriptors) = (Vec::new(), Vec::new());
    for number in 0..PARTS {
        let far = sockets.0.borrow()[0].try_clone().unwrap();
        let received =
            seqpacket::receive(far.as_fd(), &mut buffer, Some(Deadline::PASSED)).unwrap();
        descriptors.push(received.descriptors.len());
        let frame = frame::decode(&buffer[..received.len]).unwrap();
        let Assignment { group, connection, request, .. } = frame.open().unwrap();
        let id = u8::try_from(number).unwrap();
        assert_eq!(request.id(), Some(CallId([id; 16])));
        assert_eq!((group.expected, group.following), (PARTS, PARTS - 1 - number));
        came.push((group.number, connection.connection));
        pool.send_group(0).unwrap();
    }
    let sent = (0..PARTS).map(|number| (number, u64::from(number % 2)));
    assert_eq!(came, sent.collect::<Vec<_>>());
    assert_eq!(descriptors.iter().sum::<usize>(), 2, "each connection once");
    assert!(pool.partial_groups().next().is_none());
    assert!(worker(&pool).begin_assigned());
    pool.expire(0, None);
    let lost = pool.remove(0, 0).unwrap();
    let left: Vec<_> = begun(lost).iter().map(|call| call.connection.0).collect();
    assert_eq!(left, (0..u64::from(PARTS)).map(|part| part % 2).collect::<Vec<_>>());
}

#[test]
fn work_that_a_worker_had_not_begun_is_given_back_whole() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.assign(0, group(40, at(u64::MAX))).unwrap();
    sockets.0.borrow_mut().clear();
    pool.send_group(0).unwrap();
    let lost = pool.remove(0, 0).unwrap();
    let WorkerActivity::Assigned { work, .. } = lost.activity else { panic!("{lost:?}") };
    assert_eq!((work.deadline, work.calls().count()), (at(u64::MAX), 40));
    assert!(work.calls().all(|call| call.payload.len() == 60_000));
}

#[test]
fn at_the_end_begun_work_is_told_from_other_work() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(2).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    for number in 0..2 {
        ready(&pool, &sockets, number);
        assert_eq!(pool.read(number).failed, None);
        pool.assign(number, one_call(at(60))).unwrap();
    }
    assert!(worker(&pool).begin_assigned());
    let left = pool.kill_all();
    assert!(
        matches!(left[..], [WorkerActivity::Begun(_), WorkerActivity::Assigned { .. }]),
        "{left:?}"
    );
    assert!(!pool.table.slot(1).unwrap().begin_assigned(), "it cannot begin any more");
}

#[test]
fn when_the_leader_dies_a_follower_is_woken() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(3).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    let calls = Watch::new().unwrap();
    calls.add(pool.wakeup.as_fd(), 0).unwrap();
    let role = |pool: &WorkerPool<'_>, number| pool.table.slot(number).unwrap().take_role();
    assert_eq!(role(&pool, 0), ReaderRole::Leader);
    assert_eq!([1, 2].map(|number| role(&pool, number)), [ReaderRole::Follower; 2]);
    pool.remove(1, 0).unwrap();
    assert_eq!(calls.wait_one(Some(Deadline::PASSED)), None, "there still is a leader");
    pool.remove(0, 0).unwrap();
    assert_eq!(calls.wait_one(Some(Deadline::PASSED)), Some(0));
    assert_eq!(role(&pool, 2), ReaderRole::Leader);
}

#[test]
fn other_processes_are_no_workers() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    assert_eq!([1, 77].map(|number| pool.index_of(pid(number))), [Some(0), None]);
}

#[test]
fn last_messages_can_be_read_until_removal() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(2).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    sockets.say(1, &WorkerMessage::StartFailed { message: "no".into() });
    sockets.0.borrow_mut().truncate(1);
    let index = pool.index_of(pid(2)).unwrap();
    let said = pool.read(index);
    assert_eq!((index, said.failed.as_deref(), said.closed), (1, Some("no"), true));
    let lost = pool.remove(index, 0).unwrap();
    assert!(!lost.state.has_started() && pool.index_of(pid(2)).is_none());
}

#[test]
fn a_worker_that_cannot_be_watched_ends_before_the_next_one_gets_its_slot() {
    let table = WorkerTable::new(1).unwrap();
    let child = Rc::new(RefCell::new(None));
    let forked = Rc::clone(&child);
    let fork = move |_setup: WorkerSetup<'_>| {
        let sleeping = Command::new("sleep").arg("600").spawn()?;
        let pid = Pid::from_raw(i32::try_from(sleeping.id()).unwrap());
        *forked.borrow_mut() = Some(sleeping);
        // epoll takes no file.
        Ok((pid, File::open("/dev/null")?.into()))
    };
    let mut pool = WorkerPool::new(Box::new(fork), &table, 1).unwrap();
    assert_eq!(pool.fork_due(0, Vec::new).unwrap_err().source.raw_os_error(), Some(libc::EPERM));
    let mut child = child.take().unwrap();
    let left = child.try_wait();
    let _gone = child.kill();
    assert_eq!(left.unwrap_err().raw_os_error(), Some(libc::ECHILD), "it was reaped");
    assert_eq!(pool.next_wakeup().unwrap().as_ns(), BACKOFF_MIN_NS);
}

fn one_call(deadline: Deadline) -> Work {
    let payload = Payload::Inline(vec![0; 60_000]);
    Work::one(fixture::request(fixture::connection(0), 0, payload), deadline)
}

#[test]
fn a_done_of_an_earlier_turn_ends_no_later_one() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.set_direct_reads(true);
    let _anybody = worker(&pool).become_idle();
    assert!(
        worker(&pool).begin_reading(ConnectionId(3))
            && !worker(&pool).begin_running(CallId([7; 16]), at(50))
    );
    assert!(pool.idle().is_none() && !pool.at_rest());
    pool.expire(0, None);
    assert_eq!(pool.next_wakeup(), Some(at(50)));
    assert!(worker(&pool).end_turn());
    sockets.say(0, &WorkerMessage::Progress);
    pool.assign(0, one_call(at(60))).unwrap();
    assert_eq!(pool.read(0).failed, None);
    assert!(pool.idle().is_none() && pool.next_wakeup() == Some(at(60)), "it has the second one");
    assert!(worker(&pool).begin_assigned());
    assert!(pool.table.slot(0).unwrap().end_turn());
    sockets.say(0, &WorkerMessage::Progress);
    assert_eq!(pool.read(0).failed, None);
    assert!(pool.idle() == Some(0) && pool.at_rest());
    let lost = pool.remove(0, 0).unwrap();
    assert!(matches!(lost.activity, WorkerActivity::Nothing) && lost.state.has_started());
}

#[test]
fn only_the_turn_whose_deadline_passed_is_killed_for_it() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert_eq!(pool.read(0).failed, None);
    pool.assign(0, one_call(at(10))).unwrap();
    assert!(worker(&pool).begin_assigned());
    assert!(pool.table.slot(0).unwrap().end_turn(), "it was in time");
    pool.expire(11, None);
    pool.set_direct_reads(true);
    let worker = pool.table.slot(0).unwrap();
    let _anybody = worker.become_idle();
    assert!(
        worker.begin_reading(ConnectionId(3)) && !worker.begin_running(CallId([7; 16]), at(20))
    );
    pool.expire(19, None);
    assert_eq!(pool.read(0).failed, None);
    pool.expire(20, None);
    assert!(!pool.table.slot(0).unwrap().end_turn(), "it is late");
    let lost = pool.remove(0, 0).unwrap();
    assert_eq!(lost.state.phase(), Phase::Expired);
    assert_eq!(begun(lost), [CallKey { connection: ConnectionId(3), id: CallId([7; 16]) }]);
}

#[test]
fn a_worker_cannot_put_off_the_end_of_what_it_took() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    pool.set_direct_reads(true);
    let call = CallId([7; 16]);
    for (said, limit, until) in [(20, None, 20), (20, Some(15), 15)] {
        let _anybody = worker(&pool).become_idle();
        assert!(
            worker(&pool).begin_reading(ConnectionId(3))
                && !worker(&pool).begin_running(call, at(said))
        );
        pool.expire(1, limit.map(at));
        let _asleep = worker(&pool).begin_running(call, at(1000));
        pool.expire(until - 1, Some(at(2000)));
        assert_eq!(pool.next_wakeup(), Some(at(until)));
        assert_eq!(worker(&pool).state().phase(), Phase::Running);
        pool.expire(until, Some(at(2000)));
        assert_eq!(worker(&pool).state().phase(), Phase::Expired);
        worker(&pool).reset();
        pool.expire(0, None);
    }
}

#[test]
fn one_that_dies_while_it_reads_says_from_where() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(1).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    pool.set_direct_reads(true);
    let worker = pool.table.slot(0).unwrap();
    let _anybody = worker.become_idle();
    assert!(worker.begin_reading(ConnectionId(9)));
    let lost = pool.remove(0, 0).unwrap();
    assert!(matches!(lost.activity, WorkerActivity::Reading(ConnectionId(9))));
    pool.fork_due(0, Vec::new).unwrap();
    assert_eq!(pool.table.slot(0).unwrap().state().phase(), Phase::Starting);
}

#[test]
fn free_workers_are_suspended_and_resumed_by_need() {
    let sockets = Sockets::default();
    let table = WorkerTable::new(3).unwrap();
    let mut pool = sockets.pool(&table);
    pool.fork_due(0, Vec::new).unwrap();
    pool.set_direct_reads(true);
    (0..3).for_each(|number| {
        ready(&pool, &sockets, number);
        let _said = pool.read(number);
    });
    let busy = pool.table.slot(1).unwrap();
    assert!(busy.begin_reading(ConnectionId(1)));
    // An answer that init has not read yet.
    let envelope = Undelivered::default();
    let answer = OutgoingPayload::Bytes(b"late");
    send_as_is(sockets.0.borrow()[0].as_fd(), &envelope, answer, &[], None).unwrap();
    let undelivered = pool.suspend();
    assert_eq!(undelivered.len(), 1);
    assert_eq!((pool.absent(), pool.is_suspended(), pool.idle()), (2, false, None));
    assert!(!pool.table.slot(0).unwrap().begin_reading(ConnectionId(1)), "it has no turn");
    pool.table.slot(1).unwrap().abandon_reading();
    assert!(pool.suspend().is_empty() && pool.is_suspended());
    assert_eq!(pool.next_wakeup(), None, "nothing is due");
    // Two requests wait, then one more.
    for (waiting, workers) in [(0, 3), (2, 5), (2, 5), (3, 6), (9, 6)] {
        pool.resume(waiting);
        pool.fork_due(0, Vec::new).unwrap();
        assert_eq!(sockets.0.borrow().len(), workers, "{waiting} wait");
    }
}

#[test]
fn workers_are_added_and_ended_by_need() {
    let table = WorkerTable::new(4).unwrap();
    let sockets = Sockets::default();
    let mut pool = sockets.pool_of(&table, 1);
    pool.fork_due(0, Vec::new).unwrap();
    ready(&pool, &sockets, 0);
    assert!(pool.complete());
    assert_eq!(
        (pool.present(), pool.states().count()),
        (1, 1),
        "other slots' pages are not touched"
    );
    pool.add(2);
    assert_eq!((pool.present(), pool.starting()), (3, 2));
    pool.fork_due(0, Vec::new).unwrap();
    (1..3).for_each(|number| ready(&pool, &sockets, number));
    pool.add(9);
    assert_eq!(pool.present(), 4, "the table has no more slots");
    // The first one stays, and one that is busy or has not started.
    let _busy = table.slot(2).unwrap().assign().unwrap();
    assert!(pool.end_added(9).is_empty());
    assert_eq!((pool.present(), pool.starting()), (3, 1));
    pool.add(1);
    assert_eq!((pool.present(), pool.states().count()), (4, 4), "in the place that is vacant");
}
