//! A secondary's worker: one request after the other, each in an instance that was made before it came.

use crate::modes::{CallError, Payload};
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::stderr;
use crate::sys::clock::monotonic_ns;
use crate::vm::reactor::{self, Ahead, Handled, Input, Kept};
use crate::vm::{Instance, Module, Start, VmError};
use crate::wire::control::{Entry, FunctionLaunch, Isolation};

use super::command::{self, Stdio};
use super::requests::{Ended, Received, Requests, Task};
use super::{Seat, Worker};

/// Exit code when init is gone or speaks another language.
const EXIT_NO_INIT: i32 = 1;

/// Serves until init closes the socket; returns the exit code.
pub fn run<M: Module>(mut worker: Worker<'_, M>, seat: Seat<'_>) -> i32 {
    let stdio = match Stdio::new() {
        Ok(stdio) => stdio,
        Err(error) => return worker.start_failed(&error),
    };
    let mut requests = match Requests::new(&worker, seat) {
        Ok(requests) => requests,
        Err(error) => return worker.start_failed(&error),
    };
    let mut ahead = Ahead::within(worker.launch.memory_max);
    let mut next = match Ready::fresh(&mut worker, &mut ahead) {
        Ok(ready) => Ok(ready),
        Err(error) => return worker.start_failed(&error),
    };
    requests.settle();
    if !worker.tell(&WorkerMessage::Ready) {
        return EXIT_NO_INIT;
    }
    loop {
        let task = match requests.next(&worker) {
            Ok(task) => task,
            Err(Ended::Init) => return 0,
            Err(Ended::Malformed(what)) => {
                stderr::try_line(&format!("{}: {what}", worker.launch.identity.function));
                return EXIT_NO_INIT;
            }
        };
        let used = serve(&mut worker, &stdio, next, &mut ahead, &task);
        drop(task);
        if !requests.done(&worker) {
            return EXIT_NO_INIT;
        }
        // Ahead of the next request; if that is here already, it waits no longer than it would anyway.
        next = match used {
            Used::Kept(again) => again.again(&mut worker, &mut ahead),
            Used::Over(instance) => {
                // After whoever waits for this processor with a request that is under way.
                let _never_fails = nix::sched::sched_yield();
                let began = monotonic_ns();
                let ready = Ready::after(instance, &mut worker, &mut ahead);
                requests.prepared(monotonic_ns().saturating_sub(began));
                ready
            }
        };
    }
}

/// An instance that waits for its request, the first or the next.
struct Ready<I> {
    instance: I,
    kept: Kept,
    /// What `kept` was before the first request.
    first: Kept,
    /// What the guest was asked for ahead of it.
    ahead: Ahead,
    /// The shortest payload that not even a fresh instance had memory for, in bytes.
    too_long: Option<u64>,
}

/// What is left of an instance, once its request is answered.
enum Used<I> {
    /// All of it, for the next request.
    Kept(Ready<I>),
    /// What the next request must not see; there may be nothing.
    Over(Option<Ready<I>>),
}

impl<I: Instance> Ready<I> {
    /// A fresh one. Where its guest does not survive being asked for a place ahead, no other is.
    fn fresh<M: Module<Instance = I>>(
        worker: &mut Worker<'_, M>,
        ahead: &mut Ahead,
    ) -> Result<Self, VmError> {
        match Self::asked(worker, *ahead) {
            Err(_) if !ahead.is_empty() => {
                *ahead = Ahead::default();
                Self::asked(worker, *ahead)
            }
            made => made,
        }
    }

    /// A fresh one whose guest was asked for a place, if there is to be one.
    fn asked<M: Module<Instance = I>>(
        worker: &mut Worker<'_, M>,
        ahead: Ahead,
    ) -> Result<Self, VmError> {
        let mut instance = worker.module.instantiate(&worker.spec, &mut worker.host)?;
        let mut kept = Kept::default();
        // An instance that is kept may have something in its last payload's place.
        let renews = worker.launch.isolation != Isolation::Instance;
        let ahead = if renews { ahead } else { Ahead::default() };
        if worker.launch.entry == Entry::Reactor {
            reactor::prepare(&mut instance, &mut kept, ahead, &mut worker.host)?;
        }
        match worker.launch.isolation {
            Isolation::Request => instance.remember(Start::Alike(ahead.len())),
            Isolation::Snapshot => instance.remember(Start::Snapshot),
            Isolation::Instance => {}
        }
        Ok(Self { instance, kept, first: kept, ahead, too_long: None })
    }

    /// This one, ready for another request; or a fresh one, where this one's guest does not survive that or fills its memory.
    fn again<M: Module<Instance = I>>(
        mut self,
        worker: &mut Worker<'_, M>,
        ahead: &mut Ahead,
    ) -> Result<Self, VmError> {
        if !self.kept.is_used() {
            return Ok(self);
        }
        let host = &mut worker.host;
        let prepared =
            reactor::give_back(&mut self.instance, &mut self.kept, host).and_then(|()| {
                reactor::prepare(&mut self.instance, &mut self.kept, Ahead::default(), host)
            });
        match prepared {
            Ok(()) if !self.instance.is_nearly_full() => return Ok(self),
            Ok(()) => {}
            Err(error) => {
                let function = &worker.launch.identity.function;
                stderr::try_line(&format!("{function}: its instance is replaced: {error}"));
            }
        }
        drop(self);
        Self::fresh(worker, ahead)
    }

    /// Puts a fresh instance in its place, which has memory for a payload that needs a block of `needed` bytes; false when
    /// a fresh one has not, and then nothing is changed.
    fn replace<M: Module<Instance = I>>(
        &mut self,
        worker: &mut Worker<'_, M>,
        ahead: &mut Ahead,
        needed: u64,
    ) -> Result<bool, VmError> {
        // An instance that is not kept was asked for a place ahead: the fresh one is not.
        if worker.launch.isolation != Isolation::Instance {
            *ahead = Ahead::default();
            *self = Self::fresh(worker, ahead)?;
            return Ok(true);
        }
        if self.too_long.is_some_and(|too_long| needed >= too_long) {
            return Ok(false);
        }
        let mut fresh = Self::fresh(worker, ahead)?;
        if reactor::reserve(&mut fresh.instance, &mut fresh.kept, needed, &mut worker.host)? {
            *self = fresh;
            return Ok(true);
        }
        self.too_long = Some(needed);
        Ok(false)
    }

    /// One that is as a fresh one: `used` itself where that can be, which takes a fraction of making one.
    fn after<M: Module<Instance = I>>(
        used: Option<Self>,
        worker: &mut Worker<'_, M>,
        ahead: &mut Ahead,
    ) -> Result<Self, VmError> {
        if let Some(mut ready) = used
            && ready.ahead == *ahead
        {
            if ready.instance.renew() {
                ready.kept = ready.first;
                return Ok(ready);
            }
            if let Some(reason) = ready.instance.not_renewed() {
                worker.tell_not_renewed(reason);
            }
        }
        Self::fresh(worker, ahead)
    }
}

/// Runs one request and answers it.
fn serve<M: Module>(
    worker: &mut Worker<'_, M>,
    stdio: &Stdio,
    ready: Result<Ready<M::Instance>, VmError>,
    ahead: &mut Ahead,
    task: &Task,
) -> Used<M::Instance> {
    if task.deadline.is_some_and(|deadline| deadline <= monotonic_ns()) {
        let target = worker.launch.identity.function.clone();
        task.answer(&Err(CallError::Timeout { target }));
        return ready.map_or(Used::Over(None), Used::Kept);
    }
    let mut ready = match ready {
        Ok(ready) => ready,
        Err(error) => {
            let message = super::super::builder::chain(&error);
            task.answer(&Err(CallError::Failed { message }));
            return Used::Over(None);
        }
    };
    let mut reusable = false;
    worker.host.begin(task.context.clone());
    if let Some(pool) = &worker.spec.pool {
        // Where the answer cannot be lent, a region of the pool would have to be copied.
        pool.set_lending(task.replies.lends());
    }
    match (&worker.launch.entry, &task.input) {
        (Entry::Reactor, received) => {
            let input = match received {
                Received::Whole(payload) => Input::Whole(payload),
                Received::Parts { expected, parts } => Input::Parts { expected: *expected, parts },
            };
            reusable = handle(worker, &mut ready, ahead, input, task);
        }
        (Entry::Command { export }, Received::Whole(payload)) => {
            let done = command::run(
                &mut ready.instance,
                export,
                payload,
                &mut worker.host,
                stdio,
                worker.launch,
            );
            task.answer(&done);
        }
        // The coordinator starts no command with cwasi.fan-in.
        (Entry::Command { .. }, Received::Parts { .. }) => {
            let message = "a command takes no parts".to_owned();
            task.answer(&Err(CallError::Internal { message }));
        }
    }
    worker.host.end();
    if reusable && worker.launch.isolation == Isolation::Instance {
        Used::Kept(ready)
    } else {
        Used::Over(Some(ready))
    }
}

/// Runs a reactor's handler and answers; false when its instance is in no state that it knows. Where the guest has no
/// memory for the payload, but a fresh one might, a fresh one gets it: once.
fn handle<M: Module>(
    worker: &mut Worker<'_, M>,
    ready: &mut Ready<M::Instance>,
    ahead: &mut Ahead,
    input: Input<'_>,
    task: &Task,
) -> bool {
    let handled =
        reactor::handle_again(&mut ready.instance, &mut ready.kept, input, &mut worker.host);
    let Some(needed) = ready.kept.crowded_out() else {
        return conclude(worker.launch, task, handled, ready.kept, ahead);
    };
    let Handled::Failed(no_memory) = handled else { return false };
    match ready.replace(worker, ahead, needed) {
        Ok(true) => {
            let handled = reactor::handle_again(
                &mut ready.instance,
                &mut ready.kept,
                input,
                &mut worker.host,
            );
            conclude(worker.launch, task, handled, ready.kept, ahead)
        }
        // The instance is as it was.
        Ok(false) => {
            task.answer(&Err(CallError::Failed { message: no_memory }));
            true
        }
        Err(error) => {
            let message = super::super::builder::chain(&error);
            task.answer(&Err(CallError::Failed { message }));
            false
        }
    }
}

/// Answers; false when the instance is in no state that it knows.
fn conclude(
    launch: &FunctionLaunch,
    task: &Task,
    handled: Handled<'_>,
    kept: Kept,
    ahead: &mut Ahead,
) -> bool {
    // After a trap or an exit.
    let known = matches!(handled, Handled::Answered(_) | Handled::InPlace(_) | Handled::Failed(_));
    answer_handled(launch, task, handled);
    ahead.learn(kept.needed());
    known
}

fn answer_handled(launch: &FunctionLaunch, task: &Task, handled: Handled<'_>) {
    let function = &launch.identity.function;
    let error = match handled {
        Handled::Answered(bytes) if bytes.len() as u64 <= launch.max_payload => {
            return task.replies.send_bytes(bytes, task.deadline);
        }
        Handled::InPlace(segment) if segment.len() <= launch.max_payload => {
            return task.answer(&Ok(Payload::Segment(segment)));
        }
        Handled::Answered(bytes) => too_large(launch, bytes.len() as u64),
        Handled::InPlace(segment) => too_large(launch, segment.len()),
        Handled::Failed(message) => CallError::Failed { message },
        Handled::Exited(code) => CallError::Failed {
            message: format!("{function} called exit({code}) instead of answering"),
        },
        Handled::Trapped(trap) => {
            stderr::try_line(&format!("{function}: {trap}"));
            CallError::Trapped { message: format!("{function}: {trap}") }
        }
    };
    task.answer(&Err(error));
}

fn too_large(launch: &FunctionLaunch, length: u64) -> CallError {
    let what = format!("response of {}", launch.identity.function);
    CallError::too_large(&what, length, launch.max_payload)
}
