//! A secondary's worker: one request after the other, each in an instance that was made before it came.

use crate::modes::local::Answer;
use crate::modes::{CallError, Payload};
use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::stderr;
use crate::sys::clock::monotonic_ns;
use crate::vm::reactor::{self, Handled, Input, Kept};
use crate::vm::{Instance, Module, VmError};
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
    let mut next = match Ready::ahead(&mut worker) {
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
        let used = serve(&mut worker, &stdio, next, &task);
        drop(task);
        if !requests.done(&worker) {
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
