//! A primary's worker: runs the entry once, on the container's own stdio.

use crate::messages::WorkerMessage;
use crate::{exit_codes, stderr};
use cwasi_dispatcher::spans::{OpenSpan, SpanEnd};
use cwasi_sys::random::bytes16;
use cwasi_vm::{CommandEnd, Context, Instance, Module};
use cwasi_wire::control::Entry;
use cwasi_wire::ids::RunId;
use cwasi_wire::trace::{SpanKind, TraceStart};

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
    if !worker.init.send(&WorkerMessage::Progress) {
        return exit_codes::TRAPPED;
    }
    let id = bytes16();
    let invocation_id = hex::encode(id);
    let span = begin_trace(&worker.launch.trace);
    let traceparent = span.map_or_else(String::new, |span| span.context.to_string());
    // A primary's invocation is a run of its workflow.
    let context = Context {
        invocation_id,
        run: Some(RunId(id)),
        traceparent,
        ..super::context(worker.launch)
    };
    worker.host.begin(context);
    let end = instance.run_command(export, &mut worker.host);
    let code = match &end {
        CommandEnd::Exited(code) => i32::try_from(code & EXIT_MASK).unwrap_or(i32::MAX),
        CommandEnd::Trapped(_) => exit_codes::TRAPPED,
    };
    if let Some(span) = span {
        worker.spans.add(span.end(SpanEnd {
            kind: SpanKind::Run,
            errno: code,
            ..SpanEnd::default()
        }));
    }
    worker.host.end();
    if let CommandEnd::Trapped(trap) = end {
        stderr::line(&format!("{}: {trap}", worker.launch.identity.function));
    }
    code
}

/// The span of the run: in the trace that the operator gave, or else in one of its own; `None` if it is not recorded.
fn begin_trace(start: &TraceStart) -> Option<OpenSpan> {
    match start.parent {
        _ if !start.record => None,
        Some(parent) => parent.sampled.then(|| OpenSpan::below(parent)),
        None => OpenSpan::sampled(start.sample),
    }
}

/// A primary runs to completion, so its entry is a command.
#[derive(Debug, thiserror::Error)]
#[error(
    "a primary runs a command's export such as _start, not cwasi_handle; is cwasi.role=secondary missing?"
)]
struct NotACommand;
