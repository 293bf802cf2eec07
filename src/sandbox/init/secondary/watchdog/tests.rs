//! Tests of the watchdog with slots without workers.

use super::*;
use crate::worker_table::WorkerTable;
use cwasi_sys::clock::Deadline;
use cwasi_wire::ids::CallId;

fn watchdog() -> Watchdog {
    Watchdog::default()
}

fn run(table: &WorkerTable, index: usize) {
    let slot = table.slot(index).unwrap();
    assert!(slot.begin_reading(ConnectionId(1)));
    assert!(!slot.begin_running(CallId([1; 16]), Deadline::at_ns(1)));
}

fn states(table: &WorkerTable) -> Vec<SlotState> {
    (0..2).map(|index| table.slot(index).unwrap().state()).collect()
}

fn two_idle() -> WorkerTable {
    let table = WorkerTable::new(2).unwrap();
    table.control().set_direct_reads(true);
    for index in 0..2 {
        assert!(table.slot(index).unwrap().become_idle());
    }
    table
}

#[test]
fn a_request_in_two_checks_is_long_running() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    let mut check = |long: &[usize]| {
        let states = states(&table);
        assert_eq!(watchdog.long_running(&states).collect::<Vec<_>>(), long);
        watchdog.note(states);
    };
    run(&table, 0);
    check(&[]);
    run(&table, 1);
    check(&[0]);
    assert!(table.slot(0).unwrap().end_turn());
    table.slot(0).unwrap().become_idle();
    run(&table, 0);
    check(&[1]);
    check(&[0, 1]);
}

#[test]
fn unread_requests_are_found_whatever_workers_say() {
    let mut watchdog = watchdog();
    let mut check_while = |begun: bool, now: &[(u64, u8)]| {
        let ready: Vec<_> = now.iter().map(|(id, _)| ConnectionId(*id)).collect();
        watchdog.stalls(begun, &ready, |id| {
            let (_, byte) = now.iter().find(|(other, _)| *other == id.0)?;
            Some([*byte; size_of::<RequestHead>()])
        })
    };
    let stalls: Vec<_> = (0..=STALLED_TICKS).map(|_| check_while(true, &[(1, 7)])).collect();
    assert_eq!(stalls, [false, false, false, false, true], "workers begin others, or say so");
    check_while(true, &[]);
    let mut check = |now: &[(u64, u8)]| check_while(false, now);
    assert!(!check(&[(1, 7), (2, 7)]), "a first check");
    assert!(!check(&[(1, 7), (2, 8)]), "one was read");
    assert!(check(&[(1, 7), (2, 8), (3, 1)]), "one more waits");
    assert!(!check(&[(1, 7), (3, 1)]), "one has ended");
    assert!(!check(&[]), "all were read");
    assert!(!check(&[(1, 7)]), "nothing waited in between");
    assert!(check(&[(1, 7)]));
}

/// The kernel names some connections of many that are ready, and others at the next check.
#[test]
fn unread_requests_are_found_among_many() {
    let mut watchdog = watchdog();
    let ready = |from: u64| (from..from + 128).map(ConnectionId).collect::<Vec<_>>();
    let head = |_| Some([7; size_of::<RequestHead>()]);
    assert!(!watchdog.stalls(false, &ready(0), head));
    assert!(watchdog.stalls(false, &ready(128), head));
}

#[test]
fn quiet_is_counted_from_the_last_change() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    for quiet in [0, 1, 2] {
        watchdog.note(states(&table));
        assert_eq!(watchdog.quiet, quiet);
    }
    run(&table, 0);
    for quiet in [0, 1] {
        watchdog.note(states(&table));
        assert_eq!(watchdog.quiet, quiet, "a worker is busy");
    }
}

#[test]
fn init_may_sleep_while_the_same_requests_run_and_none_waits() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    run(&table, 0);
    let mut may_sleep = vec![];
    for _ in 0..2 {
        watchdog.note(states(&table));
        may_sleep.push(watchdog.may_sleep());
    }
    run(&table, 1);
    watchdog.note(states(&table));
    may_sleep.push(watchdog.may_sleep());
    assert_eq!(
        may_sleep,
        [false, true, false],
        "a request of two checks, and one of a single check"
    );
    watchdog.note(states(&table));
    watchdog.heads = vec![(ConnectionId(1), [0; size_of::<RequestHead>()])];
    assert!(!watchdog.may_sleep(), "a request waits");
    watchdog.heads.clear();
    watchdog.reading = true;
    assert!(!watchdog.may_sleep(), "init reads");
    watchdog.reading = false;
    assert!(watchdog.may_sleep());
    watchdog.note_wait(true);
    assert!(!watchdog.may_sleep(), "an event");
    for quiet in 0..=QUIET_CHECKS {
        watchdog.note(states(&two_idle()));
        assert_eq!(watchdog.may_sleep(), quiet == QUIET_CHECKS, "no worker is busy");
    }
}

#[test]
fn an_event_and_no_timer_ends_the_quiet() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    for _ in 0..=QUIET_CHECKS {
        watchdog.note(states(&table));
    }
    watchdog.note_wait(false);
    assert_eq!(watchdog.quiet, QUIET_CHECKS);
    watchdog.note_wait(true);
    assert_eq!(watchdog.quiet, 0);
}

#[test]
fn checks_are_further_and_further_apart_while_nothing_happens() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    let mut ticks = vec![];
    for _ in 0..=QUIET_CHECKS {
        watchdog.note(states(&table));
        ticks.push(watchdog.next() / TICK_NS);
    }
    assert_eq!(ticks, [1, 2, 4, 8, 8]);
    watchdog.heads = vec![(ConnectionId(1), [0; size_of::<RequestHead>()])];
    assert_eq!(watchdog.next(), TICK_NS, "a request waits");
    watchdog.heads.clear();
    run(&table, 0);
    watchdog.note(states(&table));
    assert_eq!(watchdog.next(), TICK_NS, "a worker is busy");
    watchdog.note(states(&two_idle()));
    watchdog.note(states(&two_idle()));
    watchdog.reading = true;
    assert_eq!(watchdog.next(), TICK_NS, "init reads");
}
