//! The barrier of a fan-in: parts that wait for the other parts of their group. Runs in sandbox init. Pure: no I/O, no
//! clock.
//!
//! A group consists of the parts that arrived for one run of a workflow under one join key. It leaves as a whole, when
//! it is complete or when its timeout has passed. A single part leaves when its caller has gone or its deadline has
//! passed.
//!
//! Invariants: no group in the barrier is complete or empty, and all parts together are within [`BarrierLimits`].

use std::collections::BTreeMap;
use std::time::Duration;

use cwasi_abi::{JOIN_KEY_MAX, PARTS_MAX};

use cwasi_modes::causes::{Invalid, InvalidPart, PartsFull};
use cwasi_modes::local::load::Load;
use cwasi_modes::local::{ConnectionId, IncomingRequest};
use cwasi_modes::{CallError, Overload};
use cwasi_sys::clock::Deadline;
use cwasi_wire::control::FanIn;
use cwasi_wire::envelope::Join;
use cwasi_wire::ids::RunId;

#[cfg(test)]
mod tests;

/// Most missing parts that a message lists by number.
const LISTED_MAX: usize = 16;

/// What may wait in one barrier.
#[derive(Clone, Copy, Debug)]
pub struct BarrierLimits {
    pub groups: usize,
    pub load: Load,
}

#[derive(Debug)]
pub struct WaitingPart {
    pub request: Box<IncomingRequest>,
    /// When its caller stops waiting.
    pub deadline: Option<Deadline>,
    load: Load,
}

/// Parts that leave together.
#[derive(Debug)]
pub struct PartGroup {
    /// How many parts make it complete.
    pub expected: u32,
    /// Its parts by number.
    pub parts: BTreeMap<u32, WaitingPart>,
    /// When it is no longer waited for.
    until: Deadline,
    /// What its parts hold.
    load: Load,
}

/// The run of a workflow, and what the parts have in common.
type GroupKey = (RunId, String);

#[derive(Debug)]
pub struct Barrier {
    function: String,
    fan_in: FanIn,
    bounds: BarrierLimits,
    groups: BTreeMap<GroupKey, PartGroup>,
    /// No group and no part has waited long enough before this: what init asks about at each of its turns.
    earliest: Option<Deadline>,
}

impl PartGroup {
    fn is_complete(&self) -> bool {
        u32::try_from(self.parts.len()) == Ok(self.expected)
    }

    /// Takes out the parts that are not to stay.
    fn take(&mut self, leaves: impl Fn(&WaitingPart) -> bool) -> Vec<WaitingPart> {
        let left = self.parts.extract_if(.., |_, part| leaves(part)).map(|(_, part)| part);
        let left: Vec<_> = left.collect();
        self.load = self.load.without(Load::sum(left.iter().map(|part| part.load)));
        left
    }

    /// For people: the number of present parts, the time, and the missing parts.
    fn describe(&self, key: &str, when: &str) -> String {
        let (here, expected) = (self.parts.len(), self.expected);
        let missing: Vec<_> =
            (0..expected).filter(|number| !self.parts.contains_key(number)).collect();
        let listed: Vec<_> = missing.iter().take(LISTED_MAX).map(u32::to_string).collect();
        let listed = listed.join(", ");
        let more = match missing.len().saturating_sub(LISTED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{here} of {expected} parts of `{key}` arrived {when}; missing: {listed}{more}")
    }
}

impl Barrier {
    /// A barrier of `function` without groups.
    #[must_use]
    pub fn new(function: String, fan_in: FanIn, bounds: BarrierLimits) -> Self {
        Self { function, fan_in, bounds, groups: BTreeMap::new(), earliest: None }
    }

    /// Lets a part wait for the others of the group that its request names; the group when it is complete with it.
    ///
    /// The same call again (an attempt whose end its caller did not see) replaces the earlier one.
    ///
    /// # Errors
    /// When the part contradicts the function's annotation, the other parts, or itself, or when a bound is reached. The
    /// group that it names is as it was.
    pub fn add_part(
        &mut self,
        request: Box<IncomingRequest>,
        deadline: Option<Deadline>,
        now: u64,
    ) -> Result<Option<PartGroup>, CallError> {
        let (Some(join), Some(run)) = (request.request.join.as_ref(), request.request.run_id())
        else {
            return Err(Invalid::NoJoinKey { function: self.function.clone() }.into());
        };
        let (join, group_key) = (join.clone(), (run, join.key.clone()));
        // All of them must fit into one linear memory, however they came.
        let load = Load { bytes: request.payload.len(), ..Load::of(&request.payload) };
        let part = WaitingPart { request, deadline, load };
        let expected = self.check(&group_key, &join, &part)?;
        let until = Deadline::at_ns(now).plus(Duration::from_millis(self.fan_in.timeout_ms));
        let fresh = PartGroup { expected, until, parts: BTreeMap::new(), load: Load::default() };
        let group = self.groups.entry(group_key.clone()).or_insert(fresh);
        self.earliest =
            [self.earliest, part.deadline, Some(group.until)].into_iter().flatten().min();
        group.load = group.load.and(part.load);
        if let Some(earlier) = group.parts.insert(join.part, part) {
            group.load = group.load.without(earlier.load);
        }
        Ok(if group.is_complete() { self.groups.remove(&group_key) } else { None })
    }

    /// How many parts the group has, if `part` can be one of them.
    fn check(
        &self,
        group_key: &GroupKey,
        join: &Join,
        part: &WaitingPart,
    ) -> Result<u32, CallError> {
        let (key, number) = (&join.key, join.part);
        let wrong = |part: InvalidPart| Err(Invalid::from(part).into());
        if !(1..=JOIN_KEY_MAX).contains(&key.len()) {
            return wrong(InvalidPart::KeyLength { length: key.len() });
        }
        let function = || self.function.clone();
        let expected = match (self.fan_in.parts, join.parts) {
            (0, 0) => return wrong(InvalidPart::NoNumber { function: function() }),
            (0, said) | (said, 0) => said,
            (annotated, said) if annotated == said => said,
            (annotated, said) => {
                return wrong(InvalidPart::Annotation { function: function(), said, annotated });
            }
        };
        if expected > PARTS_MAX {
            return wrong(InvalidPart::TooMany { expected });
        }
        if number >= expected {
            return wrong(InvalidPart::Number { number, expected });
        }
        let group = self.groups.get(group_key);
        if let Some(group) = group {
            if group.expected != expected {
                let (key, known) = (key.clone(), group.expected);
                return wrong(InvalidPart::OtherNumber { key, expected, known });
            }
            match group.parts.get(&number) {
                Some(earlier) if earlier.request.id == part.request.id => return Ok(expected),
                Some(_) => return wrong(InvalidPart::Here { key: key.clone(), number }),
                None => {}
            }
        }
        self.check_room(group.is_none(), part).map_err(Overload::from)?;
        Ok(expected)
    }

    fn check_room(&self, new_group: bool, part: &WaitingPart) -> Result<(), PartsFull> {
        let BarrierLimits { groups, load: Load { messages, bytes, descriptors } } = self.bounds;
        let (function, held) = (self.function.clone(), self.total_load().and(part.load));
        if new_group && self.groups.len() >= groups {
            return Err(PartsFull::Groups { function, limit: groups });
        }
        if held.messages > messages {
            return Err(PartsFull::Parts { function, limit: messages });
        }
        if held.bytes > bytes {
            return Err(PartsFull::Bytes { function, limit: bytes });
        }
        if held.descriptors > descriptors {
            return Err(PartsFull::Descriptors { function, limit: descriptors });
        }
        Ok(())
    }

    /// What all parts hold.
    fn total_load(&self) -> Load {
        Load::sum(self.groups.values().map(|group| group.load))
    }

    /// Drops the parts that came over `connection`.
    pub fn forget(&mut self, connection: ConnectionId) {
        self.groups.retain(|_, group| {
            group.take(|part| part.request.connection.id == connection);
            !group.parts.is_empty()
        });
    }

    /// Takes out a group whose timeout has passed, with a text that lists the missing parts.
    pub fn pop_over(&mut self, now: u64) -> Option<(PartGroup, String)> {
        if !self.is_due(now) {
            return None;
        }
        let is_over = |_: &GroupKey, group: &mut PartGroup| group.until.has_passed(now);
        let (group_key, group) = self.groups.extract_if(.., is_over).next()?;
        let waited = humantime::format_duration(Duration::from_millis(self.fan_in.timeout_ms));
        let text = group.describe(&group_key.1, &format!("in {waited}"));
        Some((group, text))
    }

    /// Takes out the parts whose callers have waited long enough, each with a text that says what its group missed. To
    /// be asked after [`Self::pop_over`].
    pub fn take_given_up(&mut self, now: u64) -> Vec<(WaitingPart, String)> {
        let mut given_up = Vec::new();
        if !self.is_due(now) {
            return given_up;
        }
        let is_late = |part: &WaitingPart| part.deadline.is_some_and(|at| at.has_passed(now));
        for ((_, key), group) in &mut self.groups {
            if group.parts.values().any(is_late) {
                let text = group.describe(key, "before the caller's deadline");
                given_up.extend(group.take(is_late).into_iter().map(|part| (part, text.clone())));
            }
        }
        self.groups.retain(|_, group| !group.parts.is_empty());
        self.earliest = self.first_deadline();
        given_up
    }

    fn is_due(&self, now: u64) -> bool {
        self.earliest.is_some_and(|earliest| earliest.has_passed(now))
    }

    fn first_deadline(&self) -> Option<Deadline> {
        let first = |group: &PartGroup| {
            group.parts.values().filter_map(|part| part.deadline).fold(group.until, Deadline::min)
        };
        self.groups.values().map(first).min()
    }

    pub fn drain(&mut self) -> Vec<WaitingPart> {
        let groups = std::mem::take(&mut self.groups);
        groups.into_values().flat_map(|group| group.parts.into_values()).collect()
    }

    /// When to ask again for groups and parts that have waited long enough.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.earliest.filter(|_| !self.is_empty())
    }

    /// Parts that wait.
    #[must_use]
    pub fn waiting_parts(&self) -> usize {
        self.groups.values().map(|group| group.parts.len()).sum()
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}
