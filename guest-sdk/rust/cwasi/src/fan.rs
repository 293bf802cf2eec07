//! Fan-out: many calls, a bounded number of them at a time.

use cwasi_abi::{CALLS_IN_FLIGHT_MAX, INLINE_MAX};

use crate::call::{CallError, Response};
use crate::pending::{AsCompleted, CallOptions, in_order};
use crate::region::{Region, SealedRegion};

/// Calls many functions, or one function many times. Each item is a target and its payload. Calls start while results
/// are taken, so `calls` may make its payloads one by one.
///
/// # Example
/// ```
/// # fn example(frames: &[cwasi::SealedRegion]) {
/// let calls = frames.iter().map(|frame| ("find-cars", frame));
/// for (number, cars) in cwasi::fan_out(calls).limit(8).as_completed() {
///     match cars {
///         Ok(cars) => println!("frame {number}: {} bytes", cars.len()),
///         Err(error) => println!("frame {number}: {error}"), // the others go on
///     }
/// }
/// # }
/// ```
pub fn fan_out<I, T, P>(calls: I) -> FanOut<I::IntoIter>
where
    I: IntoIterator<Item = (T, P)>,
    T: AsRef<str>,
    P: AsRef<[u8]>,
{
    FanOut { calls: calls.into_iter(), limit: CALLS_IN_FLIGHT_MAX, join: None }
}

/// [`fan_out`] of one payload to many functions. Copies a large payload once for all calls, and a sealed [`Region`]
/// not at all.
///
/// # Example
/// ```
/// # fn example(picture: &[u8]) {
/// let found = cwasi::broadcast(["find-cars", "find-people"], picture).in_order();
/// # }
/// ```
pub fn broadcast<'a, I, T>(
    targets: I,
    payload: impl Into<Shared<'a>>,
) -> FanOut<impl Iterator<Item = (T, Shared<'a>)>>
where
    I: IntoIterator<Item = T>,
    T: AsRef<str>,
{
    let payload = payload.into().in_a_region();
    fan_out(targets.into_iter().map(move |target| (target, payload.clone())))
}

/// A payload of several calls.
#[derive(Clone, Debug)]
pub struct Shared<'a>(Kept<'a>);

#[derive(Clone, Debug)]
enum Kept<'a> {
    Bytes(&'a [u8]),
    Region(&'a SealedRegion),
    Copied(std::rc::Rc<SealedRegion>),
}

impl Shared<'_> {
    /// Copies a large payload into a region, which all calls share.
    fn in_a_region(self) -> Self {
        match self.0 {
            Kept::Bytes(bytes) if bytes.len() > INLINE_MAX => {
                let mut region = Region::with_len(bytes.len());
                region.copy_from_slice(bytes);
                Self(Kept::Copied(std::rc::Rc::new(region.seal())))
            }
            _ => self,
        }
    }
}

impl AsRef<[u8]> for Shared<'_> {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Kept::Bytes(bytes) => bytes,
            Kept::Region(region) => region,
            Kept::Copied(region) => region,
        }
    }
}

impl<'a> From<&'a [u8]> for Shared<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Kept::Bytes(bytes))
    }
}

impl<'a, const LEN: usize> From<&'a [u8; LEN]> for Shared<'a> {
    fn from(bytes: &'a [u8; LEN]) -> Self {
        Self(Kept::Bytes(bytes))
    }
}

impl<'a> From<&'a Vec<u8>> for Shared<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self(Kept::Bytes(bytes))
    }
}

impl<'a> From<&'a SealedRegion> for Shared<'a> {
    fn from(region: &'a SealedRegion) -> Self {
        Self(Kept::Region(region))
    }
}

/// Calls of a fan-out; see [`fan_out`].
#[derive(Debug)]
#[must_use = "nothing is called before the results are taken"]
pub struct FanOut<I> {
    calls: I,
    limit: usize,
    join: Option<(String, u32)>,
}

impl<I, T, P> FanOut<I>
where
    I: Iterator<Item = (T, P)>,
    T: AsRef<str>,
    P: AsRef<[u8]>,
{
    /// Allows at most `limit` calls at a time, from 1 to 1024 (the default).
    pub fn limit(self, limit: usize) -> Self {
        Self { limit: limit.clamp(1, CALLS_IN_FLIGHT_MAX), ..self }
    }

    /// Makes the calls the `parts` parts of one group, in their order (see [`CallOptions::join`]). All of them have
    /// to run at a time: with a limit below `parts` none ends.
    pub fn join(self, key: &str, parts: u32) -> Self {
        Self { join: Some((key.to_owned(), parts)), ..self }
    }

    /// All results in the order of the calls, failed ones included.
    pub fn in_order(self) -> Vec<Result<Response, CallError>> {
        in_order(self.as_completed())
    }

    /// All results as they come, each with the index of its call, failed ones included.
    pub fn as_completed(self) -> Completed<I> {
        Completed { fan: self, started: 0, running: AsCompleted::default() }
    }
}

/// See [`FanOut::as_completed`].
#[derive(Debug)]
pub struct Completed<I> {
    fan: FanOut<I>,
    started: usize,
    running: AsCompleted,
}

impl<I, T, P> Iterator for Completed<I>
where
    I: Iterator<Item = (T, P)>,
    T: AsRef<str>,
    P: AsRef<[u8]>,
{
    type Item = (usize, Result<Response, CallError>);

    fn next(&mut self) -> Option<Self::Item> {
        while self.running.open() < self.fan.limit {
            let Some((target, payload)) = self.fan.calls.next() else { break };
            let place = self.started;
            self.started += 1;
            let options = match &self.fan.join {
                Some((key, parts)) => {
                    CallOptions::new().join(key, *parts, u32::try_from(place).unwrap_or(u32::MAX))
                }
                None => CallOptions::new(),
            };
            self.running.push(place, options.start(target.as_ref(), payload.as_ref()));
        }
        self.running.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::dispatch::script;

    #[test]
    fn calls_in_flight_are_limited_and_every_end_returned() {
        for (limit, most) in [(1, 1), (3, 3), (0, 1), (100, 10)] {
            script(|script| *script = Default::default());
            let calls = (0..10).map(|number| (if number == 4 { "failed" } else { "f" }, b"x"));
            let ends = fan_out(calls).limit(limit).in_order();
            assert_eq!(ends.len(), 10);
            for (place, end) in ends.iter().enumerate() {
                let kind = end.as_ref().map_or_else(CallError::kind, |_| ErrorKind::Ok);
                let expected = if place == 4 { ErrorKind::Failed } else { ErrorKind::Ok };
                assert_eq!(kind, expected, "{place}");
            }
            assert_eq!(script(|script| (script.started, script.most_open)), (10, most));
        }
    }

    #[test]
    fn dropped_fan_outs_cancel_their_calls() {
        let mut ends = fan_out((0..10).map(|_| ("f", b"x"))).limit(4).as_completed();
        assert!(ends.next().is_some());
        drop(ends);
        assert_eq!(script(|script| (script.started, script.forgotten)), (4, 3));
    }

    #[test]
    fn the_calls_of_a_join_are_its_parts_in_order() {
        let ends = fan_out((0..3).map(|_| ("f", b"x"))).join("frame", 3).in_order();
        assert!(ends.iter().all(Result::is_ok));
        assert_eq!(script(|script| script.joins.clone()), [(5, 3, 0), (5, 3, 1), (5, 3, 2)]);
    }

    #[test]
    fn a_large_payload_is_copied_once_and_a_region_never() {
        let large = vec![7; INLINE_MAX + 1];
        let shared = Shared::from(&large).in_a_region();
        let twin = shared.clone();
        assert_eq!(shared.as_ref(), large);
        assert_eq!(shared.as_ref().as_ptr(), twin.as_ref().as_ptr());
        assert_ne!(shared.as_ref().as_ptr(), large.as_ptr());
        let region = Region::with_len(INLINE_MAX + 1).seal();
        assert_eq!(Shared::from(&region).in_a_region().as_ref().as_ptr(), region.as_ptr());
        let small = Shared::from(&large[1..]).in_a_region();
        assert_eq!(small.as_ref().as_ptr(), large[1..].as_ptr());
        assert_eq!(broadcast(["a", "failed"], &large).in_order().len(), 2);
    }
}
