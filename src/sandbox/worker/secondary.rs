//! A secondary's worker: runs one request after the other, each in an instance that was made ahead of it. Runs in a
//! worker process; a request has ended when its answer was sent, or was handed to init.

use crate::modes::{CallError, Payload};
use crate::sandbox::cause_chain::cause_chain;
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::stderr;
use crate::sys::clock::monotonic_ns;
use crate::vm::reactor::{self, HandlerInput, HandlerOutcome, InstanceBlocks, Preallocation};
use crate::vm::{Instance, Module, Start, VmError};
use crate::wire::control::{Entry, FunctionLaunch, Isolation};

use super::command::{self, SavedStdio};
use super::requests::{Invocation, NoMoreRequests, RequestInput, Requests};
use super::{Worker, WorkerSetup};

/// Exit code when init is gone or speaks another language.
const EXIT_NO_INIT: i32 = 1;

/// Serves until init closes the socket; returns the exit code.
pub fn run<M: Module>(mut worker: Worker<'_, M>, setup: WorkerSetup<'_>) -> i32 {
    let stdio = match SavedStdio::new() {
        Ok(stdio) => stdio,
        Err(error) => return worker.start_failed(&error),
    };
    let mut requests = match Requests::new(&worker, setup) {
        Ok(requests) => requests,
        Err(error) => return worker.start_failed(&error),
    };
    let mut ahead = Preallocation::within(worker.launch.memory_max);
    let mut next = match PreparedInstance::fresh(&mut worker, &mut ahead) {
        Ok(ready) => Ok(ready),
        Err(error) => return worker.start_failed(&error),
    };
    requests.become_idle();
    if !worker.tell(&WorkerMessage::Ready) {
        return EXIT_NO_INIT;
    }
    loop {
        let invocation = match requests.next(&worker) {
            Ok(invocation) => invocation,
            Err(NoMoreRequests::Init) => return 0,
            Err(NoMoreRequests::Malformed(what)) => {
                stderr::try_line(&format!("{}: {what}", worker.launch.identity.function));
                return EXIT_NO_INIT;
            }
        };
        let used = serve(&mut worker, &stdio, next, &mut ahead, &invocation);
        drop(invocation);
        if !requests.done(&worker) {
            return EXIT_NO_INIT;
        }
        // Ahead of the next request. A request that waits already waits no longer than without this.
        next = match used {
            UsedInstance::Kept(again) => again.again(&mut worker, &mut ahead),
            UsedInstance::Over(instance) => {
                // Processes with a request in flight that wait for this processor go first.
                let _never_fails = nix::sched::sched_yield();
                let began = monotonic_ns();
                let ready = PreparedInstance::after(instance, &mut worker, &mut ahead);
                requests.prepared(monotonic_ns().saturating_sub(began));
                ready
            }
        };
    }
}

/// An instance that is ready for its next request.
struct PreparedInstance<I> {
    instance: I,
    kept: InstanceBlocks,
    /// `kept` before the first request.
    first: InstanceBlocks,
    /// The block that was allocated ahead of the request.
    ahead: Preallocation,
    /// Length in bytes of the shortest payload for which even a fresh instance had no memory.
    too_long: Option<u64>,
}

/// An instance after its request.
enum UsedInstance<I> {
    /// Serves the next request as it is.
    Kept(PreparedInstance<I>),
    /// Must be renewed or replaced; `None` when it is gone.
    Over(Option<PreparedInstance<I>>),
}

impl<I: Instance> PreparedInstance<I> {
    /// A fresh instance. If allocating a block ahead of the request fails, no further instance tries it.
    fn fresh<M: Module<Instance = I>>(
        worker: &mut Worker<'_, M>,
        ahead: &mut Preallocation,
    ) -> Result<Self, VmError> {
        match Self::asked(worker, *ahead) {
            Err(_) if !ahead.is_empty() => {
                *ahead = Preallocation::default();
                Self::asked(worker, *ahead)
            }
            made => made,
        }
    }

    /// A fresh instance with a block allocated ahead of the request, if `ahead` asks for one.
    fn asked<M: Module<Instance = I>>(
        worker: &mut Worker<'_, M>,
        ahead: Preallocation,
    ) -> Result<Self, VmError> {
        let mut instance = worker.module.instantiate(&worker.spec, &mut worker.host)?;
        let mut kept = InstanceBlocks::default();
        // The guest of an instance that stays may still use its last payload's block.
        let renews = worker.launch.isolation != Isolation::Instance;
        let ahead = if renews { ahead } else { Preallocation::default() };
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

    /// Prepares this instance for another request. Makes a fresh one if that fails, or if its memory is nearly full.
    fn again<M: Module<Instance = I>>(
        mut self,
        worker: &mut Worker<'_, M>,
        ahead: &mut Preallocation,
    ) -> Result<Self, VmError> {
        if !self.kept.is_used() {
            return Ok(self);
        }
        let host = &mut worker.host;
        let prepared =
            reactor::give_back(&mut self.instance, &mut self.kept, host).and_then(|()| {
                reactor::prepare(&mut self.instance, &mut self.kept, Preallocation::default(), host)
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

    /// Replaces the instance by a fresh one that has memory for a block of `needed` bytes. Returns false, and changes
    /// nothing, when a fresh one does not have it either.
    fn replace<M: Module<Instance = I>>(
        &mut self,
        worker: &mut Worker<'_, M>,
        ahead: &mut Preallocation,
        needed: u64,
    ) -> Result<bool, VmError> {
        // The old instance had a block allocated ahead; the fresh one has none, so more memory is free.
        if worker.launch.isolation != Isolation::Instance {
            *ahead = Preallocation::default();
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

    /// An instance in the initial state: `used` renewed if possible, which takes a fraction of the time, or else a
    /// fresh one.
    fn after<M: Module<Instance = I>>(
        used: Option<Self>,
        worker: &mut Worker<'_, M>,
        ahead: &mut Preallocation,
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
    stdio: &SavedStdio,
    ready: Result<PreparedInstance<M::Instance>, VmError>,
    ahead: &mut Preallocation,
    invocation: &Invocation,
) -> UsedInstance<M::Instance> {
    if invocation.deadline.is_some_and(|deadline| deadline.has_passed(monotonic_ns())) {
        let target = worker.launch.identity.function.clone();
        invocation.answer(&Err(CallError::Timeout { target }));
        return ready.map_or(UsedInstance::Over(None), UsedInstance::Kept);
    }
    let mut ready = match ready {
        Ok(ready) => ready,
        Err(error) => {
            let message = cause_chain(&error);
            invocation.answer(&Err(CallError::Failed { message }));
            return UsedInstance::Over(None);
        }
    };
    let mut reusable = false;
    worker.host.begin(invocation.context.clone());
    if invocation.span.is_some() {
        worker.host.time_handler();
    }
    if let Some(pool) = &worker.spec.pool {
        // An answer that cannot be lent would have to be copied out of the pool's segment.
        pool.set_lending(invocation.replies.lends());
    }
    match (&worker.launch.entry, &invocation.input) {
        (Entry::Reactor, received) => {
            let input = match received {
                RequestInput::Whole(payload) => HandlerInput::Whole(payload),
                RequestInput::Parts { expected, parts } => {
                    HandlerInput::Parts { expected: *expected, parts }
                }
            };
            reusable = handle(worker, &mut ready, ahead, input, invocation);
        }
        (Entry::Command { export }, RequestInput::Whole(payload)) => {
            let done = command::run(
                &mut ready.instance,
                export,
                payload,
                &mut worker.host,
                stdio,
                worker.launch,
            );
            invocation.handler_ended();
            invocation.replies.set_metadata(worker.host.take_metadata());
            invocation.answer(&done);
        }
        // The coordinator starts no command with cwasi.fan-in.
        (Entry::Command { .. }, RequestInput::Parts { .. }) => {
            let message = "a command takes no parts".to_owned();
            invocation.answer(&Err(CallError::Internal { message }));
        }
    }
    if let Some(span) = &invocation.span {
        let (caller, began) = (&invocation.context.caller, worker.host.handler_began());
        span.record(&worker.spans, caller, began, invocation.replies.ended());
    }
    worker.host.end();
    if reusable && worker.launch.isolation == Isolation::Instance {
        UsedInstance::Kept(ready)
    } else {
        UsedInstance::Over(Some(ready))
    }
}

/// Runs a reactor's handler and answers. Returns false when the state of the instance is unknown. If the guest has no
/// memory for the payload, but a fresh instance may have, retries once in a fresh one.
fn handle<M: Module>(
    worker: &mut Worker<'_, M>,
    ready: &mut PreparedInstance<M::Instance>,
    ahead: &mut Preallocation,
    input: HandlerInput<'_>,
    invocation: &Invocation,
) -> bool {
    let handled =
        reactor::handle_again(&mut ready.instance, &mut ready.kept, input, &mut worker.host);
    invocation.handler_ended();
    invocation.replies.set_metadata(worker.host.take_metadata());
    let Some(needed) = ready.kept.crowded_out() else {
        return conclude(worker.launch, invocation, handled, ready.kept, ahead);
    };
    let HandlerOutcome::Failed(no_memory) = handled else { return false };
    match ready.replace(worker, ahead, needed) {
        Ok(true) => {
            let handled = reactor::handle_again(
                &mut ready.instance,
                &mut ready.kept,
                input,
                &mut worker.host,
            );
            invocation.replies.set_metadata(worker.host.take_metadata());
            conclude(worker.launch, invocation, handled, ready.kept, ahead)
        }
        // The instance is as it was.
        Ok(false) => {
            invocation.answer(&Err(CallError::Failed { message: no_memory }));
            true
        }
        Err(error) => {
            let message = cause_chain(&error);
            invocation.answer(&Err(CallError::Failed { message }));
            false
        }
    }
}

/// Answers. Returns false when the state of the instance is unknown.
fn conclude(
    launch: &FunctionLaunch,
    invocation: &Invocation,
    handled: HandlerOutcome<'_>,
    kept: InstanceBlocks,
    ahead: &mut Preallocation,
) -> bool {
    // After a trap or an exit.
    let known = matches!(
        handled,
        HandlerOutcome::Answered(_) | HandlerOutcome::InPlace(_) | HandlerOutcome::Failed(_)
    );
    answer_handled(launch, invocation, handled);
    ahead.learn(kept.needed());
    known
}

fn answer_handled(launch: &FunctionLaunch, invocation: &Invocation, handled: HandlerOutcome<'_>) {
    let function = &launch.identity.function;
    let error = match handled {
        HandlerOutcome::Answered(bytes) if bytes.len() as u64 <= launch.max_payload => {
            return invocation.replies.send_bytes(bytes, invocation.deadline);
        }
        HandlerOutcome::InPlace(segment) if segment.len() <= launch.max_payload => {
            return invocation.answer(&Ok(Payload::Segment(segment)));
        }
        HandlerOutcome::Answered(bytes) => too_large(launch, bytes.len() as u64),
        HandlerOutcome::InPlace(segment) => too_large(launch, segment.len()),
        HandlerOutcome::Failed(message) => CallError::Failed { message },
        HandlerOutcome::Exited(code) => CallError::Failed {
            message: format!("{function} called exit({code}) instead of answering"),
        },
        HandlerOutcome::Trapped(trap) => {
            stderr::try_line(&format!("{function}: {trap}"));
            CallError::Trapped { message: format!("{function}: {trap}") }
        }
    };
    invocation.answer(&Err(error));
}

fn too_large(launch: &FunctionLaunch, length: u64) -> CallError {
    let what = format!("response of {}", launch.identity.function);
    CallError::too_large(&what, length, launch.max_payload)
}
