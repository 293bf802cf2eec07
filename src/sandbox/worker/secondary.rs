//! A secondary's worker: runs one request after the other, each in an instance that was made ahead of it. Runs in a
//! worker process; a request has ended when its answer was sent, or was handed to init.

use crate::cause_chain::cause_chain;
use crate::stderr;
use crate::worker_table::WorkerSlot;
use cwasi_abi::Errno;
use cwasi_dispatcher::spans::SpanEnd;
use cwasi_modes::CallResult;
use cwasi_modes::local::LocalError;
use cwasi_modes::{CallError, OutgoingPayload};
use cwasi_sys::clock::monotonic_ns;
use cwasi_sys::seqpacket::SocketError;
use cwasi_vm::reactor::{self, HandlerInput, HandlerOutcome, InstanceBlocks, Preallocation};
use cwasi_vm::{Instance, Module, Start, VmError};
use cwasi_wire::control::{Entry, FunctionLaunch, Isolation};
use cwasi_wire::metadata::is_of_http;

use super::command::{self, SavedStdio};
use super::prototype;
use super::requests::{Invocation, Requests};
use super::{Worker, WorkerSetup};

/// Exit code when init is gone or speaks another language.
const EXIT_NO_INIT: i32 = 1;

/// Serves until init closes the socket; returns the exit code.
pub fn run<M: Module>(worker: Worker<'_, M>, setup: WorkerSetup<'_>) -> i32 {
    let stdio = match SavedStdio::new() {
        Ok(stdio) => stdio,
        Err(error) => return worker.start_failed(&error),
    };
    let slot = setup.slot;
    let mut requests = match Requests::new(&worker, setup) {
        Ok(requests) => requests,
        Err(error) => return worker.start_failed(&error),
    };
    let ahead = Preallocation::within(worker.launch.memory_max);
    let mut server = Server { worker, slot, stdio, ahead };
    let mut next = server.fresh();
    if let Err(error) = &next {
        return server.worker.start_failed(error);
    }
    if !requests.become_idle() {
        return EXIT_NO_INIT;
    }
    loop {
        let invocation = match requests.next() {
            Ok(invocation) => invocation,
            Err(LocalError::Socket(SocketError::Closed)) => return 0,
            Err(error) => {
                server.log(&format!("message of init: {error}"));
                return EXIT_NO_INIT;
            }
        };
        let stays = server.serve(&mut next, &invocation);
        drop(invocation);
        if !requests.done(server.worker.host.has_called()) {
            return EXIT_NO_INIT;
        }
        // Ahead of the next request. A request that waits already waits no longer than without this.
        next = match next {
            Ok(ready) if stays => server.prepare_again(ready),
            used => {
                // Processes with a request in flight that wait for this processor go first.
                let _never_fails = nix::sched::sched_yield();
                let began = monotonic_ns();
                let ready = server.renew(used.ok());
                requests.service_time.add_preparation(monotonic_ns().saturating_sub(began));
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

type Prepared<M> = PreparedInstance<<M as Module>::Instance>;

/// The worker with all that outlives its instances.
struct Server<'a, M> {
    worker: Worker<'a, M>,
    slot: WorkerSlot<'a>,
    stdio: SavedStdio,
    /// The block that instances allocate ahead of their request.
    ahead: Preallocation,
}

impl<M: Module> Server<'_, M> {
    fn function(&self) -> &str {
        &self.worker.launch.identity.function
    }

    fn log(&self, message: &str) {
        stderr::try_line(&format!("{}: {message}", self.function()));
    }

    /// A fresh instance. If allocating a block ahead of the request fails, no further instance tries it.
    fn fresh(&mut self) -> Result<Prepared<M>, VmError> {
        match self.instantiate() {
            Err(_) if !self.ahead.is_empty() => {
                self.ahead = Preallocation::default();
                self.instantiate()
            }
            made => made,
        }
    }

    /// A fresh instance with a block allocated ahead of the request, if `ahead` asks for one.
    fn instantiate(&mut self) -> Result<Prepared<M>, VmError> {
        let Worker { launch, module, host, spec, .. } = &mut self.worker;
        let mut instance = module.instantiate(spec, host)?;
        let mut kept = InstanceBlocks::default();
        // The guest of an instance that stays may still use its last payload's block.
        let renews = launch.isolation != Isolation::Instance;
        let ahead = if renews { self.ahead } else { Preallocation::default() };
        if launch.entry == Entry::Reactor {
            reactor::prepare(&mut instance, &mut kept, ahead, host)?;
        }
        match launch.isolation {
            Isolation::Request => instance.remember(Start::Alike(ahead.len())),
            Isolation::Snapshot => instance.remember(Start::Snapshot),
            Isolation::Instance => {}
        }
        Ok(PreparedInstance { instance, kept, first: kept, ahead, too_long: None })
    }

    /// Prepares an instance for another request. Makes a fresh one if that fails, or if its memory is nearly full.
    fn prepare_again(&mut self, mut ready: Prepared<M>) -> Result<Prepared<M>, VmError> {
        if !ready.kept.is_used() {
            return Ok(ready);
        }
        let (PreparedInstance { instance, kept, .. }, host) = (&mut ready, &mut self.worker.host);
        let prepared = reactor::give_back(instance, kept, host)
            .and_then(|()| reactor::prepare(instance, kept, Preallocation::default(), host));
        match prepared {
            Ok(()) if !instance.is_nearly_full() => return Ok(ready),
            Ok(()) => {}
            Err(error) => self.log(&format!("its instance is replaced: {error}")),
        }
        drop(ready);
        self.fresh()
    }

    /// Replaces an instance by a fresh one that has memory for a block of `needed` bytes. Returns false, and changes
    /// nothing, when a fresh one does not have it either.
    fn replace(&mut self, ready: &mut Prepared<M>, needed: u64) -> Result<bool, VmError> {
        // The old instance had a block allocated ahead; the fresh one has none, so more memory is free.
        if self.worker.launch.isolation != Isolation::Instance {
            self.ahead = Preallocation::default();
            *ready = self.fresh()?;
            return Ok(true);
        }
        if ready.too_long.is_some_and(|too_long| needed >= too_long) {
            return Ok(false);
        }
        let mut fresh = self.fresh()?;
        let host = &mut self.worker.host;
        if reactor::reserve(&mut fresh.instance, &mut fresh.kept, needed, host)? {
            *ready = fresh;
            return Ok(true);
        }
        ready.too_long = Some(needed);
        Ok(false)
    }

    /// An instance in the initial state: `used` renewed if possible, which takes a fraction of the time, or else a
    /// fresh one.
    fn renew(&mut self, used: Option<Prepared<M>>) -> Result<Prepared<M>, VmError> {
        if let Some(mut ready) = used
            && ready.ahead == self.ahead
        {
            if ready.instance.renew() {
                ready.kept = ready.first;
                return Ok(ready);
            }
            if let Some(reason) = ready.instance.not_renewed()
                && self.slot.is_first_not_renewed()
            {
                self.log(&format!("each request gets an instance made anew: {reason}"));
            }
        }
        self.fresh()
    }

    /// Runs one request and answers it. Returns true when its instance stays as it is.
    fn serve(&mut self, ready: &mut Result<Prepared<M>, VmError>, invocation: &Invocation) -> bool {
        let Invocation { replies, context, span, .. } = invocation;
        if replies.work.deadline.has_passed(monotonic_ns()) {
            replies.send(&Err(CallError::Timeout { target: self.function().to_owned() }));
            return true;
        }
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                replies.send(&Err(CallError::Failed { message: cause_chain(error) }));
                return false;
            }
        };
        self.worker.host.begin(context.clone());
        if span.is_some() {
            self.worker.host.time_handler();
        }
        if let Some(pool) = &self.worker.spec.pool {
            // An answer that cannot be lent would have to be copied out of the pool's segment.
            pool.set_lending(replies.lends);
        }
        let launch = self.worker.launch;
        let reusable = match &launch.entry {
            Entry::Reactor => self.handle(ready, invocation),
            Entry::Command { export } => {
                let done = self.run_command(ready, export, invocation);
                send(invocation, &done);
                false
            }
            Entry::Prototype => {
                let done = self.run_prototype(invocation);
                send(invocation, &done);
                false
            }
        };
        if let Some(span) = span {
            let (errno, length) = replies.ended.get();
            let end = SpanEnd {
                peer: &context.caller,
                request_bytes: replies.work.first().payload.len(),
                response_bytes: if errno == 0 { length } else { 0 },
                errno,
                tracestate: &context.tracestate,
                ..SpanEnd::default()
            };
            span.record(&self.worker.spans, self.worker.host.handler_began(), end);
        }
        self.worker.host.end();
        reusable && launch.isolation == Isolation::Instance
    }

    fn run_command(
        &mut self,
        ready: &mut Prepared<M>,
        export: &str,
        invocation: &Invocation,
    ) -> CallResult {
        let work = &invocation.replies.work;
        if work.expected.is_some() {
            // The coordinator starts no command with cwasi.fan-in.
            return Err(CallError::Internal { message: "a command takes no parts".to_owned() });
        }
        let payload = &work.first().payload;
        let Worker { host, launch, .. } = &mut self.worker;
        let done = command::run(&mut ready.instance, export, payload, host, &self.stdio, launch);
        self.handler_ended(invocation);
        done
    }

    /// The payload is an argument of the instance, which is made for it.
    fn run_prototype(&mut self, invocation: &Invocation) -> CallResult {
        let work = &invocation.replies.work;
        if work.expected.is_some() {
            // The coordinator refuses cwasi.fan-in for it.
            return Err(CallError::Internal { message: "a prototype takes no parts".to_owned() });
        }
        let Worker { module, host, spec, launch, .. } = &mut self.worker;
        let done = prototype::run(*module, spec, &work.first().payload, host, launch);
        self.handler_ended(invocation);
        done
    }

    /// Runs a reactor's handler and answers. Returns false when the state of the instance is unknown. If the guest has
    /// no memory for the payload, but a fresh instance may have, retries once in a fresh one.
    fn handle(&mut self, ready: &mut Prepared<M>, invocation: &Invocation) -> bool {
        let work = &invocation.replies.work;
        let parts: Vec<_>;
        let input = match work.expected {
            None => HandlerInput::Whole(&work.first().payload),
            Some(expected) => {
                parts = work.parts().map(|(number, call)| (*number, &call.payload)).collect();
                HandlerInput::Parts { expected, parts: &parts }
            }
        };
        let mut is_last_try = false;
        loop {
            let (instance, host) = (&mut ready.instance, &mut self.worker.host);
            let handled = reactor::handle_again(instance, &mut ready.kept, input, host);
            self.handler_ended(invocation);
            let needs_fresh_instance = ready.kept.needs_fresh_instance().filter(|_| !is_last_try);
            let Some(needed) = needs_fresh_instance else {
                let is_known = is_known_after(&handled);
                answer(self.worker.launch, invocation, handled);
                self.ahead.learn(ready.kept.needed());
                return is_known;
            };
            let HandlerOutcome::Failed(message) = handled else { return false };
            let (message, is_known) = match self.replace(ready, needed) {
                Ok(true) => {
                    is_last_try = true;
                    continue;
                }
                // The instance is as it was.
                Ok(false) => (message, true),
                Err(error) => (cause_chain(&error), false),
            };
            send(invocation, &Err(CallError::Failed { message }));
            return is_known;
        }
    }

    fn handler_ended(&mut self, invocation: &Invocation) {
        self.slot.note_returned();
        if let Some(span) = &invocation.span {
            span.handler_ended();
        }
        invocation.replies.set_metadata(self.worker.host.take_metadata());
    }
}

/// False if the state of an instance is unknown after this end.
const fn is_known_after(handled: &HandlerOutcome<'_>) -> bool {
    match handled {
        HandlerOutcome::Exited(_)
        | HandlerOutcome::Trapped(_)
        | HandlerOutcome::Undeliverable(_) => false,
        HandlerOutcome::Answered(_)
        | HandlerOutcome::InPlace(_)
        | HandlerOutcome::Returned(_)
        | HandlerOutcome::Failed(_) => true,
    }
}

/// Sends the end of an invocation. Logs it if its guest did not answer, under the ids of the invocation: a trap, and
/// what an HTTP client does not read of an error. Other callers read the error themselves.
fn send(invocation: &Invocation, end: &CallResult) {
    if let Err(error) = end {
        let is_trap = error.errno() == Errno::Trapped;
        let is_hidden = error.errno() == Errno::Failed && is_of_http(&invocation.context.metadata);
        if is_trap || is_hidden {
            let text = match error {
                CallError::Failed { message } => format!("the request failed: {message}"),
                other => other.to_string(),
            };
            stderr::try_line_of(&invocation.context, &text);
        }
    }
    invocation.replies.send(end);
}

fn answer(launch: &FunctionLaunch, invocation: &Invocation, handled: HandlerOutcome<'_>) {
    let (function, replies) = (&launch.identity.function, &invocation.replies);
    let too_large = |length| {
        CallError::too_large(&format!("response of {function}"), length, launch.max_payload)
    };
    let error = match handled {
        HandlerOutcome::Answered(bytes) if bytes.len() as u64 <= launch.max_payload => {
            return replies.send_response(OutgoingPayload::Bytes(bytes));
        }
        HandlerOutcome::InPlace(segment) if segment.len() <= launch.max_payload => {
            return replies.send_response(OutgoingPayload::from(&segment));
        }
        HandlerOutcome::Returned(payload) if payload.len() <= launch.max_payload => {
            return replies.send_response(payload.outgoing());
        }
        HandlerOutcome::Answered(bytes) => too_large(bytes.len() as u64),
        HandlerOutcome::Returned(payload) => too_large(payload.len()),
        HandlerOutcome::InPlace(segment) => too_large(segment.len()),
        HandlerOutcome::Failed(message) => CallError::Failed { message },
        HandlerOutcome::Exited(code) => CallError::Failed {
            message: format!("{function} called exit({code}) instead of answering"),
        },
        HandlerOutcome::Trapped(trap) => {
            CallError::Trapped { message: format!("{function}: {trap}") }
        }
        HandlerOutcome::Undeliverable(reason) => {
            CallError::Undeliverable { message: format!("{function}: {reason}") }
        }
    };
    send(invocation, &Err(error));
}
