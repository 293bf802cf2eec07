//! A worker: forked by sandbox init, runs one invocation at a time. Each finds an instance in its first
//! state, unless `cwasi.isolation=instance` says that one instance serves all.
//!
//! A crash, a stack overflow or a missed deadline ends this process, and is the error of the one request that it ran.
//! Init then forks another worker. The worker dies with init.
#![expect(unsafe_code, reason = "closes every descriptor that it was not given")]

mod command;
mod primary;
mod prototype;
mod replies;
mod requests;
mod secondary;
mod server_span;
mod service_time;

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use nix::sys::signal::SigSet;
use nix::unistd::Pid;

use crate::dispatch::FunctionCalls;
use cwasi_dispatcher::settings::DEFAULT_TIMEOUT_MS;
use cwasi_dispatcher::spans::SpanRecorder;
use cwasi_dispatcher::{BrokerClient, Dispatcher, EmbeddedCalls, Settings};
use cwasi_modes::local::CallerConnection;
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::clock::Deadline;
use cwasi_sys::process::{close_others, die_with_parent, exit_now};
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_sys::wakeup::Wakeup;
use cwasi_vm::{Context, Host, InstanceSpec, Module};
use cwasi_wire::control::{self, FunctionLaunch};

use super::cause_chain::cause_chain;
use super::function_log::GuestLog;
use super::inherited::Sandbox;
use super::messages::WorkerMessage;
use super::worker_table::WorkerSlot;
use super::{exit_codes, files, memory_ceiling, stderr};

/// Longest message of a failed start, in bytes.
const MESSAGE_MAX: usize = 4 * 1024;

/// The state of a worker.
struct Worker<'a, M> {
    launch: &'a FunctionLaunch,
    module: &'a M,
    init: InitSocket,
    host: Host,
    spec: InstanceSpec,
    spans: SpanRecorder,
}

/// What sandbox init passes to a secondary's worker.
#[derive(Debug)]
pub struct WorkerSetup<'a> {
    /// The worker's slot in the worker table.
    pub slot: WorkerSlot<'a>,
    /// The connections that it may read from.
    pub connections: Vec<CallerConnection>,
    /// Wakes a follower; shared by all workers.
    pub wakeup: Rc<Wakeup>,
}

#[derive(Clone, Debug)]
struct InitSocket(Rc<OwnedFd>);

impl InitSocket {
    /// Sends init a message. Returns false when init is gone; this process then ends too.
    fn send(&self, message: &WorkerMessage) -> bool {
        seqpacket::send(self.0.as_fd(), &[&control::encode(message)], &[], None).is_ok()
    }

    /// Wakes init, which then looks at this worker's slot. When the socket is full, other messages wake init. Returns
    /// false when init is gone.
    fn nudge(&self) -> bool {
        let message = control::encode(&WorkerMessage::Progress);
        let sent = seqpacket::send(self.0.as_fd(), &[&message], &[], Some(Deadline::PASSED));
        matches!(sent, Ok(()) | Err(SocketError::Deadline))
    }
}

/// Runs the worker in the child that init has just forked. `socket` leads to init, whose pid is `parent`. Only workers
/// of secondaries have a `setup`.
pub fn enter<M: Module>(
    sandbox: &Sandbox<M>,
    parent: Pid,
    socket: OwnedFd,
    setup: Option<WorkerSetup<'_>>,
) -> ! {
    let _unnamed = nix::sys::prctl::set_name(c"cwasi-worker");
    // A panic must not unwind into init's frames, whose descriptors are closed here.
    let code = catch_unwind(AssertUnwindSafe(|| live(sandbox, parent, socket, setup)));
    exit_now(code.unwrap_or(exit_codes::PANICKED))
}

fn live<M: Module>(
    sandbox: &Sandbox<M>,
    parent: Pid,
    socket: OwnedFd,
    mut setup: Option<WorkerSetup<'_>>,
) -> i32 {
    match set_up(sandbox, parent, &socket, setup.as_mut()) {
        Ok(broker) => {
            let number = setup.as_ref().map_or(0, |setup| setup.slot.index());
            let worker = Worker::new(sandbox, number, broker, socket);
            match setup {
                None => primary::run(worker),
                Some(setup) => secondary::run(worker, setup),
            }
        }
        Err(error) => {
            stderr::line(&format!("a worker of {} cannot start: {error}", sandbox.launch.identity));
            exit_codes::START_FAILED
        }
    }
}

/// Closes all descriptors but stdio, the socket to init, the function's log, what the setup has, and the broker, which
/// it returns.
fn set_up<M: Module>(
    sandbox: &Sandbox<M>,
    parent: Pid,
    socket: &OwnedFd,
    setup: Option<&mut WorkerSetup<'_>>,
) -> std::io::Result<OwnedFd> {
    die_with_parent(parent)?;
    SigSet::empty().thread_set_mask()?;
    if let Some(bytes) = sandbox.memory_ceiling {
        memory_ceiling::set(bytes);
    }
    stderr::install(stderr::log().ok_or(std::io::ErrorKind::NotFound)?.in_worker()?);
    let (broker, log) = (sandbox.broker.try_clone()?, stderr::log());
    let mut keep = vec![broker.as_fd(), socket.as_fd()];
    keep.extend(log.iter().map(|log| log.as_fd()));
    keep.extend(sandbox.module.descriptors());
    keep.extend(sandbox.host_paths.descriptors());
    if let Some(setup) = setup {
        for connection in &mut setup.connections {
            // Init's own value is never dropped here, and so would not be closed with the connection.
            connection.fd = Rc::new(connection.fd.try_clone()?);
        }
        keep.push(setup.wakeup.as_fd());
        keep.extend(setup.connections.iter().map(|connection| connection.fd.as_fd()));
    }
    // SAFETY:
    // - this process never returns into init's code, which owns the other descriptors.
    unsafe { close_others(&keep) }?;
    Ok(broker)
}

impl<'a, M: Module> Worker<'a, M> {
    fn new(sandbox: &'a Sandbox<M>, number: u64, broker: OwnedFd, init: OwnedFd) -> Self {
        let launch = &sandbox.launch;
        let pool_max = launch.pool_of(number);
        let settings = Settings {
            caller: launch.identity.function.clone(),
            max_payload: launch.max_payload,
            timeout_ms: launch.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
        };
        let pool = (pool_max > 0).then(|| SegmentPool::new(pool_max));
        let spans = SpanRecorder::default();
        let mut dispatcher = Dispatcher::new(settings, BrokerClient::new(broker))
            .lending(pool.clone())
            .recording(spans.clone(), launch.trace.clone());
        let (modules, edges) = (&launch.embedded, dispatcher.edges());
        let embedded = EmbeddedCalls::new(launch.mode, launch.max_payload, modules, edges);
        let calls = FunctionCalls::new(dispatcher, embedded);
        let host = Host::new(context(launch), Box::new(calls), Box::new(GuestLog(stderr::log())));
        let spec = InstanceSpec {
            args: launch.args.clone(),
            env: files::environment(launch),
            preopens: files::preopens(launch, &sandbox.host_paths),
            pool,
        };
        let module = &sandbox.module;
        Self { launch, module, init: InitSocket(Rc::new(init)), host, spec, spans }
    }

    /// Tells init that no instance can be made; returns the exit code.
    fn start_failed(&self, error: &dyn std::error::Error) -> i32 {
        let mut message = cause_chain(error);
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        self.init.send(&WorkerMessage::StartFailed { message });
        exit_codes::START_FAILED
    }
}

/// The context of an invocation of which nothing is known yet.
fn context(launch: &FunctionLaunch) -> Context {
    Context {
        function: launch.identity.function.clone(),
        workflow: launch.workflow.clone(),
        attempt: 1,
        ..Context::default()
    }
}
