//! Tests of the barrier, as properties and by example.

use proptest::prelude::*;

use super::*;
use crate::work::fixture;
use cwasi_modes::Payload;
use cwasi_sys::segment::Segment;
use cwasi_wire::control::Partial;

const TIMEOUT_MS: u64 = 30_000;
const MS: u64 = 1_000_000;
const NEVER: u64 = u64::MAX;
const ROOM: BarrierLimits =
    BarrierLimits { groups: 100, load: Load { messages: 1000, bytes: 1000, descriptors: 1000 } };

const fn with(load: Load) -> BarrierLimits {
    BarrierLimits { load, ..ROOM }
}

fn barrier(parts: u32, bounds: BarrierLimits) -> Barrier {
    let fan_in = FanIn { parts, timeout_ms: TIMEOUT_MS, partial: Partial::Fail };
    Barrier::new("merge".into(), fan_in, bounds)
}

fn join(key: &str, parts: u32, part: u32) -> Join {
    Join { key: key.into(), parts, part, ..Join::default() }
}

/// A part of 10 bytes in one descriptor.
struct Part {
    connection: u64,
    call: u32,
    /// Differs between parts, also between those of one call.
    item: u32,
    deadline: u64,
    run: u8,
}

const fn part(connection: u64, number: u32, deadline: u64) -> Part {
    Part { connection, call: number, item: number, deadline, run: 7 }
}

impl Barrier {
    fn add(&mut self, join: Join, part: Part, now: u64) -> Result<Option<PartGroup>, CallError> {
        let payload = Payload::Segment(Segment::copy_of(&[0; 10]).unwrap());
        let mut request = fixture::request(fixture::connection(part.connection), 0, payload);
        request.id.0[..4].copy_from_slice(&part.call.to_le_bytes());
        request.request.run = vec![part.run; 16];
        request.request.join = Some(join).into();
        request.request.attempt = part.item;
        self.add_part(request, Some(Deadline::at_ns(part.deadline)), now)
    }
}

fn item(part: &WaitingPart) -> u32 {
    part.request.request.attempt
}

fn numbers(group: &PartGroup) -> Vec<(u32, u32)> {
    group.parts.iter().map(|(number, part)| (*number, item(part))).collect()
}

fn refused(outcome: Result<Option<PartGroup>, CallError>) -> String {
    match outcome.unwrap_err() {
        CallError::Overloaded(full) => format!("full: {full}"),
        error => error.to_string(),
    }
}

#[test]
fn a_group_leaves_when_its_last_part_comes_in_order_of_numbers() {
    let mut barrier = barrier(3, ROOM);
    assert!(barrier.add(join("a", 0, 2), part(1, 12, NEVER), 0).unwrap().is_none());
    assert_eq!(barrier.waiting_parts(), 1);
    assert!(barrier.add(join("b", 3, 0), part(1, 20, NEVER), 0).unwrap().is_none());
    assert!(barrier.add(join("a", 3, 0), part(2, 10, NEVER), 0).unwrap().is_none());
    let other_run = Part { run: 8, ..part(2, 31, NEVER) };
    assert!(barrier.add(join("a", 0, 1), other_run, 0).unwrap().is_none());
    let group = barrier.add(join("a", 0, 1), part(3, 11, NEVER), 0).unwrap().unwrap();
    assert_eq!(group.expected, 3);
    assert_eq!(numbers(&group), [(0, 10), (1, 11), (2, 12)]);
    assert_eq!(barrier.waiting_parts(), 2);
    let left: Vec<_> = barrier.drain().iter().map(item).collect();
    assert_eq!(left, [20, 31]);
    assert!(barrier.is_empty() && barrier.next_deadline().is_none());
}

#[test]
fn a_single_part_can_be_all_when_its_caller_says_so() {
    let mut barrier = barrier(0, ROOM);
    let group = barrier.add(join("a", 1, 0), part(1, 5, NEVER), 0).unwrap().unwrap();
    assert_eq!(numbers(&group), [(0, 5)]);
    assert!(barrier.is_empty());
}

#[test]
fn contradictions_are_their_callers_error_and_the_group_goes_on() {
    let mut fixed = barrier(2, ROOM);
    fixed.add(join("a", 0, 0), part(1, 1, NEVER), 0).unwrap();
    let long = "k".repeat(JOIN_KEY_MAX + 1);
    for (wrong, text) in [
        (join("a", 3, 1), "the call says 3 parts, merge has cwasi.fan-in=2"),
        (join("a", 0, 2), "part 2 of 2: parts are numbered from 0"),
        (join("a", 0, 0), "part 0 of `a` is here already"),
        (join("", 0, 0), "a join key has 1 to 255 bytes, not 0"),
        (join(&long, 0, 0), "a join key has 1 to 255 bytes, not 256"),
    ] {
        assert_eq!(refused(fixed.add(wrong, part(1, 9, NEVER), 0)), text);
    }
    let group = fixed.add(join("a", 0, 1), part(1, 2, NEVER), 0).unwrap().unwrap();
    assert_eq!(numbers(&group), [(0, 1), (1, 2)]);

    let mut said = barrier(0, ROOM);
    said.add(join("a", 2, 0), part(1, 1, NEVER), 0).unwrap();
    for (wrong, text) in [
        (join("a", 0, 1), "merge has cwasi.fan-in=caller: each call says how many parts there are"),
        (join("a", 3, 1), "the call says 3 parts, an earlier one of `a` said 2"),
        (join("b", 1025, 1), "1025 parts; a group has 1024 at most"),
    ] {
        assert_eq!(refused(said.add(wrong, part(1, 9, NEVER), 0)), text);
    }
}

#[test]
fn the_same_call_again_takes_its_own_place() {
    let mut barrier = barrier(2, ROOM);
    barrier.add(join("a", 0, 0), part(1, 1, NEVER), 0).unwrap();
    assert!(barrier.add(join("a", 0, 0), part(2, 1, NEVER), 0).unwrap().is_none());
    barrier.forget(ConnectionId(1));
    let group = barrier.add(join("a", 0, 1), part(3, 2, NEVER), 0).unwrap().unwrap();
    let connections: Vec<_> =
        group.parts.values().map(|part| part.request.connection.id.0).collect();
    assert_eq!(connections, [2, 3]);
    assert_eq!(barrier.total_load(), Load::default());
}

#[test]
fn a_group_is_over_after_its_time_and_says_what_is_missing() {
    let mut barrier = barrier(3, ROOM);
    barrier.add(join("frame-7", 0, 0), part(1, 1, NEVER), 5).unwrap();
    barrier.add(join("frame-7", 0, 2), part(1, 2, NEVER), 1000).unwrap();
    let end = 5 + TIMEOUT_MS * MS;
    assert_eq!(barrier.next_deadline(), Some(Deadline::at_ns(end)));
    assert!(barrier.pop_over(end - 1).is_none() && barrier.take_given_up(end - 1).is_empty());
    let (group, text) = barrier.pop_over(end).unwrap();
    assert_eq!(text, "2 of 3 parts of `frame-7` arrived in 30s; missing: 1");
    assert_eq!(numbers(&group), [(0, 1), (2, 2)]);
    assert!(barrier.is_empty() && barrier.pop_over(NEVER).is_none());
}

#[test]
fn long_lists_of_missing_parts_are_cut() {
    let mut barrier = barrier(1000, ROOM);
    barrier.add(join("a", 0, 3), part(1, 1, NEVER), 0).unwrap();
    let text = barrier.pop_over(NEVER).unwrap().1;
    assert!(text.contains("missing: 0, 1, 2, 4, 5"), "{text}");
    assert!(text.ends_with("16 and 983 more"), "{text}");
}

#[test]
fn parts_whose_callers_gave_up_or_died_leave_alone() {
    let mut barrier = barrier(3, ROOM);
    barrier.add(join("a", 0, 0), part(1, 1, 50), 0).unwrap();
    barrier.add(join("a", 0, 1), part(2, 2, NEVER), 0).unwrap();
    assert_eq!(barrier.next_deadline(), Some(Deadline::at_ns(50)));
    assert!(barrier.take_given_up(49).is_empty());
    let (gone, text) = barrier.take_given_up(50).remove(0);
    assert_eq!(
        (item(&gone), text.contains("2 of 3 parts of `a` arrived before")),
        (1, true),
        "{text}"
    );
    barrier.add(join("a", 0, 0), part(1, 3, NEVER), 0).unwrap();
    barrier.forget(ConnectionId(2));
    assert!(!barrier.is_empty());
    barrier.forget(ConnectionId(1));
    assert!(barrier.is_empty(), "a group without parts is none");
    assert_eq!(barrier.total_load(), Load::default());
}

#[test]
fn each_bound_refuses_at_once_and_costs_no_other_part() {
    let cases = [
        (BarrierLimits { groups: 2, ..ROOM }, "full: 2 groups"),
        (with(Load { messages: 2, ..ROOM.load }), "full: 2 parts"),
        (with(Load { bytes: 29, ..ROOM.load }), "29 bytes"),
        (with(Load { descriptors: 2, ..ROOM.load }), "RLIMIT_NOFILE"),
    ];
    for (bounds, text) in cases {
        let mut barrier = barrier(2, bounds);
        barrier.add(join("a", 0, 0), part(1, 1, NEVER), 0).unwrap();
        barrier.add(join("b", 0, 0), part(1, 2, NEVER), 0).unwrap();
        let said = refused(barrier.add(join("c", 0, 0), part(1, 3, NEVER), 0));
        assert!(said.contains(text), "{said}");
        barrier.forget(ConnectionId(9));
        assert_eq!(barrier.drain().len(), 2);
        assert!(barrier.add(join("c", 0, 0), part(1, 3, NEVER), 0).unwrap().is_none());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add { key: u8, parts: u32, number: u32, connection: u64, deadline: u64, again: bool },
    Forget(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4_u8, 0..5_u32, 0..5_u32, 0..5_u64, 1..40_u64, any::<bool>()).prop_map(
            |(key, parts, number, connection, wait, again)| Step::Add {
                key, parts, number, connection, deadline: wait * 1000 * MS, again,
            }
        ),
        1 => (0..5_u64).prop_map(Step::Forget),
        1 => (0..20_u64).prop_map(|seconds| Step::Pass(seconds * 1000 * MS)),
    ]
}

/// Every part that came, and how it left.
#[derive(Default)]
struct Ledger {
    came: u32,
    left: Vec<u32>,
}

fn waiting(barrier: &Barrier) -> Vec<&WaitingPart> {
    barrier.groups.values().flat_map(|group| group.parts.values()).collect()
}

fn items(barrier: &Barrier) -> Vec<u32> {
    waiting(barrier).into_iter().map(item).collect()
}

proptest! {
    #[test]
    fn every_part_leaves_exactly_once_and_bounds_hold(
        annotated in prop_oneof![Just(0_u32), 2..5_u32],
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let bounds = BarrierLimits { groups: 3, load: Load { messages: 7, bytes: 60, descriptors: 6 } };
        let mut barrier = barrier(annotated, bounds);
        let (mut ledger, mut now) = (Ledger::default(), 1);
        for step in steps {
            match step {
                Step::Add { key, parts, number, connection, deadline, again } => {
                    let call = if again { ledger.came.saturating_sub(1) } else { ledger.came };
                    let mut new = part(connection, call, now + deadline);
                    new.item = ledger.came;
                    ledger.came += 1;
                    let before = items(&barrier);
                    let mut left = Vec::new();
                    match barrier.add(join(&key.to_string(), parts, number), new, now) {
                        Ok(Some(group)) => {
                            prop_assert!(group.is_complete());
                            prop_assert!(annotated == 0 || annotated == group.expected);
                            left.extend(numbers(&group).into_iter().map(|(_, item)| item));
                        }
                        Ok(None) => {}
                        Err(_) => left.push(ledger.came - 1),
                    }
                    // What the same call replaced.
                    let here = items(&barrier);
                    let replaced = before.iter().filter(|item| !left.contains(item) && !here.contains(item));
                    ledger.left.extend(replaced);
                    ledger.left.extend(left);
                }
                Step::Forget(connection) => {
                    let connection = ConnectionId(connection);
                    let is_gone = |part: &&WaitingPart| part.request.connection.id == connection;
                    ledger.left.extend(waiting(&barrier).into_iter().filter(is_gone).map(item));
                    barrier.forget(connection);
                }
                Step::Pass(ns) => {
                    now += ns;
                    while let Some((group, _)) = barrier.pop_over(now) {
                        ledger.left.extend(numbers(&group).into_iter().map(|(_, item)| item));
                    }
                    let given_up = barrier.take_given_up(now);
                    ledger.left.extend(given_up.iter().map(|(part, _)| item(part)));
                    prop_assert!(barrier.next_deadline().is_none_or(|next| !next.has_passed(now)));
                }
            }
            prop_assert!(barrier.first_deadline().is_none_or(|first| barrier.is_due(first.as_ns())));
            prop_assert!(barrier.groups.values().all(|g| !g.parts.is_empty() && !g.is_complete()));
            let sum = Load::sum(waiting(&barrier).into_iter().map(|part| part.load));
            prop_assert_eq!(barrier.total_load(), sum);
            prop_assert!(barrier.groups.len() <= bounds.groups && barrier.total_load().messages <= bounds.load.messages);
            prop_assert!(barrier.total_load().bytes <= bounds.load.bytes && barrier.total_load().descriptors <= bounds.load.descriptors);
        }
        ledger.left.extend(barrier.drain().iter().map(item));
        ledger.left.sort_unstable();
        prop_assert_eq!(ledger.left, (0..ledger.came).collect::<Vec<_>>());
        prop_assert_eq!(barrier.total_load(), Load::default());
    }
}
