//! The dispatcher and the log as host functions see them.

use std::io::Write as _;
use std::time::Instant;

use cwasi_host_functions::{
    CallFailure, Context, Deadline, Dispatch, Level, LogSink, Response, ResponseLost,
};

use crate::dispatcher::{Dispatcher, Resolve};
use crate::modes::Payload;
use crate::sys::clock::monotonic_ns;

/// The calls of one function, through its worker's dispatcher.
#[derive(Debug)]
pub struct FunctionCalls<R> {
    dispatcher: Dispatcher<R>,
}

impl<R: Resolve> FunctionCalls<R> {
    /// Calls through `dispatcher`.
    #[must_use]
    pub const fn new(dispatcher: Dispatcher<R>) -> Self {
        Self { dispatcher }
    }
}

impl<R: Resolve> Dispatch for FunctionCalls<R> {
    fn call(
        &mut self,
        target: &str,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<Box<dyn Response>, CallFailure> {
        match self.dispatcher.call(target, payload, deadline.map(to_monotonic)) {
            Ok(payload) => Ok(Box::new(Arrived(payload))),
            Err(error) => Err(CallFailure { errno: error.errno(), message: error.to_string() }),
        }
    }

    fn begin(&mut self, context: &Context) {
        self.dispatcher.set_traceparent(&context.traceparent);
    }

    fn end(&mut self) {
        self.dispatcher.flush();
    }
}

/// A response as it arrived: copied once, from its segment into the guest's memory.
struct Arrived(Payload);

impl Response for Arrived {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn copy_to(&self, target: &mut [u8]) -> Result<(), ResponseLost> {
        self.0.copy_to(target).map_err(|error| ResponseLost { reason: error.to_string() })
    }
}

fn to_monotonic(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now()).as_nanos();
    monotonic_ns().saturating_add(u64::try_from(left).unwrap_or(u64::MAX))
}

/// The moment of a `CLOCK_MONOTONIC` deadline, for [`Context::deadline`].
#[must_use]
pub fn from_monotonic(deadline_ns: u64) -> Instant {
    let left = deadline_ns.saturating_sub(monotonic_ns());
    let now = Instant::now();
    now.checked_add(std::time::Duration::from_nanos(left)).unwrap_or(now)
}

/// Guests' log lines on the function's stderr: `LEVEL function: message`.
#[derive(Debug, Default)]
pub struct StderrLog;

impl LogSink for StderrLog {
    fn log(&mut self, level: Level, context: &Context, message: &str) {
        let line = format!("{} {}: {message}\n", level.name(), context.function);
        // A function whose stderr is gone has nobody who could read why.
        let _gone = std::io::stderr().write_all(line.as_bytes());
    }
}
