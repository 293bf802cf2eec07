//! The barrier of a fan-in: parts that wait for the others of their group. Pure: no I/O, no clock.
//!
//! A group is what arrived of one run of a workflow under one join key. It leaves as a whole: complete, or when
//! its time is over. A part leaves alone when its caller goes away or has waited long enough; a group without
//! parts is none. Invariants: no group here is complete or empty, and what they hold together is within
//! [`Bounds`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use cwasi_abi::{JOIN_KEY_MAX, PARTS_MAX};

use crate::wire::control::FanIn;
use crate::wire::ids::{CallId, RunId};

#[cfg(test)]
mod tests;

/// Most missing parts that a message lists by number.
const LISTED_MAX: usize = 16;
const MS: u64 = 1_000_000;

/// What may wait in one barrier.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Groups.
    pub groups: usize,
    /// Parts of all groups.
    pub parts: usize,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Descriptors of their payloads.
    pub descriptors: usize,
}

/// Which group a part belongs to, as its caller says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The run of the workflow.
    pub run: RunId,
    /// What the parts have in common.
    pub key: String,
    /// How many there are; 0 = the function's annotation says.
    pub parts: u32,
    /// The place of this one, from 0.
    pub part: u32,
}

/// A part that waits. `C` names the connection that it came over, `T` is its request.
#[derive(Debug)]
pub struct Part<C, T> {
    /// Where it came from.
    pub connection: C,
    /// Its call.
    pub id: CallId,
    /// When its caller stops waiting, in `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
    /// Bytes of its payload.
    pub len: u64,
    /// Descriptors that its payload holds.
    pub descriptors: usize,
    /// The request.
    pub item: T,
}

/// Parts that leave together.
#[derive(Debug)]
pub struct Group<C, T> {
    key: String,
    expected: u32,
    /// When it is no longer waited for.
    until: u64,
    parts: BTreeMap<u32, Part<C, T>>,
}

/// Why a part does not wait here; the group that it names is as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The call contradicts the function's annotation, the other parts, or itself.
    Contradiction(String),
    /// A bound is reached.
    Full(String),
}

/// A part that cannot wait.
#[derive(Debug)]
pub struct Refused<C, T> {
    /// As it came.
    pub part: Part<C, T>,
    /// Why.
    pub refusal: Refusal,
}

/// Groups that wait.
#[derive(Debug)]
pub struct Barrier<C, T> {
    function: String,
    fan_in: FanIn,
    bounds: Bounds,
    groups: BTreeMap<(RunId, String), Group<C, T>>,
    held: Held,
    /// No group and no part has waited long enough before this: what init asks about at each of its turns.
    earliest: u64,
}

/// What all groups hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    parts: usize,
    bytes: u64,
    descriptors: usize,
}

impl Held {
    fn add<C, T>(&mut self, part: &Part<C, T>) {
        self.parts += 1;
        self.bytes = self.bytes.saturating_add(part.len);
        self.descriptors += part.descriptors;
    }

    fn remove<C, T>(&mut self, part: &Part<C, T>) {
        self.parts -= 1;
        self.bytes = self.bytes.saturating_sub(part.len);
        self.descriptors -= part.descriptors;
    }
}

impl<C, T> Group<C, T> {
    /// How many parts make it complete.
    #[must_use]
    pub const fn expected(&self) -> u32 {
        self.expected
    }

    /// Its parts by number.
    #[must_use]
    pub fn into_parts(self) -> BTreeMap<u32, Part<C, T>> {
        self.parts
    }

    fn is_complete(&self) -> bool {
        u32::try_from(self.parts.len()) == Ok(self.expected)
    }

    /// For people: how much of it is here, when it arrived, and what is missing.
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
    pub const fn new(function: String, fan_in: FanIn, bounds: Bounds) -> Self {
        let held = Held { parts: 0, bytes: 0, descriptors: 0 };
        Self { function, fan_in, bounds, groups: BTreeMap::new(), held, earliest: u64::MAX }
    }

    /// Lets a part wait; the group when it is complete with it.
    ///
    /// The same call again (an attempt whose end its caller did not see) takes its own earlier place.
    ///
    /// # Errors
    /// Gives the part back when it cannot wait here.
    pub fn place(
        &mut self,
        join: Join,
        part: Part<C, T>,
        now: u64,
    ) -> Result<Option<Group<C, T>>, Refused<C, T>> {
        let expected = match self.check(&join, &part) {
            Ok(expected) => expected,
            Err(refusal) => return Err(Refused { part, refusal }),
        };
        let Join { run, key, part: number, .. } = join;
        let wait = self.fan_in.timeout_ms.saturating_mul(MS);
        let fresh = Group {
            key: key.clone(),
            expected,
            until: now.saturating_add(wait),
            parts: BTreeMap::new(),
        };
        let place = (run, key);
        let group = self.groups.entry(place.clone()).or_insert(fresh);
        self.earliest = self.earliest.min(part.deadline).min(group.until);
        self.held.add(&part);
        if let Some(earlier) = group.parts.insert(number, part) {
            self.held.remove(&earlier);
        }
        Ok(if group.is_complete() { self.take(&place) } else { None })
    }

    /// How many parts the group has, if `part` can be one of them.
    fn check(&self, join: &Join, part: &Part<C, T>) -> Result<u32, Refusal> {
        let (key, number, function) = (&join.key, join.part, &self.function);
        let wrong = |text: String| Err(Refusal::Contradiction(text));
        if !(1..=JOIN_KEY_MAX).contains(&key.len()) {
            return wrong(format!("a join key has 1 to {JOIN_KEY_MAX} bytes, not {}", key.len()));
        }
        let expected = match (self.fan_in.parts, join.parts) {
            (0, 0) => {
                return wrong(format!(
                    "{function} has cwasi.fan-in=caller: each call says how many parts there are"
                ));
            }
            (0, said) | (said, 0) => said,
            (annotated, said) if annotated == said => said,
            (annotated, said) => {
                return wrong(format!(
                    "the call says {said} parts, {function} has cwasi.fan-in={annotated}"
                ));
            }
        };
        if expected > PARTS_MAX {
            return wrong(format!("{expected} parts; a group has {PARTS_MAX} at most"));
        }
        if number >= expected {
            return wrong(format!("part {number} of {expected}: parts are numbered from 0"));
        }
        let group = self.groups.get(&(join.run, key.clone()));
        if let Some(group) = group {
            if group.expected != expected {
                let known = group.expected;
                return wrong(format!(
                    "the call says {expected} parts, an earlier one of `{key}` said {known}"
                ));
            }
            match group.parts.get(&number) {
                Some(earlier) if earlier.id == part.id => return Ok(expected),
                Some(_) => return wrong(format!("part {number} of `{key}` is here already")),
                None => {}
            }
        }
        self.check_room(group.is_none(), part).map_err(Refusal::Full).map(|()| expected)
    }

    fn check_room(&self, new_group: bool, part: &Part<C, T>) -> Result<(), String> {
        let Bounds { groups, parts, bytes, descriptors } = self.bounds;
        let function = &self.function;
        if new_group && self.groups.len() >= groups {
            return Err(format!("{groups} groups wait for parts at {function} already"));
        }
        if self.held.parts >= parts {
            return Err(format!("{parts} parts wait for others at {function} already"));
        }
        if self.held.bytes.saturating_add(part.len) > bytes {
            return Err(format!("the parts that wait at {function} have {bytes} bytes at most"));
        }
        if self.held.descriptors + part.descriptors > descriptors {
            return Err(format!(
                "large parts that wait at {function} hold {descriptors} descriptors at most: raise the container's RLIMIT_NOFILE"
            ));
        }
        Ok(())
    }

    /// Takes out a group.
    fn take(&mut self, place: &(RunId, String)) -> Option<Group<C, T>> {
        let group = self.groups.remove(place)?;
        group.parts.values().for_each(|part| self.held.remove(part));
        Some(group)
    }

    /// Drops the parts that came over `connection`.
    pub fn forget(&mut self, connection: &C) {
        let held = &mut self.held;
        self.groups.retain(|_, group| {
            group.parts.retain(|_, part| {
                let stays = part.connection != *connection;
                if !stays {
                    held.remove(part);
                }
                stays
            });
            !group.parts.is_empty()
        });
    }

    /// Takes out a group whose time is over, with a text that says what is missing.
    pub fn pop_over(&mut self, now: u64) -> Option<(Group<C, T>, String)> {
        if now < self.earliest {
            return None;
        }
        let (place, _) = self.groups.iter().find(|(_, group)| group.until <= now)?;
        let place = place.clone();
        let group = self.take(&place)?;
        let waited = humantime::format_duration(Duration::from_millis(self.fan_in.timeout_ms));
        let text = group.describe(&format!("in {waited}"));
        Some((group, text))
    }

    /// Takes out a part whose caller has waited long enough, with a text that says what its group lacked. To be asked
    /// after [`Self::pop_over`], until there is none.
    pub fn pop_given_up(&mut self, now: u64) -> Option<(Part<C, T>, String)> {
        if now < self.earliest {
            return None;
        }
        let late = self.groups.iter().find_map(|(place, group)| {
            let late = group.parts.iter().find(|(_, part)| part.deadline <= now);
            late.map(|(number, _)| (place.clone(), *number))
        });
        let Some((place, number)) = late else {
            self.earliest = self.first_deadline().unwrap_or(u64::MAX);
            return None;
        };
        let group = self.groups.get_mut(&place)?;
        let text = group.describe("before the caller's deadline");
        let part = group.parts.remove(&number)?;
        if group.parts.is_empty() {
            self.groups.remove(&place);
        }
        self.held.remove(&part);
        Some((part, text))
    }

    fn first_deadline(&self) -> Option<u64> {
        let first = |group: &Group<C, T>| {
            group.parts.values().map(|part| part.deadline).fold(group.until, u64::min)
        };
        self.groups.values().map(first).min()
    }

    /// Takes out everything.
    pub fn drain(&mut self) -> Vec<Part<C, T>> {
        self.held = Held::default();
        let groups = std::mem::take(&mut self.groups);
        groups.into_values().flat_map(|group| group.parts.into_values()).collect()
    }

    /// When to ask again for groups and parts that have waited long enough.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.earliest)
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}
