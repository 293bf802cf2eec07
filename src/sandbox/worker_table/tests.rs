//! The protocol in every order of its steps, and with real threads.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};

use proptest::prelude::*;

use super::slot::{halves, whole};
use super::*;
use cwasi_modes::local::{CallKey, ConnectionId};
use cwasi_sys::clock::Deadline;
use cwasi_wire::ids::CallId;

/// What may happen to a slot, by the worker and by init.
#[derive(Clone, Copy, Debug)]
enum Step {
    Settle,
    Take,
    PutBack,
    Run,
    Begin,
    Rest,
    Assign,
    TakeAway,
    Expire,
    Gate(bool),
    Sleep(bool),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    prop_oneof![
        Just(Settle),
        Just(Take),
        Just(PutBack),
        Just(Run),
        Just(Begin),
        Just(Rest),
        Just(Assign),
        Just(TakeAway),
        Just(Expire),
        any::<bool>().prop_map(Gate),
        any::<bool>().prop_map(Sleep),
    ]
}

/// What a worker that keeps to the protocol may do, by what it knows itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    HasInstance,
    Waits { reads: bool },
    Reads,
    Runs,
    Ends,
}

proptest! {
    #[test]
    fn both_sides_agree_whatever_happens(steps in proptest::collection::vec(step(), 0..200)) {
        let table = WorkerTable::new(1).unwrap();
        let slot = table.slot(0).unwrap();
        let (mut open, mut asleep) = (false, false);
        let mut worker = Knows::HasInstance;
        let mut given: Option<SlotState> = None;
        for step in steps {
            let before = slot.state();
            match step {
                Step::Gate(value) => {
                    prop_assert_eq!(table.control().set_direct_reads(value), value != open);
                    open = value;
                }
                Step::Sleep(value) => {
                    table.control().set_asleep(value);
                    asleep = value;
                }
                Step::Settle if matches!(worker, Knows::HasInstance | Knows::Waits { .. }) => {
                    let reads = slot.become_idle();
                    worker = Knows::Waits { reads };
                    let awaits_init = matches!(before.phase(), Phase::Assigned | Phase::Expired);
                    prop_assert_eq!(reads, open && !awaits_init);
                    prop_assert_eq!(slot.state().phase() == Phase::Idle, !awaits_init);
                }
                Step::Take if worker == (Knows::Waits { reads: true }) => {
                    let taken = slot.begin_reading(ConnectionId(4));
                    prop_assert_eq!(taken, open && before.phase() == Phase::Idle);
                    worker = if taken { Knows::Reads } else { Knows::HasInstance };
                }
                Step::PutBack if worker == Knows::Reads => {
                    slot.abandon_reading();
                    worker = Knows::HasInstance;
                }
                Step::Run if worker == Knows::Reads => {
                    let deadline = Deadline::at_ns(6);
                    prop_assert_eq!(slot.begin_running(CallId([5; 16]), deadline), asleep);
                    let call = CallKey { connection: ConnectionId(4), id: CallId([5; 16]) };
                    prop_assert_eq!(slot.running_request().unwrap(), (slot.state(), call, deadline));
                    worker = Knows::Runs;
                }
                Step::Begin if worker != Knows::Runs && given.is_some() => {
                    let begins = slot.begin_assigned();
                    prop_assert_eq!(begins, before.phase() == Phase::Assigned);
                    worker = if begins { Knows::Runs } else { Knows::Ends };
                }
                Step::Rest if worker == Knows::Runs => {
                    let rests = slot.end_turn();
                    prop_assert_eq!(rests, before.phase() != Phase::Expired);
                    worker = if rests { Knows::HasInstance } else { Knows::Ends };
                    given = given.filter(|_| !rests);
                }
                Step::Assign => {
                    let turn = slot.assign();
                    prop_assert_eq!(turn.is_some(), before.is_free());
                    given = turn.or(given);
                }
                Step::TakeAway => {
                    if let Some(turn) = given {
                        prop_assert_eq!(slot.unassign(turn), turn == before);
                        given = given.filter(|_| turn != before);
                        prop_assert!(turn != before || slot.state().is_free());
                    }
                }
                Step::Expire => {
                    let late = given.or(slot.running_request().map(|(state, ..)| state));
                    let expires = late.is_some_and(|state| slot.expire(state));
                    let runs = matches!(before.phase(), Phase::Running | Phase::Assigned);
                    prop_assert_eq!(expires, runs);
                }
                Step::Settle | Step::Take | Step::PutBack => {}
                Step::Run | Step::Begin | Step::Rest => {}
            }
            // A reader entered `Reading` while direct reads were enabled, and init sees that it reads.
            prop_assert_eq!(worker == Knows::Reads, slot.state().phase() == Phase::Reading);
            if worker == Knows::Runs {
                prop_assert!(matches!(slot.state().phase(), Phase::Running | Phase::Expired));
            }
        }
    }

    #[test]
    fn whatever_a_worker_writes_is_some_phase(word: u64, id: [u8; 16]) {
        let state = SlotState(word);
        prop_assert!(!(state.is_free() && state.is_busy()));
        prop_assert!(!state.is_free() || state.is_free_soon());
        prop_assert_eq!(state.returned().next(Phase::Assigned), state.next(Phase::Assigned));
        prop_assert_eq!(state.next(Phase::Assigned).phase(), Phase::Assigned);
        prop_assert_eq!(whole(halves(CallId(id))), id);
    }
}

/// Requests are numbers that readers take from a counter; each must run once.
#[test]
fn every_request_is_run_once_by_workers_or_init() {
    const REQUESTS: u32 = 20_000;
    let table = WorkerTable::new(3).unwrap();
    let next = AtomicU32::new(0);
    let (ran, alone) = (AtomicU32::new(0), AtomicBool::new(false));
    let read = || next.fetch_update(SeqCst, SeqCst, |at| (at < REQUESTS).then_some(at + 1)).ok();
    // WorkerTable is not shared between threads elsewhere; its words are atomics.
    let words: Vec<_> = (0..3).map(|index| table.slot(index).unwrap()).collect();
    table.control().set_direct_reads(true);
    std::thread::scope(|scope| {
        for slot in &words {
            scope.spawn(|| {
                loop {
                    match slot.become_idle() {
                        true if slot.begin_reading(ConnectionId(0)) => {
                            assert!(!alone.load(SeqCst), "init is the only reader");
                            match read() {
                                Some(_) => {
                                    let _asleep =
                                        slot.begin_running(CallId([0; 16]), Deadline::PASSED);
                                }
                                None => return slot.abandon_reading(),
                            }
                            ran.fetch_add(1, Relaxed);
                            assert!(slot.end_turn());
                        }
                        false if slot.begin_assigned() => {
                            ran.fetch_add(1, Relaxed);
                            assert!(slot.end_turn());
                        }
                        _ if next.load(SeqCst) == REQUESTS => return,
                        _ => std::thread::yield_now(),
                    }
                }
            });
        }
        // Init: disables direct reads, waits for readers, reads, assigns, enables direct reads.
        while next.load(SeqCst) < REQUESTS {
            table.control().set_direct_reads(false);
            while words.iter().any(|slot| slot.state().phase() == Phase::Reading) {
                std::thread::yield_now();
            }
            alone.store(true, SeqCst);
            if let Some(_request) = read() {
                let mut free = words.iter().cycle();
                // A worker that has left takes nothing any more; then init runs it itself.
                let given =
                    (0..1000).any(|_| free.next().is_some_and(|slot| slot.assign().is_some()));
                if !given {
                    ran.fetch_add(1, Relaxed);
                }
            }
            alone.store(false, SeqCst);
            table.control().set_direct_reads(true);
            std::thread::yield_now();
        }
        // Workers that were given the last ones run them before they see that there are no more.
    });
    let left = words.iter().filter(|slot| slot.state().phase() == Phase::Assigned).count();
    assert_eq!(ran.load(Relaxed) as usize + left, REQUESTS as usize);
}

/// A follower sleeps only while there is a leader, and is woken when there is none any more.
#[test]
fn one_leads_and_the_others_are_woken_to() {
    use ReaderRole::{Follower, Leader};
    let table = WorkerTable::new(3).unwrap();
    let [a, b, c] = [0, 1, 2].map(|index| table.slot(index).unwrap());
    assert!(!a.hand_over_lead(), "there is no follower");
    assert_eq!((a.take_role(), b.take_role(), a.take_role()), (Leader, Follower, Leader));
    a.keep_lead();
    assert_eq!(c.take_role(), Follower);
    c.stop_following();
    assert!(a.hand_over_lead(), "b is to be woken");
    b.stop_following();
    assert_eq!((b.take_role(), a.take_role()), (Leader, Follower));
    a.stop_following();
    assert!(!b.hand_over_lead(), "there is no follower");
    assert_eq!((c.take_role(), a.take_role()), (Leader, Follower));
    assert!(c.clear_role(), "a leader that died has a follower woken");
    a.stop_following();
    assert_eq!((b.take_role(), a.take_role()), (Leader, Follower));
    assert!(!a.clear_role(), "a follower that died has not");
    assert!(!b.hand_over_lead());
    assert_eq!((a.take_role(), b.take_role()), (Leader, Follower));
    assert!(table.control().depose_leader(), "b is to be woken");
    b.stop_following();
    assert_eq!(b.take_role(), Leader);
    assert!(!table.control().depose_leader(), "there is no follower");
    assert_eq!(c.take_role(), Leader);
}

/// A worker that has had the same request for long takes no processor and does not lead.
#[test]
fn one_follower_is_asked_to_poll() {
    let table = WorkerTable::new(2).unwrap();
    let [leader, follower] = [0, 1].map(|index| table.slot(index).unwrap());
    assert_eq!(leader.take_role(), ReaderRole::Leader);
    assert!(!leader.has_followers() && !leader.is_asked_to_poll());
    assert_eq!(follower.take_role(), ReaderRole::Follower);
    assert!(leader.has_followers());
    leader.ask_to_poll();
    assert!(leader.hand_over_lead());
    follower.stop_following();
    assert!(follower.is_asked_to_poll() && !follower.is_asked_to_poll());
    assert!(!leader.has_followers());
}

#[test]
fn a_long_request_takes_the_lead_from_its_worker() {
    let table = WorkerTable::new(READERS_MAX + 1).unwrap();
    let control = table.control();
    let [a, b, c] = [0, 1, 2].map(|index| table.slot(index).unwrap());
    let at_work = |count: usize| {
        control.set_processors(count + 1);
        let more_than = a.all_processors_work();
        control.set_processors(count);
        a.all_processors_work() && !more_than
    };
    assert!(!a.all_processors_work(), "the number is unknown");
    assert!(at_work(READERS_MAX));
    assert_eq!((a.take_role(), c.take_role()), (ReaderRole::Leader, ReaderRole::Follower));
    assert!(!control.set_long_running([1, READERS_MAX].into_iter()), "the leader gets on");
    assert!(at_work(READERS_MAX - 2));
    assert!(control.set_long_running([0].into_iter()), "c is to be woken");
    assert!(at_work(READERS_MAX - 2));
    assert_eq!(b.take_role(), ReaderRole::Leader);
    c.stop_following();
    assert!(!control.set_long_running([1].into_iter()), "there is no follower");
    assert!(!control.set_long_running(std::iter::empty()));
    assert!(at_work(READERS_MAX));
}

/// Workers beyond the readers wait for init, and have no role.
#[test]
fn workers_beyond_the_readers_wait_for_init_only() {
    let table = WorkerTable::new(READERS_MAX + 40).unwrap();
    table.control().set_direct_reads(true);
    let [first, last, beyond] =
        [0, READERS_MAX - 1, READERS_MAX + 39].map(|index| table.slot(index).unwrap());
    assert_eq!((table.readers(), beyond.is_reader()), (READERS_MAX, false));
    assert_eq!(
        (first.become_idle(), last.become_idle(), beyond.become_idle()),
        (true, true, false)
    );
    assert!(!beyond.begin_reading(ConnectionId(1)) && beyond.assign().is_some());
    assert_eq!((first.take_role(), last.take_role()), (ReaderRole::Leader, ReaderRole::Follower));
    assert!(first.hand_over_lead(), "the last one is to be woken");
    assert!(!beyond.clear_role(), "its death is nothing to those");
    assert_eq!(last.take_role(), ReaderRole::Leader);
}
