//! A secondary's worker: one request after the other, each in an instance that was made before it came.

use std::os::fd::AsFd;

use crate::modes::local::{Answer, LocalError, Opened, open_frame};
use crate::modes::{CallError, Payload};
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::stderr;
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket::{self, Deadline};
use crate::vm::dispatch::from_monotonic;
use crate::vm::reactor::{self, Handled, Input, Kept};
use crate::vm::{Context, Instance, Module, VmError};
use crate::wire::control::{Entry, FunctionLaunch, Isolation};
use crate::wire::envelope::{Assignment, Part};
use crate::wire::frame::{self, FRAME_MAX};

use super::Worker;
use super::command::{self, Stdio};
use super::replies::Replies;

/// Exit code when init is gone or speaks another language.
const EXIT_NO_INIT: i32 = 1;
/// How long a worker without requests keeps segments that nobody uses, in milliseconds.
const POOL_IDLE_MS: u16 = 5000;

/// A request, or a group of them, as it came from init.
struct Task {
    replies: Replies,
    deadline: Deadline,
    context: Context,
    input: Received,
}

/// What the handler is to get.
enum Received {
    Whole(Payload),
    Parts { expected: u32, parts: Vec<(u32, Payload)> },
}

/// Serves until init closes the socket; returns the exit code.
pub fn run<M: Module>(mut worker: Worker<'_, M>) -> i32 {
    let stdio = match Stdio::new() {
        Ok(stdio) => stdio,
        Err(error) => return worker.start_failed(&error),
    };
    let mut next = match Ready::ahead(&mut worker) {
        Ok(ready) => Ok(ready),
        Err(error) => return worker.start_failed(&error),
    };
    if !worker.tell(&WorkerMessage::Ready) {
        return EXIT_NO_INIT;
    }
    let mut buffer = vec![0; FRAME_MAX];
    loop {
        tidy_until_work(&worker);
        let task = match receive(&worker, &mut buffer) {
            Ok(task) => task,
            Err(Ended::Init) => return 0,
            Err(Ended::Malformed(what)) => {
                stderr::try_line(&format!("{}: {what}", worker.launch.identity.function));
                return EXIT_NO_INIT;
            }
        };
        let used = serve(&mut worker, &stdio, next, &task);
        drop(task);
        if !worker.tell(&WorkerMessage::Done) {
            return EXIT_NO_INIT;
        }
        // Ahead of the next request; if that is here already, it waits no longer than it would anyway.
        next = match used {
            Used::Kept(again) => Ok(again),
            Used::Over(instance) => {
                // After whoever waits for this processor with a request that is under way.
                let _never_fails = nix::sched::sched_yield();
                Ready::after(instance, &mut worker)
            }
        };
    }
}

/// An instance that waits for its request, the first or the next.
struct Ready<I> {
    instance: I,
    kept: Kept,
    /// What `kept` was before the first request.
    ahead: Kept,
}

/// What is left of an instance, once its request is answered.
enum Used<I> {
    /// All of it, for the next request.
    Kept(Ready<I>),
    /// What the next request must not see; there may be nothing.
    Over(Option<Ready<I>>),
}

impl<I: Instance> Ready<I> {
    /// A fresh one.
    fn ahead<M: Module<Instance = I>>(worker: &mut Worker<'_, M>) -> Result<Self, VmError> {
        let mut instance = worker.module.instantiate(&worker.spec, &mut worker.host)?;
        let mut kept = Kept::default();
        if worker.launch.entry == Entry::Reactor {
            reactor::prepare(&mut instance, &mut kept, &mut worker.host)?;
        }
        if worker.launch.isolation == Isolation::Request {
            instance.remember();
        }
        Ok(Self { instance, kept, ahead: kept })
    }

    /// One that is as a fresh one: `used` itself where that can be, which takes a fraction of making one.
    fn after<M: Module<Instance = I>>(
        used: Option<Self>,
        worker: &mut Worker<'_, M>,
    ) -> Result<Self, VmError> {
        if let Some(mut ready) = used
            && ready.instance.renew()
        {
            ready.kept = ready.ahead;
            return Ok(ready);
        }
        Self::ahead(worker)
    }
}

enum Ended {
    Init,
    Malformed(String),
}

/// Makes ready what was lent and came back, until the next request is there or nothing is left of it.
fn tidy_until_work<M: Module>(worker: &Worker<'_, M>) {
    let Some(pool) = worker.spec.pool.as_ref() else { return };
    while pool.bytes() > 0 && !pool.tidy_until(worker.init.as_fd(), POOL_IDLE_MS) {
        pool.trim();
    }
}

fn receive<M: Module>(worker: &Worker<'_, M>, buffer: &mut [u8]) -> Result<Task, Ended> {
    let received =
        seqpacket::receive(worker.init.as_fd(), buffer, None).map_err(|_closed| Ended::Init)?;
    let malformed = |error: LocalError| Ended::Malformed(format!("assignment: {error}"));
    let Opened { envelope, payload, mut extra } = open_frame::<Assignment>(
        &buffer[..received.len],
        received.descriptors,
        1,
        worker.launch.max_payload,
    )
    .map_err(malformed)?;
    let request = envelope.request.get_or_default();
    let (Some(id), Some(reply_to)) = (request.id(), extra.pop()) else {
        return Err(Ended::Malformed("assignment without id or connection".to_owned()));
    };
    let deadline = (envelope.deadline_mono_ns > 0).then_some(envelope.deadline_mono_ns);
    let context = Context {
        invocation_id: id.to_string(),
        deadline: deadline.map(from_monotonic),
        attempt: request.attempt,
        caller: envelope.caller.clone(),
        traceparent: request.traceparent.clone(),
        run: request.run_id().map(|run| run.0),
        ..worker.context()
    };
    let mut replies = Replies::new(id, reply_to, envelope.lends, worker.spec.pool.as_ref());
    let input = match envelope.group.as_ref() {
        None => Received::Whole(payload),
        Some(group) => {
            let others = group.parts.saturating_sub(1);
            let mut parts = vec![(group.number, payload)];
            for _ in 0..others {
                parts.push(receive_part(worker, buffer, &mut replies)?);
            }
            Received::Parts { expected: group.expected, parts }
        }
    };
    Ok(Task { replies, deadline, context, input })
}

/// One more part of a group: its number and payload.
fn receive_part<M: Module>(
    worker: &Worker<'_, M>,
    buffer: &mut [u8],
    replies: &mut Replies,
) -> Result<(u32, Payload), Ended> {
    let received =
        seqpacket::receive(worker.init.as_fd(), buffer, None).map_err(|_closed| Ended::Init)?;
    let message = &buffer[..received.len];
    let malformed = |error: LocalError| Ended::Malformed(format!("part: {error}"));
    let part: Part = frame::decode(message)
        .and_then(|frame| frame.open())
        .map_err(|error| malformed(error.into()))?;
    let brought = usize::from(!replies.knows(part.connection));
    let mut opened =
        open_frame::<Part>(message, received.descriptors, brought, worker.launch.max_payload)
            .map_err(malformed)?;
    let known = part.id().is_some_and(|id| replies.add(id, part.connection, opened.extra.pop()));
    if !known {
        return Err(Ended::Malformed("part without id or connection".to_owned()));
    }
    Ok((part.number, opened.payload))
}

/// Runs one request and answers it.
fn serve<M: Module>(
    worker: &mut Worker<'_, M>,
    stdio: &Stdio,
    ready: Result<Ready<M::Instance>, VmError>,
    task: &Task,
) -> Used<M::Instance> {
    if task.deadline.is_some_and(|deadline| deadline <= monotonic_ns()) {
        let target = worker.launch.identity.function.clone();
        task.answer(&Answer::Error(CallError::Timeout { target }));
        return ready.map_or(Used::Over(None), Used::Kept);
    }
    let mut ready = match ready {
        Ok(ready) => ready,
        Err(error) => {
            let message = super::super::builder::chain(&error);
            task.answer(&Answer::Error(CallError::Failed { message }));
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
            let Ready { instance, kept, .. } = &mut ready;
            let input = match received {
                Received::Whole(payload) => Input::Whole(payload),
                Received::Parts { expected, parts } => Input::Parts { expected: *expected, parts },
            };
            let handled = reactor::handle_again(instance, kept, input, &mut worker.host);
            // After a trap or an exit a guest's memory is in no state that it knows.
            reusable =
                matches!(handled, Handled::Answered(_) | Handled::InPlace(_) | Handled::Failed(_));
            answer_handled(worker.launch, task, handled);
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
            task.answer(&done.map_or_else(Answer::Error, Answer::Response));
        }
        // The coordinator starts no command with cwasi.fan-in.
        (Entry::Command { .. }, Received::Parts { .. }) => {
            let message = "a command takes no parts".to_owned();
            task.answer(&Answer::Error(CallError::Internal { message }));
        }
    }
    worker.host.end();
    if reusable && worker.launch.isolation == Isolation::Instance {
        Used::Kept(ready)
    } else {
        Used::Over(Some(ready))
    }
}

fn answer_handled(launch: &FunctionLaunch, task: &Task, handled: Handled<'_>) {
    let function = &launch.identity.function;
    let error = match handled {
        Handled::Answered(bytes) if bytes.len() as u64 <= launch.max_payload => {
            return task.replies.send_bytes(bytes, task.deadline);
        }
        Handled::InPlace(segment) if segment.len() <= launch.max_payload => {
            return task.answer(&Answer::Response(Payload::Segment(segment)));
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
    task.answer(&Answer::Error(error));
}

fn too_large(launch: &FunctionLaunch, length: u64) -> CallError {
    let what = format!("response of {}", launch.identity.function);
    CallError::too_large(&what, length, launch.max_payload)
}

impl Task {
    fn answer(&self, answer: &Answer) {
        self.replies.send(answer, self.deadline);
    }
}
