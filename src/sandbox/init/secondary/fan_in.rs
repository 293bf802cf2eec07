//! Parts of groups at the receiver: each waits in the barrier, and the group is one piece of work.

use nix::sys::resource::{Resource, getrlimit};

use crate::modes::local::Incoming;
use crate::modes::local::receiver::ConnectionId;
use crate::modes::{CallError, Overload, Payload};
use crate::sandbox::init::barrier::{Barrier, Bounds, Group, Join, Part, Refusal, Refused};
use crate::sandbox::init::work::{Parts, Reply, Work};
use crate::sandbox::terms;
use crate::vm::Module;
use crate::wire::control::{FunctionLaunch, Partial};

use super::Secondary;

/// Groups that may wait in one instance.
pub const GROUPS_MAX: usize = 1024;
/// Parts that may wait in one instance.
pub const WAITING_PARTS_MAX: usize = 4096;
/// Bytes of parts that may wait in one instance: what one linear memory can hold.
pub const WAITING_BYTES_MAX: u64 = 4 << 30;

/// Deadline of a caller that waits for ever.
const NEVER: u64 = u64::MAX;

/// The barrier of a function that has one.
pub(super) fn barrier(launch: &FunctionLaunch) -> Option<Barrier<ConnectionId, Box<Incoming>>> {
    let bounds = Bounds {
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
    /// Lets a part wait for the others of its group, which goes on when this was the last one.
    pub(super) fn take_part(&mut self, incoming: Box<Incoming>, now: u64) {
        let function = &self.sandbox.launch.identity.function;
        let invalid = |message: String| CallError::Invalid { message };
        let Some(barrier) = &mut self.barrier else {
            let error = terms::takes_no_parts(&self.sandbox.launch);
            return self.outbox.tell(&Reply::to(&incoming), &error);
        };
        let Some(join) = join(&incoming) else {
            let message = format!(
                "{function} has cwasi.fan-in: call it with a join key, as one part of a group"
            );
            return self.outbox.tell(&Reply::to(&incoming), &invalid(message));
        };
        match barrier.place(join, part(incoming, now), now) {
            Ok(None) => {}
            Ok(Some(group)) => self.handle_group(group, now),
            Err(Refused { part, refusal }) => {
                let error = match refusal {
                    Refusal::Contradiction(message) => invalid(message),
                    Refusal::Full(message) => Overload::Said(message).into(),
                };
                self.outbox.tell(&Reply::to(&part.item), &error);
            }
        }
    }

    /// One piece of work from now on. It may take as long as the most patient caller waits.
    fn handle_group(&mut self, group: Group<ConnectionId, Box<Incoming>>, now: u64) {
        let expected = group.expected();
        let parts = group.into_parts();
        let patience = parts.values().map(|part| part.deadline).max();
        let calls = parts.into_iter().map(|(number, part)| (number, part.item)).collect();
        if let Some(parts) = Parts::of(expected, calls) {
            let patience = patience.filter(|at| *at < NEVER);
            let deadline = terms::deadline(&self.sandbox.launch, patience, now);
            self.queue(Work::Group(parts), deadline);
        }
    }

    /// Ends groups whose time is over, and parts whose callers have waited long enough.
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
                        self.outbox.tell(&Reply::to(&part.item), &error);
                    }
                }
            }
        }
        while let Some((part, message)) =
            self.barrier.as_mut().and_then(|barrier| barrier.pop_given_up(now))
        {
            self.outbox.tell(&Reply::to(&part.item), &CallError::Late { message });
        }
    }

    /// No further part comes: those that wait have not run, and can go elsewhere.
    pub(super) fn refuse_parts(&mut self) {
        let waiting = self.barrier.as_mut().map(Barrier::drain).unwrap_or_default();
        for part in waiting {
            let ending = self.ending();
            self.outbox.tell(&Reply::to(&part.item), &ending);
        }
    }
}

/// Which group a call says it is part of.
fn join(incoming: &Incoming) -> Option<Join> {
    let join = incoming.request.join.as_ref()?;
    let run = incoming.request.run_id()?;
    Some(Join { run, key: join.key.clone(), parts: join.parts, part: join.part })
}

fn part(incoming: Box<Incoming>, now: u64) -> Part<ConnectionId, Box<Incoming>> {
    Part {
        connection: incoming.connection,
        id: incoming.id,
        deadline: terms::caller_deadline(&incoming.request, now).unwrap_or(NEVER),
        len: incoming.payload.len(),
        descriptors: match &incoming.payload {
            Payload::Inline(_) => 0,
            // A leased one comes with its token.
            Payload::Segment(segment) => 1 + usize::from(segment.token().is_some()),
        },
        item: incoming,
    }
}
