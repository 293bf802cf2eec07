//! Fan-in in sandbox init: a part waits in the barrier, and a complete group becomes work for one worker.

use nix::sys::resource::{Resource, getrlimit};

use crate::init::barrier::{Barrier, BarrierLimits, PartGroup};
use crate::request_limits;
use crate::work::Work;
use cwasi_modes::CallError;
use cwasi_modes::local::load::Load;
use cwasi_modes::local::{CallKey, IncomingRequest};
use cwasi_sys::clock::Deadline;
use cwasi_wire::control::{FunctionLaunch, Partial};

use super::caller_errors::CallerErrors;

/// Groups that may wait in one instance.
pub const GROUPS_MAX: usize = 1024;
/// Parts that may wait in one instance.
pub const WAITING_PARTS_MAX: usize = 4096;
/// Bytes of parts that may wait in one instance: what one linear memory can hold.
pub const WAITING_BYTES_MAX: u64 = 4 << 30;

/// Descriptors that parts may hold: half of all, the other half is for connections.
pub(super) fn descriptors_max() -> usize {
    let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    usize::try_from(soft / 2).unwrap_or(usize::MAX)
}

/// The waiting groups of a function with `cwasi.fan-in`.
pub(super) struct Groups<'a> {
    pub barrier: Barrier,
    launch: &'a FunctionLaunch,
    partial: Partial,
}

/// Groups and parts that wait no longer.
#[derive(Default)]
pub(super) struct Expired {
    /// Groups that are handled without their missing parts.
    pub work: Vec<Work>,
    /// Calls that end with an error.
    pub failed: Vec<(Vec<CallKey>, CallError)>,
}

impl<'a> Groups<'a> {
    /// `None` for functions without fan-in.
    pub fn of(launch: &'a FunctionLaunch) -> Option<Self> {
        let bounds = BarrierLimits {
            groups: GROUPS_MAX,
            load: Load {
                messages: WAITING_PARTS_MAX,
                bytes: WAITING_BYTES_MAX,
                descriptors: descriptors_max(),
            },
        };
        let fan_in = launch.fan_in?;
        let barrier = Barrier::new(launch.identity.function.clone(), fan_in, bounds);
        Some(Self { barrier, launch, partial: fan_in.partial })
    }

    /// Adds a part to its group. The last part completes the group.
    ///
    /// # Errors
    /// The part's error if it is not taken.
    pub fn add(
        &mut self,
        request: Box<IncomingRequest>,
        now: u64,
    ) -> Result<Option<Work>, CallError> {
        let deadline = request_limits::caller_deadline(&request.request, now);
        let complete = self.barrier.add_part(request, deadline, now)?;
        Ok(complete.and_then(|group| self.work(group, now)))
    }

    /// A group as work, with the latest deadline of its callers.
    fn work(&self, group: PartGroup, now: u64) -> Option<Work> {
        let PartGroup { expected, parts, .. } = group;
        let callers = parts.values().map(|part| part.deadline);
        let caller = callers.reduce(|one, other| Some(one?.max(other?))).flatten();
        let calls = parts.into_iter().map(|(number, part)| (number, part.request));
        Work::group(expected, request_limits::deadline(self.launch, caller, now), calls)
    }

    /// Takes out groups whose timeout has passed, and parts whose callers' deadlines have passed.
    pub fn take_expired(&mut self, now: u64) -> Expired {
        let mut expired = Expired::default();
        let errors = CallerErrors::of(self.launch);
        while let Some((group, text)) = self.barrier.pop_over(now) {
            match self.partial {
                Partial::Deliver => {
                    errors.log(&format!("{text}; handled without them"));
                    expired.work.extend(self.work(group, now));
                }
                Partial::Fail => {
                    errors.log(&text);
                    let calls = group.parts.into_values().map(|part| part.request.key());
                    expired.failed.push((calls.collect(), CallError::Late { message: text }));
                }
            }
        }
        for (part, message) in self.barrier.take_given_up(now) {
            expired.failed.push((vec![part.request.key()], CallError::Late { message }));
        }
        expired
    }

    pub fn next_deadline(&self) -> Option<Deadline> {
        self.barrier.next_deadline()
    }
}
