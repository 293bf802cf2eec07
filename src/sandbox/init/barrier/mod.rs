//! The barrier of a fan-in: parts that wait for the other parts of their group. Runs in sandbox init. Pure: no I/O, no
//! clock.
//!
//! A group consists of the parts that arrived for one run of a workflow under one join key. It leaves as a whole, when
//! it is complete or when its timeout has passed. A single part leaves when its caller has gone or its deadline has
//! passed.
//!
//! Invariants: no group in the barrier is complete or empty, and all parts together are within [`BarrierLimits`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use cwasi_abi::{JOIN_KEY_MAX, PARTS_MAX};

use crate::modes::causes::{Invalid, InvalidPart, PartsFull};
use crate::modes::{CallError, Overload};
use crate::sandbox::init::load::Load;
use crate::sys::clock::Deadline;
use crate::wire::control::FanIn;
use crate::wire::ids::{CallId, RunId};

#[cfg(test)]
mod tests;

/// Most missing parts that a message lists by number.
const LISTED_MAX: usize = 16;

/// What may wait in one barrier.
#[derive(Clone, Copy, Debug)]
pub struct BarrierLimits {
    /// Groups.
    pub groups: usize,
    /// All their parts.
    pub load: Load,
}

/// Which group a part belongs to, as its caller says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// The run of the workflow.
    pub run: RunId,
    /// What the parts have in common.
    pub key: String,
    /// How many there are; 0 = the function's annotation says.
    pub parts: u32,
    /// The number of this part, from 0.
    pub part: u32,
}

/// A part that waits. `C` names the connection that it came over, `T` is its request.
#[derive(Debug)]
pub struct WaitingPart<C, T> {
    /// Where it came from.
    pub connection: C,
    /// Its call.
    pub id: CallId,
    /// When its caller stops waiting.
    pub deadline: Option<Deadline>,
    /// What it holds.
    pub load: Load,
    /// The request.
    pub item: T,
}

/// Parts that leave together.
#[derive(Debug)]
pub struct PartGroup<C, T> {
    key: String,
    expected: u32,
    /// When it is no longer waited for.
    until: Deadline,
    parts: BTreeMap<u32, WaitingPart<C, T>>,
}

/// Groups that wait.
#[derive(Debug)]
pub struct Barrier<C, T> {
    function: String,
    fan_in: FanIn,
    bounds: BarrierLimits,
    groups: BTreeMap<(RunId, String), PartGroup<C, T>>,
    held: Load,
    /// No group and no part has waited long enough before this: what init asks about at each of its turns.
    earliest: Option<Deadline>,
}

impl<C, T> PartGroup<C, T> {
    /// How many parts make it complete.
    #[must_use]
    pub const fn expected(&self) -> u32 {
        self.expected
    }

    /// Its parts by number.
    #[must_use]
    pub fn into_parts(self) -> BTreeMap<u32, WaitingPart<C, T>> {
        self.parts
    }

    fn is_complete(&self) -> bool {
        u32::try_from(self.parts.len()) == Ok(self.expected)
    }

    /// For people: the number of present parts, the time, and the missing parts.
    #[must_use]
    pub fn describe(&self, when: &str) -> String {
        let (here, expected, key) = (self.parts.len(), self.expected, &self.key);
        let mut text = format!("{here} of {expected} parts of `{key}` arrived {when}; missing: ");
        let mut missing = (0..expected).filter(|number| !self.parts.contains_key(number));
        for (index, number) in missing.by_ref().take(LISTED_MAX).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(text, "{comma}{number}").expect("writing to a string does not fail");
        }
        match missing.count() {
            0 => {}
            more => write!(text, " and {more} more").expect("writing to a string does not fail"),
        }
        text
    }
}

impl<C: PartialEq, T> Barrier<C, T> {
    /// A barrier of `function` without groups.
    #[must_use]
    pub fn new(function: String, fan_in: FanIn, bounds: BarrierLimits) -> Self {
        let (groups, held) = (BTreeMap::new(), Load::default());
        Self { function, fan_in, bounds, groups, held, earliest: None }
    }

    /// Lets a part wait; the group when it is complete with it.
    ///
    /// The same call again (an attempt whose end its caller did not see) replaces the earlier one.
    ///
    /// # Errors
    /// When the part contradicts the function's annotation, the other parts, or itself, or when a bound is reached. The
    /// group that it names is as it was.
    pub fn add_part(
        &mut self,
        join: JoinRequest,
        part: WaitingPart<C, T>,
        now: u64,
    ) -> Result<Option<PartGroup<C, T>>, CallError> {
        let expected = self.check(&join, &part)?;
        let JoinRequest { run, key, part: number, .. } = join;
        let wait = Duration::from_millis(self.fan_in.timeout_ms);
        let fresh = PartGroup {
            key: key.clone(),
            expected,
            until: Deadline::at_ns(now).plus(wait),
            parts: BTreeMap::new(),
        };
        let group_key = (run, key);
        let group = self.groups.entry(group_key.clone()).or_insert(fresh);
        self.earliest =
            [self.earliest, part.deadline, Some(group.until)].into_iter().flatten().min();
        self.held = self.held.and(part.load);
        if let Some(earlier) = group.parts.insert(number, part) {
            self.held = self.held.without(earlier.load);
        }
        Ok(if group.is_complete() { self.take(&group_key) } else { None })
    }

    /// How many parts the group has, if `part` can be one of them.
    fn check(&self, join: &JoinRequest, part: &WaitingPart<C, T>) -> Result<u32, CallError> {
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
        let group = self.groups.get(&(join.run, key.clone()));
        if let Some(group) = group {
            if group.expected != expected {
                let (key, known) = (key.clone(), group.expected);
                return wrong(InvalidPart::OtherNumber { key, expected, known });
            }
            match group.parts.get(&number) {
                Some(earlier) if earlier.id == part.id => return Ok(expected),
                Some(_) => return wrong(InvalidPart::Here { key: key.clone(), number }),
                None => {}
            }
        }
        self.check_room(group.is_none(), part).map_err(Overload::from)?;
        Ok(expected)
    }

    fn check_room(&self, new_group: bool, part: &WaitingPart<C, T>) -> Result<(), PartsFull> {
        let BarrierLimits { groups, load: Load { requests, bytes, descriptors } } = self.bounds;
        let (function, held) = (self.function.clone(), self.held.and(part.load));
        if new_group && self.groups.len() >= groups {
            return Err(PartsFull::Groups { function, limit: groups });
        }
        if held.requests > requests {
            return Err(PartsFull::Parts { function, limit: requests });
        }
        if held.bytes > bytes {
            return Err(PartsFull::Bytes { function, limit: bytes });
        }
        if held.descriptors > descriptors {
            return Err(PartsFull::Descriptors { function, limit: descriptors });
        }
        Ok(())
    }

    /// Takes out a group.
    fn take(&mut self, group_key: &(RunId, String)) -> Option<PartGroup<C, T>> {
        let group = self.groups.remove(group_key)?;
        self.held = group.parts.values().fold(self.held, |held, part| held.without(part.load));
        Some(group)
    }

    /// Drops the parts that came over `connection`.
    pub fn forget(&mut self, connection: &C) {
        let held = &mut self.held;
        self.groups.retain(|_, group| {
            group.parts.retain(|_, part| {
                let stays = part.connection != *connection;
                if !stays {
                    *held = held.without(part.load);
                }
                stays
            });
            !group.parts.is_empty()
        });
    }

    /// Takes out a group whose timeout has passed, with a text that lists the missing parts.
    pub fn pop_over(&mut self, now: u64) -> Option<(PartGroup<C, T>, String)> {
        if !self.is_due(now) {
            return None;
        }
        let (group_key, _) = self.groups.iter().find(|(_, group)| group.until.has_passed(now))?;
        let group_key = group_key.clone();
        let group = self.take(&group_key)?;
        let waited = humantime::format_duration(Duration::from_millis(self.fan_in.timeout_ms));
        let text = group.describe(&format!("in {waited}"));
        Some((group, text))
    }

    /// Takes out a part whose caller has waited long enough, with a text that says what its group lacked. To be asked
    /// after [`Self::pop_over`], until there is none.
    pub fn pop_given_up(&mut self, now: u64) -> Option<(WaitingPart<C, T>, String)> {
        if !self.is_due(now) {
            return None;
        }
        let late = self.groups.iter().find_map(|(group_key, group)| {
            let late = group
                .parts
                .iter()
                .find(|(_, part)| part.deadline.is_some_and(|deadline| deadline.has_passed(now)));
            late.map(|(number, _)| (group_key.clone(), *number))
        });
        let Some((group_key, number)) = late else {
            self.earliest = self.first_deadline();
            return None;
        };
        let group = self.groups.get_mut(&group_key)?;
        let text = group.describe("before the caller's deadline");
        let part = group.parts.remove(&number)?;
        if group.parts.is_empty() {
            self.groups.remove(&group_key);
        }
        self.held = self.held.without(part.load);
        Some((part, text))
    }

    fn is_due(&self, now: u64) -> bool {
        self.earliest.is_some_and(|earliest| earliest.has_passed(now))
    }

    fn first_deadline(&self) -> Option<Deadline> {
        let first = |group: &PartGroup<C, T>| {
            group.parts.values().filter_map(|part| part.deadline).fold(group.until, Deadline::min)
        };
        self.groups.values().map(first).min()
    }

    /// Takes out everything.
    pub fn drain(&mut self) -> Vec<WaitingPart<C, T>> {
        self.held = Load::default();
        let groups = std::mem::take(&mut self.groups);
        groups.into_values().flat_map(|group| group.parts.into_values()).collect()
    }

    /// When to ask again for groups and parts that have waited long enough.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.earliest.filter(|_| !self.is_empty())
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}
