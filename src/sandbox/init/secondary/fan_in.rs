//! Fan-in in sandbox init: a part waits in the barrier, and a complete group becomes one piece of work.

use nix::sys::resource::{Resource, getrlimit};

use crate::modes::causes::Invalid;
use crate::modes::local::{ConnectionId, IncomingRequest};
use crate::modes::{CallError, Overload, Payload};
use crate::sandbox::init::barrier::{
    Barrier, BarrierLimits, JoinRequest, PartGroup, RefusalReason, RefusedPart, WaitingPart,
};
use crate::sandbox::init::work::{GroupedCalls, ReplyTarget, Work};
use crate::sandbox::request_limits;
use crate::vm::Module;
use crate::wire::control::{FunctionLaunch, Partial};

use super::Secondary;

/// Groups that may wait in one instance.
pub const GROUPS_MAX: usize = 1024;
/// Parts that may wait in one instance.
pub const WAITING_PARTS_MAX: usize = 4096;
/// Bytes of parts that may wait in one instance: what one linear memory can hold.
pub const WAITING_BYTES_MAX: u64 = 4 << 30;

/// The barrier of a function that has one.
pub(super) fn barrier(
    launch: &FunctionLaunch,
) -> Option<Barrier<ConnectionId, Box<IncomingRequest>>> {
    let bounds = BarrierLimits {
        groups: GROUPS_MAX,
        parts: WAITING_PARTS_MAX,
        bytes: WAITING_BYTES_MAX,
        descriptors: descriptors_max(),
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
    pub(super) fn take_part(&mut self, incoming: Box<IncomingRequest>, now: u64) {
        let function = &self.sandbox.launch.identity.function;
        let Some(barrier) = &mut self.barrier else {
            let error = request_limits::takes_no_parts(&self.sandbox.launch);
            return self.send_queue.send_error(&ReplyTarget::to(&incoming), &error);
        };
        let Some(join) = join(&incoming) else {
            let error = Invalid::NoJoinKey { function: function.clone() }.into();
            return self.send_queue.send_error(&ReplyTarget::to(&incoming), &error);
        };
        match barrier.add_part(join, part(incoming, now), now) {
            Ok(None) => {}
            Ok(Some(group)) => self.handle_group(group, now),
            Err(RefusedPart { part, refusal }) => {
                let error = match refusal {
                    RefusalReason::Invalid(part) => Invalid::from(part).into(),
                    RefusalReason::Full(full) => {
                        self.reports.count_refused();
                        Overload::from(full).into()
                    }
                };
                self.send_queue.send_error(&ReplyTarget::to(&part.item), &error);
            }
        }
    }

    /// Queues a group as one piece of work, with the latest deadline of its callers.
    fn handle_group(&mut self, group: PartGroup<ConnectionId, Box<IncomingRequest>>, now: u64) {
        let expected = group.expected();
        let parts = group.into_parts();
        let patience = parts.values().map(|part| part.deadline);
        let patience = patience.reduce(|one, other| Some(one?.max(other?))).flatten();
        let calls = parts.into_iter().map(|(number, part)| (number, part.item)).collect();
        if let Some(parts) = GroupedCalls::of(expected, calls) {
            let deadline = request_limits::deadline(&self.sandbox.launch, patience, now);
            self.queue(Work::Group(parts), deadline);
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
                    for part in group.into_parts().into_values() {
                        let error = CallError::Late { message: text.clone() };
                        self.send_queue.send_error(&ReplyTarget::to(&part.item), &error);
                    }
                }
            }
        }
        while let Some((part, message)) =
            self.barrier.as_mut().and_then(|barrier| barrier.pop_given_up(now))
        {
            self.send_queue.send_error(&ReplyTarget::to(&part.item), &CallError::Late { message });
        }
    }

    /// Refuses the waiting parts when the function ends. They have not run, so their callers can retry elsewhere.
    pub(super) fn refuse_parts(&mut self) {
        let waiting = self.barrier.as_mut().map(Barrier::drain).unwrap_or_default();
        for part in waiting {
            let ending = self.ending();
            self.send_queue.send_error(&ReplyTarget::to(&part.item), &ending);
        }
    }
}

/// The group that a request names.
fn join(incoming: &IncomingRequest) -> Option<JoinRequest> {
    let join = incoming.request.join.as_ref()?;
    let run = incoming.request.run_id()?;
    Some(JoinRequest { run, key: join.key.clone(), parts: join.parts, part: join.part })
}

fn part(
    incoming: Box<IncomingRequest>,
    now: u64,
) -> WaitingPart<ConnectionId, Box<IncomingRequest>> {
    WaitingPart {
        connection: incoming.connection.id,
        id: incoming.id,
        deadline: request_limits::caller_deadline(&incoming.request, now),
        len: incoming.payload.len(),
        descriptors: match &incoming.payload {
            Payload::Inline(_) => 0,
            // A leased one comes with its token.
            Payload::Segment(segment) => 1 + usize::from(segment.token().is_some()),
        },
        item: incoming,
    }
}
