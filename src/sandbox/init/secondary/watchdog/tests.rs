//! Tests of the watchdog with slots without workers.

use super::*;
use crate::sandbox::worker_table::WorkerTable;
use crate::sys::clock::Deadline;
use crate::wire::ids::CallId;

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
fn requests_are_left_to_workers_that_get_on() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    run(&table, 0);
    run(&table, 1);
    assert_eq!(watchdog.check(states(&table), |_| (true, false)), WatchdogAction::None);
    assert!(table.slot(0).unwrap().end_turn());
    assert_eq!(watchdog.check(states(&table), |_| (true, false)), WatchdogAction::None);
    table.slot(0).unwrap().become_idle();
    run(&table, 0);
    assert_eq!(watchdog.check(states(&table), |_| (true, false)), WatchdogAction::None);
    assert_eq!(watchdog.check(states(&table), |_| (false, false)), WatchdogAction::None);
    assert_eq!(
        watchdog.check(states(&table), |_| (true, false)),
        WatchdogAction::ReadAll,
        "all are stuck"
    );
}

#[test]
fn who_has_one_request_from_look_to_look_has_it_for_long() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    let mut look = |long: &[usize]| {
        let states = states(&table);
        assert_eq!(watchdog.long_running(&states).collect::<Vec<_>>(), long);
        watchdog.check(states, |_| (false, false));
    };
    run(&table, 0);
    look(&[]);
    run(&table, 1);
    look(&[0]);
    assert!(table.slot(0).unwrap().end_turn());
    table.slot(0).unwrap().become_idle();
    run(&table, 0);
    look(&[1]);
    look(&[0, 1]);
}

#[test]
fn a_worker_that_only_has_to_answer_has_room_for_a_request() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    run(&table, 0);
    run(&table, 1);
    let mut room = || {
        let mut room = 0;
        watchdog.check(states(&table), |free| {
            room = free;
            (true, false)
        });
        room
    };
    assert_eq!(room(), 0);
    table.slot(0).unwrap().note_returned();
    assert_eq!(room(), 1);
    assert!(table.slot(0).unwrap().end_turn());
    assert_eq!(room(), 1);
}

#[test]
fn more_than_may_wait_is_read_at_once() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    run(&table, 0);
    let action = watchdog.check(states(&table), |free| {
        assert_eq!(free, 1);
        (true, true)
    });
    assert_eq!(action, WatchdogAction::ReadAll);
}

#[test]
fn what_waits_beside_an_idle_worker_for_a_tick_is_swept_up() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    run(&table, 0);
    assert_eq!(
        watchdog.check(states(&table), |_| (true, false)),
        WatchdogAction::None,
        "a first look"
    );
    assert_eq!(watchdog.check(states(&table), |_| (true, false)), WatchdogAction::ReadOnce);
}

#[test]
fn what_waits_is_left_to_one_that_gets_on_while_others_rest() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    assert_eq!(
        watchdog.check(states(&table), |_| (true, false)),
        WatchdogAction::None,
        "a first look"
    );
    for _ in 0..3 {
        run(&table, 0);
        assert_eq!(watchdog.check(states(&table), |_| (true, false)), WatchdogAction::None);
        assert!(table.slot(0).unwrap().end_turn());
        table.slot(0).unwrap().become_idle();
    }
}

#[test]
fn when_all_that_read_are_busy_init_reads_for_the_others() {
    let (table, mut watchdog) = (WorkerTable::new(READERS_MAX + 1).unwrap(), watchdog());
    table.control().set_direct_reads(true);
    let all = || (0..=READERS_MAX).map(|index| table.slot(index).unwrap());
    all().for_each(|slot| {
        slot.become_idle();
    });
    (0..READERS_MAX).for_each(|index| run(&table, index));
    let mut look = || watchdog.check(all().map(|slot| slot.state()).collect(), |_| (true, false));
    assert_eq!(look(), WatchdogAction::None, "a first look");
    assert_eq!(look(), WatchdogAction::ReadAll);
}

#[test]
fn what_nobody_reads_is_found_whatever_workers_say() {
    let mut watchdog = watchdog();
    let heads = |heads: &[(u64, u8)]| -> BTreeMap<_, _> {
        heads
            .iter()
            .map(|(id, byte)| (ConnectionId(*id), [*byte; size_of::<RequestHead>()]))
            .collect()
    };
    let mut ticks = |times: u32, now: &[(u64, u8)]| -> Vec<bool> {
        (0..times).map(|_| watchdog.is_stalled(!now.is_empty(), || heads(now))).collect()
    };
    let never = vec![false; STALLED_TICKS as usize];
    let mut found = never.clone();
    found[never.len() - 1] = true;
    assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (2, 7)]), never, "a first look");
    assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (2, 8)]), never, "one was read");
    assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (2, 8), (3, 1)]), found, "one more waits");
    assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (3, 1)]), never, "one has ended");
    assert_eq!(ticks(1, &[]), [false]);
    assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (3, 1)]), never, "nothing waited in between");
    assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (3, 1)]), found);
}

#[test]
fn quiet_is_counted_from_the_last_change() {
    let (table, mut watchdog) = (two_idle(), watchdog());
    for quiet in [0, 1, 2] {
        watchdog.check(states(&table), |_| (false, false));
        assert_eq!(watchdog.quiet, quiet);
    }
    run(&table, 0);
    watchdog.check(states(&table), |_| (false, false));
    watchdog.check(states(&table), |_| (false, false));
    assert_eq!(watchdog.quiet, 0, "a worker is busy");
}
