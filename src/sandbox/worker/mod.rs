//! A worker: forked by sandbox init, runs one invocation at a time, each in a fresh instance.
//!
//! A crash, an overflow of the stack or a missed deadline ends this process and is the error of the one
//! request that it ran; init notices and forks another. The worker dies with init.
#![expect(unsafe_code, reason = "closes every descriptor that it was not given")]

mod command;
mod pace;
mod primary;
mod replies;
mod requests;
mod secondary;

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use nix::sys::signal::SigSet;
use nix::unistd::Pid;

use crate::dispatcher::call::DEFAULT_TIMEOUT_MS;
use crate::dispatcher::{BrokerClient, Dispatcher, EmbeddedCalls, Settings};
use crate::modes::local::Line;
use crate::sys::pool::SegmentPool;
use crate::sys::process::{die_with_parent, exit_now, keep_only};
use crate::sys::seqpacket::{self, SocketError};
use crate::sys::wakeup::Wakeup;
use crate::vm::{Context, FunctionCalls, Host, InstanceSpec, Module, NotRenewed};
use crate::wire::control::{self, FunctionLaunch};

use super::board::Slot;
use super::builder::EXIT_PANICKED;
use super::files;
use super::function_log::GuestLog;
use super::init::{EXIT_START_FAILED, Sandbox};
use super::messages::WorkerMessage;
use super::stderr;

/// Longest message of a failed start, in bytes.
const MESSAGE_MAX: usize = 4 * 1024;

/// What a worker works with.
struct Worker<'a, M> {
    launch: &'a FunctionLaunch,
    module: &'a M,
    /// Init's other end is the worker's slot.
    init: Rc<OwnedFd>,
    host: Host,
    spec: InstanceSpec,
    /// It has told init that it makes instances anew.
    not_renewed_told: bool,
}

/// What a secondary's worker begins with.
#[derive(Debug)]
pub struct Seat<'a> {
    /// Where it says what it does.
    pub slot: Slot<'a>,
    /// Connections that it may read from.
    pub lines: Vec<Line>,
    /// The one of all workers, by which they call each other.
    pub wakeup: Wakeup,
}

/// The worker's life, in the child that init just forked. `socket` leads to init, whose pid is `parent`. Secondaries'
/// workers have a seat.
pub fn enter<M: Module>(
    sandbox: &Sandbox<M>,
    parent: Pid,
    socket: OwnedFd,
    seat: Option<Seat<'_>>,
) -> ! {
    let _unnamed = nix::sys::prctl::set_name(c"cwasi-worker");
    // A panic must not unwind into init's frames, whose descriptors are closed here.
    let code = catch_unwind(AssertUnwindSafe(|| live(sandbox, parent, socket, seat)));
    exit_now(code.unwrap_or(EXIT_PANICKED))
}

fn live<M: Module>(
    sandbox: &Sandbox<M>,
    parent: Pid,
    socket: OwnedFd,
    seat: Option<Seat<'_>>,
) -> i32 {
    match set_up(sandbox, parent, socket, seat) {
        Ok((broker, init, seat)) => {
            let worker = Worker::new(sandbox, broker, init);
            match seat {
                None => primary::run(worker),
                Some(seat) => secondary::run(worker, seat),
            }
        }
        Err(error) => {
            stderr::line(&format!("a worker of {} cannot start: {error}", sandbox.launch.identity));
            EXIT_START_FAILED
        }
    }
}

/// Leaves the worker with stdio, the broker, its socket to init, the function's log, and its callers' connections.
fn set_up<'s, M>(
    sandbox: &Sandbox<M>,
    parent: Pid,
    socket: OwnedFd,
    seat: Option<Seat<'s>>,
) -> std::io::Result<(OwnedFd, OwnedFd, Option<Seat<'s>>)> {
    die_with_parent(parent)?;
    SigSet::empty().thread_set_mask()?;
    let log = stderr::log().ok_or(std::io::ErrorKind::NotFound)?;
    let mut given = vec![sandbox.broker.try_clone()?, socket, log.share()?];
    let mut callers = Vec::new();
    let slot = match seat {
        None => None,
        Some(Seat { slot, lines, wakeup }) => {
            given.push(wakeup.share()?);
            for Line { id, fd, caller, lends } in lines {
                given.push(fd.try_clone()?);
                callers.push((id, caller, lends));
                // Its number is closed below.
                std::mem::forget(fd);
            }
            // As is this one's.
            std::mem::forget(wakeup);
            Some(slot)
        }
    };
    // SAFETY:
    // - this process never returns into init's code, which owns the other descriptors.
    let mut kept = unsafe { keep_only(given) }?.into_iter();
    let (Some(broker), Some(init), Some(fd)) = (kept.next(), kept.next(), kept.next()) else {
        return Err(std::io::ErrorKind::NotFound.into());
    };
    stderr::install(log.in_worker(fd));
    // The number that it had was closed with the others.
    std::mem::forget(log);
    let Some((slot, wakeup)) = slot.zip(kept.next()) else { return Ok((broker, init, None)) };
    let lines = callers.into_iter().zip(kept);
    let lines = lines.map(|((id, caller, lends), fd)| Line { id, fd: fd.into(), caller, lends });
    let seat = Seat { slot, lines: lines.collect(), wakeup: wakeup.into() };
    Ok((broker, init, Some(seat)))
}

impl<'a, M: Module> Worker<'a, M> {
    fn new(sandbox: &'a Sandbox<M>, broker: OwnedFd, init: OwnedFd) -> Self {
        let launch = &sandbox.launch;
        let settings = Settings {
            caller: launch.identity.function.clone(),
            max_payload: launch.max_payload,
            timeout_ms: launch.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
        };
        let embedded = EmbeddedCalls::new(launch.mode, launch.max_payload, &launch.embedded);
        let pool = (launch.pool_max > 0).then(|| SegmentPool::new(launch.pool_max));
        let dispatcher = Dispatcher::new(settings, BrokerClient::new(broker)).lending(pool.clone());
        let calls = FunctionCalls::new(dispatcher, embedded);
        let context = Context {
            function: launch.identity.function.clone(),
            workflow: launch.workflow.clone(),
            ..Context::default()
        };
        let host = Host::new(context, Box::new(calls), Box::new(GuestLog(stderr::log())));
        let spec = InstanceSpec {
            args: launch.args.clone(),
            env: files::environment(launch),
            preopens: files::preopens(launch),
            pool,
        };
        let module = &sandbox.module;
        Self { launch, module, init: Rc::new(init), host, spec, not_renewed_told: false }
    }

    /// The context of an invocation.
    fn context(&self) -> Context {
        Context {
            function: self.launch.identity.function.clone(),
            workflow: self.launch.workflow.clone(),
            attempt: 1,
            ..Context::default()
        }
    }

    /// Tells init; false when init is gone, and then this process is about to go too.
    fn tell(&self, message: &WorkerMessage) -> bool {
        seqpacket::send(self.init.as_fd(), &[&control::encode(message)], &[], None).is_ok()
    }

    /// Wakes init with a message whose text it could do without; false when init is gone. An init whose socket is full has
    /// other messages to be woken by.
    fn nudge(&self, message: &WorkerMessage) -> bool {
        let sent = seqpacket::send(self.init.as_fd(), &[&control::encode(message)], &[], Some(0));
        matches!(sent, Ok(()) | Err(SocketError::Deadline))
    }

    /// Tells init why it makes instances anew, once.
    fn tell_not_renewed(&mut self, reason: NotRenewed) {
        if !std::mem::replace(&mut self.not_renewed_told, true) {
            let function = &self.launch.identity.function;
            let message = format!("{function}: each request gets an instance made anew: {reason}");
            // Without init there is no next request.
            let _told = self.tell(&WorkerMessage::NotRenewed { message });
        }
    }

    /// Tells init that there will be no instance; returns the exit code.
    fn start_failed(&self, error: &dyn std::error::Error) -> i32 {
        let mut message = super::builder::chain(error);
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        self.tell(&WorkerMessage::StartFailed { message });
        EXIT_START_FAILED
    }
}
