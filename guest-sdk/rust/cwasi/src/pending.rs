//! Calls in flight: started now, awaited later.

use std::fmt;
use std::time::Duration;

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, Outcome};

use crate::ErrorKind;
use crate::call::{CallError, Response, ended, receive_in_place};
use crate::dispatch::{self, Join};

/// Calls the function `target` with `payload` and does not wait: the call is on its way when this returns, and the
/// payload is the caller's again. Large payloads that go to several functions are best made in a
/// [`Region`](crate::Region), which is never copied.
///
/// [`Pending::wait`] returns every error.
///
/// # Example
/// ```
/// # fn example(frame: &[u8]) -> Result<(), cwasi::CallError> {
/// let cars = cwasi::start("find-cars", frame);
/// let people = cwasi::start("find-people", frame);
/// let (cars, people) = (cars.wait()?, people.wait()?);
/// # Ok(()) }
/// ```
pub fn start(target: &str, payload: &[u8]) -> Pending {
    CallOptions::new().start(target, payload)
}

/// How a call is made, besides target and payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallOptions<'a> {
    join: Option<(&'a str, u32, u32)>,
}

impl<'a> CallOptions<'a> {
    /// A call like any other.
    #[must_use]
    pub const fn new() -> Self {
        Self { join: None }
    }

    /// Makes the call part `part` (from 0) of `parts` that the callee handles together: those of one run of the
    /// workflow with the same `key` (1 to 255 bytes). `parts` 0: the callee's annotation says how many there are.
    #[must_use]
    pub const fn join(self, key: &'a str, parts: u32, part: u32) -> Self {
        Self { join: Some((key, parts, part)) }
    }

    /// [`start`] with these options.
    pub fn start(self, target: &str, payload: &[u8]) -> Pending {
        if self.join.is_some_and(|(key, ..)| key.is_empty()) {
            let message = "the key of calls that are handled together is empty".to_owned();
            return Pending(State::Over(Err(CallError::new(ErrorKind::InvalidArgument, message))));
        }
        let join = self.join.map(|(key, parts, part)| Join { key, parts, part });
        Pending(match dispatch::start(target, payload, join.as_ref()) {
            Ok(handle) => State::Flying(handle),
            Err(kind) => State::Over(Err(CallError::new(kind, refusal(kind)))),
        })
    }
}

fn refusal(kind: ErrorKind) -> String {
    match kind {
        ErrorKind::TooManyHandles => {
            format!("{CALLS_IN_FLIGHT_MAX} calls are in flight; wait for some of them first")
        }
        ErrorKind::InvalidArgument => {
            "a join needs a key of 1 to 255 bytes, and a part that is one of its parts".to_owned()
        }
        _ => String::new(),
    }
}

/// A call that was started. Dropping it gives the call up; it may run all the same.
#[must_use = "a call that is dropped is given up"]
pub struct Pending(State);

enum State {
    Flying(u32),
    /// As the host gave it.
    Ended(Outcome),
    Over(Result<Response, CallError>),
    Taken,
}

impl Pending {
    /// Waits for the call's end.
    ///
    /// # Errors
    /// As [`call`](crate::call()).
    pub fn wait(mut self) -> Result<Response, CallError> {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Flying(handle) => match dispatch::wait(&[handle], None) {
                Ok((_, outcome)) => end(outcome),
                Err(kind) => {
                    self.0 = State::Flying(handle);
                    Err(CallError::new(kind, String::new()))
                }
            },
            State::Ended(outcome) => end(outcome),
            State::Over(ended) => ended,
            State::Taken => Err(CallError::new(ErrorKind::BadHandle, String::new())),
        }
    }

    /// Waits for the call's end, at most for `time`; true when it has ended.
    #[must_use]
    pub fn ends_within(&mut self, time: Duration) -> bool {
        let State::Flying(handle) = self.0 else { return true };
        // The largest number means "without a bound".
        let ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX).min(u32::MAX - 1);
        match dispatch::wait(&[handle], Some(ms)) {
            Ok((_, outcome)) => {
                self.0 = State::Ended(outcome);
                true
            }
            Err(_) => false,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        match self.0 {
            State::Flying(handle) => dispatch::forget(handle),
            State::Ended(outcome) => drop(end(outcome)),
            State::Over(_) | State::Taken => {}
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = !matches!(self.0, State::Flying(_));
        f.debug_struct("Pending").field("over", &over).finish()
    }
}

fn end(outcome: Outcome) -> Result<Response, CallError> {
    ended((dispatch::status(&outcome), outcome), receive_in_place)
}

/// Waits for all calls; their ends in the order of `calls`, failed ones among them.
pub fn join_all(calls: impl IntoIterator<Item = Pending>) -> Vec<Result<Response, CallError>> {
    in_order(as_completed(calls))
}

/// Puts ends into the order of their calls.
pub(crate) fn in_order(
    ends: impl Iterator<Item = (usize, Result<Response, CallError>)>,
) -> Vec<Result<Response, CallError>> {
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by_key(|(place, _)| *place);
    ends.into_iter().map(|(_, end)| end).collect()
}

/// The ends of all calls as they come, each with its place in `calls`, failed ones among them. Dropping this gives the
/// others up.
pub fn as_completed(calls: impl IntoIterator<Item = Pending>) -> AsCompleted {
    let mut all = AsCompleted::default();
    for (place, call) in calls.into_iter().enumerate() {
        all.push(place, call);
    }
    all
}

/// See [`as_completed`].
#[derive(Debug, Default)]
pub struct AsCompleted {
    flying: Vec<Flying>,
    /// Their handles, in the same order: what the host is asked about.
    handles: Vec<u32>,
    /// Calls that were over before they were waited for, the next one last.
    over: Vec<(usize, Pending)>,
}

/// A call of several.
#[derive(Debug)]
struct Flying {
    place: usize,
    call: Pending,
}

impl AsCompleted {
    /// One more call.
    pub(crate) fn push(&mut self, place: usize, call: Pending) {
        if let State::Flying(handle) = call.0 {
            self.handles.push(handle);
            self.flying.push(Flying { place, call });
        } else {
            self.over.insert(0, (place, call));
        }
    }

    /// How many have not been given yet.
    #[must_use]
    pub(crate) fn open(&self) -> usize {
        self.flying.len() + self.over.len()
    }
}

impl Iterator for AsCompleted {
    type Item = (usize, Result<Response, CallError>);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((place, call)) = self.over.pop() {
            return Some((place, call.wait()));
        }
        if self.flying.is_empty() {
            return None;
        }
        let (index, ended) = match dispatch::wait(&self.handles, None) {
            Ok((index, outcome)) => (index, Ok(outcome)),
            // The host does not wait: the first call is given up, so that this ends.
            Err(kind) => (0, Err(CallError::new(kind, String::new()))),
        };
        self.handles.remove(index);
        let Flying { place, mut call } = self.flying.remove(index);
        if ended.is_ok() {
            call.0 = State::Taken;
        }
        Some((place, ended.and_then(end)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.open(), Some(self.open()))
    }
}

impl ExactSizeIterator for AsCompleted {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::script;

    fn kinds(ends: &[Result<Response, CallError>]) -> Vec<ErrorKind> {
        ends.iter()
            .map(|end| end.as_ref().map_or_else(CallError::kind, |_| ErrorKind::Ok))
            .collect()
    }

    #[test]
    fn ends_are_put_in_order() {
        script(|script| script.from_last = vec![0, 1, 2]);
        let calls = ["a", "trapped", "b", "full"].map(|target| start(target, b""));
        let ends: Vec<_> = as_completed(calls).collect();
        let places: Vec<_> = ends.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [3, 0, 1, 2], "what was refused is over first");
        let calls = ["a", "trapped", "b", "full"].map(|target| start(target, b""));
        let ends = join_all(calls);
        let expected =
            [ErrorKind::Ok, ErrorKind::Trapped, ErrorKind::Ok, ErrorKind::TooManyHandles];
        assert_eq!(kinds(&ends), expected);
        assert!(ends[3].as_ref().unwrap_err().message().contains("1024"));
        assert_eq!(script(|script| (script.open.len(), script.forgotten)), (0, 0));
    }

    #[test]
    fn dropped_calls_are_cancelled() {
        drop(start("a", b""));
        assert_eq!(script(|script| (script.open.len(), script.forgotten)), (0, 1));
        let mut call = start("a", b"");
        assert!(call.ends_within(Duration::ZERO) && call.ends_within(Duration::MAX));
        drop(call);
        assert!(start("a", b"").wait().is_ok());
        let mut some = as_completed([start("a", b""), start("b", b"")]);
        assert_eq!(some.len(), 2);
        some.next();
        drop(some);
        assert_eq!(script(|script| (script.open.len(), script.forgotten)), (0, 2));
    }

    #[test]
    fn a_host_that_does_not_wait_ends_every_call() {
        let calls = [start("a", b""), start("b", b"")];
        script(|script| script.open.clear());
        let bad = ErrorKind::BadHandle;
        assert_eq!(kinds(&join_all(calls)), [bad, bad]);
    }

    #[test]
    fn parts_name_their_key_and_number() {
        let call = CallOptions::new().join("frame-7", 3, 1).start("f", b"");
        assert!(call.wait().is_ok());
        assert_eq!(script(|script| script.joins.clone()), [(7, 3, 1)]);
        let refused = CallOptions::new().join("", 3, 1).start("f", b"").wait();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
