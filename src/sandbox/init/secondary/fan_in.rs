//! Fan-in in sandbox init: a part waits in the barrier, and a complete group becomes one piece of work.

use nix::sys::resource::{Resource, getrlimit};

use crate::init::barrier::{Barrier, BarrierLimits, PartGroup};
use crate::request_limits;
use crate::work::Work;
use cwasi_modes::CallError;
use cwasi_modes::local::IncomingRequest;
use cwasi_modes::local::load::Load;
use cwasi_vm::Module;
use cwasi_wire::control::{FunctionLaunch, Partial};

use super::Secondary;

/// Groups that may wait in one instance.
pub const GROUPS_MAX: usize = 1024;
/// Parts that may wait in one instance.
pub const WAITING_PARTS_MAX: usize = 4096;
/// Bytes of parts that may wait in one instance: what one linear memory can hold.
pub const WAITING_BYTES_MAX: u64 = 4 << 30;

/// The barrier of a function that has one.
pub(super) fn barrier(launch: &FunctionLaunch) -> Option<Barrier> {
    let bounds = BarrierLimits {
        groups: GROUPS_MAX,
        load: Load {
            messages: WAITING_PARTS_MAX,
            bytes: WAITING_BYTES_MAX,
            descriptors: descriptors_max(),
        },
    };
    Some(Barrier::new(launch.identity.function.clone(), launch.fan_in?, bounds))
}

/// Descriptors that parts may hold: half of all, the other half is for connections.
pub(super) fn descriptors_max() -> usize {
    let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    usize::try_from(soft / 2).unwrap_or(usize::MAX)
}

impl<M: Module> Secondary<'_, M> {
    /// Adds a part to its group. The last part completes the group, which is then queued as work.
    pub(super) fn take_part(&mut self, request: Box<IncomingRequest>, now: u64) {
        let key = request.key();
        let deadline = request_limits::caller_deadline(&request.request, now);
        let added = match &mut self.barrier {
            None => Err(request_limits::takes_no_parts(&self.sandbox.launch)),
            Some(barrier) => barrier.add_part(request, deadline, now),
        };
        match added {
            Ok(None) => {}
            Ok(Some(group)) => self.handle_group(group, now),
            Err(error) => {
                if matches!(error, CallError::Overloaded(_)) {
                    self.reports.refused += 1;
                }
                self.refuse([key], &error);
            }
        }
    }

    /// Queues a group as one piece of work, with the latest deadline of its callers.
    fn handle_group(&mut self, group: PartGroup, now: u64) {
        let PartGroup { expected, parts, .. } = group;
        let patience = parts.values().map(|part| part.deadline);
        let patience = patience.reduce(|one, other| Some(one?.max(other?))).flatten();
        let calls = parts.into_iter().map(|(number, part)| (number, part.request));
        let deadline = request_limits::deadline(&self.sandbox.launch, patience, now);
        if let Some(work) = Work::group(expected, deadline, calls) {
            self.queue(work);
        }
    }

    /// Ends groups whose timeout has passed, and parts whose callers' deadlines have passed.
    pub(super) fn expire_parts(&mut self, now: u64) {
        let Some(fan_in) = self.sandbox.launch.fan_in else { return };
        while let Some((group, text)) =
            self.barrier.as_mut().and_then(|barrier| barrier.pop_over(now))
        {
            match fan_in.partial {
                Partial::Deliver => {
                    self.complain(&format!("{text}; handled without them"));
                    self.handle_group(group, now);
                }
                Partial::Fail => {
                    self.complain(&text);
                    let calls = group.parts.into_values().map(|part| part.request.key());
                    self.refuse(calls, &CallError::Late { message: text });
                }
            }
        }
        let given_up = self.barrier.as_mut().map(|barrier| barrier.take_given_up(now));
        for (part, message) in given_up.unwrap_or_default() {
            self.refuse([part.request.key()], &CallError::Late { message });
        }
    }

    /// Refuses the waiting parts when the function ends. They have not run, so their callers can retry elsewhere.
    pub(super) fn refuse_parts(&mut self) {
        let waiting = self.barrier.as_mut().map(Barrier::drain).unwrap_or_default();
        self.refuse(waiting.into_iter().map(|part| part.request.key()), &self.ending());
    }
}
