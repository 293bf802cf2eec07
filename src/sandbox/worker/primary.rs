//! A primary's worker: runs the entry once, on the container's own stdio.

use crate::sandbox::messages::WorkerMessage;
use crate::sandbox::{exit_codes, stderr};
use crate::sys::random::bytes16;
use crate::vm::{CommandEnd, Context, Instance, Module};
use crate::wire::control::Entry;

use super::Worker;

/// Exit codes have eight bits.
const EXIT_MASK: u32 = 0xff;

/// Runs it and returns the exit code.
pub fn run<M: Module>(mut worker: Worker<'_, M>) -> i32 {
    let Entry::Command { export } = &worker.launch.entry else {
        return worker.start_failed(&NotACommand);
    };
    let mut instance = match worker.module.instantiate(&worker.spec, &mut worker.host) {
        Ok(instance) => instance,
        Err(error) => return worker.start_failed(&error),
    };
    if !worker.tell(&WorkerMessage::Ready) {
        return exit_codes::TRAPPED;
    }
    let id = bytes16();
    let invocation_id = hex::encode(id);
    // A primary's invocation is a run of its workflow.
    let context = Context { invocation_id, run: Some(id), ..worker.context() };
    worker.host.begin(context);
    let end = instance.run_command(export, &mut worker.host);
    worker.host.end();
    match end {
        CommandEnd::Exited(code) => i32::try_from(code & EXIT_MASK).unwrap_or(i32::MAX),
        CommandEnd::Trapped(trap) => {
            stderr::line(&format!("{}: {trap}", worker.launch.identity.function));
            exit_codes::TRAPPED
        }
    }
}

/// A primary runs to completion, so its entry is a command.
#[derive(Debug, thiserror::Error)]
#[error(
    "a primary runs a command's export such as _start, not cwasi_handle; is cwasi.role=secondary missing?"
)]
struct NotACommand;
