//! A secondary's worker: one request after the other, each in an instance that was made before it came.

use std::os::fd::{AsFd, OwnedFd};

use cwasi_abi::Errno;

use crate::modes::local::{Answer, LocalError, Opened, open_frame, respond, send_frame};
use crate::modes::{CallError, Payload};
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::stderr;
use crate::sys::clock::monotonic_ns;
use crate::sys::seqpacket::{self, Deadline};
use crate::vm::dispatch::from_monotonic;
use crate::vm::reactor::{self, Handled, Kept};
use crate::vm::{Context, Module, VmError};
use crate::wire::control::{Entry, FunctionLaunch, Isolation};
use crate::wire::envelope::{Assignment, Response};
use crate::wire::frame::FRAME_MAX;
use crate::wire::ids::CallId;

use super::Worker;
use super::command::{self, Stdio};

/// Exit code when init is gone or speaks another language.
const EXIT_NO_INIT: i32 = 1;

/// A request as it came from init.
struct Task {
    id: CallId,
    reply_to: OwnedFd,
    deadline: Deadline,
    context: Context,
    payload: Payload,
}

/// Serves until init closes the socket; returns the exit code.
pub fn run<M: Module>(mut worker: Worker<'_, M>) -> i32 {
    let stdio = match Stdio::new() {
        Ok(stdio) => stdio,
        Err(error) => return worker.start_failed(&error),
    };
    let mut next = match worker.module.instantiate(&worker.spec, &mut worker.host) {
        Ok(instance) => Ok(Ready::new(instance)),
        Err(error) => return worker.start_failed(&error),
    };
    if !worker.tell(&WorkerMessage::Ready) {
        return EXIT_NO_INIT;
    }
    let mut buffer = vec![0; FRAME_MAX];
    loop {
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
            Some(again) => Ok(again),
            None => worker.module.instantiate(&worker.spec, &mut worker.host).map(Ready::new),
        };
    }
}

/// An instance that waits for its request, the first or the next.
struct Ready<I> {
    instance: I,
    kept: Kept,
}

impl<I> Ready<I> {
    fn new(instance: I) -> Self {
        Self { instance, kept: Kept::default() }
    }
}

enum Ended {
    Init,
    Malformed(String),
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
    Ok(Task { id, reply_to, deadline, context, payload })
}

/// Runs one request and answers it. The instance is gone afterwards, unless the function keeps it.
fn serve<M: Module>(
    worker: &mut Worker<'_, M>,
    stdio: &Stdio,
    ready: Result<Ready<M::Instance>, VmError>,
    task: &Task,
) -> Option<Ready<M::Instance>> {
    if task.deadline.is_some_and(|deadline| deadline <= monotonic_ns()) {
        let target = worker.launch.identity.function.clone();
        answer(task, &Answer::Error(CallError::Timeout { target }));
        return ready.ok();
    }
    let mut ready = match ready {
        Ok(ready) => ready,
        Err(error) => {
            let message = super::super::builder::chain(&error);
            answer(task, &Answer::Error(CallError::Failed { message }));
            return None;
        }
    };
    let mut reusable = false;
    worker.host.begin(task.context.clone());
    match &worker.launch.entry {
        Entry::Reactor => {
            let Ready { instance, kept } = &mut ready;
            let handled = reactor::handle_again(instance, kept, &task.payload, &mut worker.host);
            // After a trap or an exit a guest's memory is in no state that it knows.
            reusable =
                matches!(handled, Handled::Answered(_) | Handled::InPlace(_) | Handled::Failed(_));
            answer_handled(worker.launch, task, handled);
        }
        Entry::Command { export } => {
            let done = command::run(
                &mut ready.instance,
                export,
                &task.payload,
                &mut worker.host,
                stdio,
                worker.launch,
            );
            match done {
                Ok(payload) => answer(task, &Answer::Response(payload)),
                Err(error) => answer(task, &Answer::Error(error)),
            }
        }
    }
    worker.host.end();
    (reusable && worker.launch.isolation == Isolation::Instance).then_some(ready)
}

fn answer_handled(launch: &FunctionLaunch, task: &Task, handled: Handled<'_>) {
    let function = &launch.identity.function;
    let error = match handled {
        Handled::Answered(bytes) if bytes.len() as u64 <= launch.max_payload => {
            return answer_bytes(task, bytes);
        }
        Handled::InPlace(segment) if segment.len() <= launch.max_payload => {
            return answer(task, &Answer::Response(Payload::Segment(segment)));
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
    answer(task, &Answer::Error(error));
}

fn too_large(launch: &FunctionLaunch, length: u64) -> CallError {
    let what = format!("response of {}", launch.identity.function);
    CallError::too_large(&what, length, launch.max_payload)
}

/// Straight from linear memory to the socket or segment.
fn answer_bytes(task: &Task, bytes: &[u8]) {
    let response =
        Response { call_id: task.id.0.to_vec(), errno: Errno::Ok.code(), ..Response::default() };
    report(send_frame(task.reply_to.as_fd(), &response, bytes, &[], task.deadline));
}

fn answer(task: &Task, answer: &Answer) {
    report(respond(task.reply_to.as_fd(), task.id, answer, task.deadline));
}

/// A caller that is gone or reads no more needs no answer; a fault of ours is said.
fn report(result: Result<(), LocalError>) {
    match result {
        Ok(()) | Err(LocalError::Socket(_)) => {}
        Err(error) => stderr::try_line(&format!("an answer was lost: {error}")),
    }
}
