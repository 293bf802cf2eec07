//! Client of one engine's zygote: starts it once, sends it verbs, restarts it after its death. Runs in the shim daemon.
//!
//! Containers do not depend on the zygote: their inits are children of the daemon (docs/architecture.md).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, OnceCell, watch};

use super::document::{DocumentError, Outgoing};
use super::llvm_stub::{self, LLVM_STUB_FD};
use super::reaper::Reaper;
use super::spawn::{Program, SpawnError};
use cwasi_config::Engine;
use cwasi_host::readiness;
use cwasi_sys::clock::Deadline;
use cwasi_sys::page_buffer::PageBuffer;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::{
    self, CONTROL_MESSAGE_MAX, ControlCodecError, VERSION, VerbReply, VerbRequest,
};

/// Descriptor of the zygote's control socket.
const CONTROL_FD: i32 = 3;
/// Longest time a zygote may take to accept a message.
const ACCEPT_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the zygote's greeting, which it sends after loading the engine.
const GREETING_MAX: Duration = Duration::from_secs(30);
/// Longest greeting: a version.
const GREETING_LEN_MAX: usize = 64;
/// Longest run of a verb, loading a large module included.
const VERB_MAX: Duration = Duration::from_secs(120);
/// Most zygotes for one verb.
const TRIES: u32 = 2;
/// Longest time a zygote may take to end.
const STOP_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ZygoteError {
    /// The zygote cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A function needs an engine that is optional on a node, or the node's own is missing.
    #[error(
        "the engine {engine} is not installed on this node: `{program}` is neither beside {} nor in PATH",
        this.display()
    )]
    NoEngine {
        engine: Engine,
        program: &'static str,
        /// Path of this program.
        this: PathBuf,
    },
    #[error("the zygote cannot be asked: {0}")]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// Waiting on its socket failed.
    #[error("the zygote's answer cannot be awaited: {0}")]
    Wait(#[source] io::Error),
    /// Programs of two versions.
    #[error(
        "{} is of version {theirs}, this shim of version {ours}; install all binaries of one version",
        program.display()
    )]
    OtherVersion { program: PathBuf, theirs: String, ours: &'static str },
    /// It sent no greeting.
    #[error("the zygote was not up within {} s", GREETING_MAX.as_secs())]
    Silent,
    /// The zygote or its builder died.
    #[error(
        "the builder of container {container} ended without an answer; the daemon's log may say why"
    )]
    NoAnswer { container: String },
    /// The builder is too slow.
    #[error("the builder of container {container} did not answer within {} s", VERB_MAX.as_secs())]
    Slow { container: String },
    #[error(transparent)]
    Codec(#[from] ControlCodecError),
    #[error("{0}")]
    Failed(String),
}

/// The daemon's end of a zygote's control socket.
#[derive(Debug)]
struct Control {
    socket: AsyncFd<OwnedFd>,
    /// True after the greeting, false if it ended before.
    greeted: OnceCell<bool>,
}

/// Client of the group's zygote for one engine.
#[derive(Debug)]
pub struct Zygote {
    engine: Engine,
    program: Program,
    reaper: Reaper,
    control: Arc<Mutex<Option<RunningZygote>>>,
    /// Set after a zygote failed to start with the stub for LLVM.
    needs_llvm: AtomicBool,
}

#[derive(Debug)]
struct RunningZygote {
    pid: i32,
    control: Arc<Control>,
    /// Its sender is dropped when the zygote has been reaped.
    ended: watch::Receiver<()>,
}

impl Zygote {
    /// A client that starts the zygote of `engine` on first use.
    #[must_use]
    pub fn of(engine: Engine, program: Program, reaper: &Reaper) -> Self {
        let (reaper, control) = (reaper.clone(), Arc::new(Mutex::new(None)));
        Self { engine, program, reaper, control, needs_llvm: AtomicBool::new(false) }
    }

    /// Starts the zygote if there is none, in parallel with the daemon's other parts.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub async fn start(&self) -> Result<(), ZygoteError> {
        self.connection().await.map(drop)
    }

    /// The zygote's control socket; starts a zygote if there is none.
    async fn connection(&self) -> Result<Arc<Control>, ZygoteError> {
        let mut running = self.control.lock().await;
        if let Some(running) = &*running {
            return Ok(Arc::clone(&running.control));
        }
        let (ours, theirs) = seqpacket::pair()?;
        let ticket = self.reaper.ticket();
        let llvm_stub = self.llvm_stub();
        let mut descriptors = vec![(theirs.as_fd(), CONTROL_FD)];
        descriptors.extend(llvm_stub.iter().map(|file| (file.as_fd(), LLVM_STUB_FD)));
        let variables: Vec<_> = llvm_stub.iter().map(|_| llvm_stub::ENVIRONMENT).collect();
        let pid = self.program.spawn(&["zygote"], &descriptors, &variables)?;
        let exit = ticket.claim(pid);
        let engine = self.engine.name();
        tracing::info!(pid, engine, llvm_stub = llvm_stub.is_some(), "zygote started");
        let socket = readiness::watch(ours).map_err(ZygoteError::Wait)?;
        let control = Arc::new(Control { socket, greeted: OnceCell::new() });
        let (alive, ended) = watch::channel(());
        *running = Some(RunningZygote { pid, control: Arc::clone(&control), ended });
        let slot = Arc::clone(&self.control);
        tokio::spawn(async move {
            let status = exit.await.map_or(-1, |exit| exit.status);
            drop(alive);
            tracing::info!(pid, status, "zygote ended; the next container starts another");
            let mut running = slot.lock().await;
            if running.as_ref().is_some_and(|running| running.pid == pid) {
                *running = None;
            }
        });
        Ok(control)
    }

    /// The stub for LLVM, for the engine that links LLVM.
    fn llvm_stub(&self) -> Option<OwnedFd> {
        match self.engine {
            Engine::Wasmedge if !self.needs_llvm.load(Ordering::Relaxed) => llvm_stub::file(),
            Engine::Wasmedge | Engine::Wasmtime => None,
        }
    }

    /// Ends the zygote and waits for it, so that it does not outlive the daemon.
    pub async fn stop(&self) {
        let ended = {
            let mut running = self.control.lock().await;
            running.take().map(|running| running.ended)
        };
        if let Some(mut ended) = ended
            && tokio::time::timeout(STOP_MAX, ended.changed()).await.is_err()
        {
            tracing::warn!("the zygote does not end");
        }
    }

    /// Drops a zygote whose socket is closed.
    async fn forget(&self, control: &Arc<Control>) {
        let mut running = self.control.lock().await;
        if running.as_ref().is_some_and(|running| Arc::ptr_eq(&running.control, control)) {
            *running = None;
        }
    }

    /// Runs one verb. `descriptors` are those of [`control::VerbRequest`] without the reply; returns the reply with its own.
    ///
    /// # Errors
    /// When no zygote can be started or the verb fails.
    pub async fn run(
        &self,
        request: &VerbRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(VerbReply, Vec<OwnedFd>), ZygoteError> {
        let Outgoing { message, document } = Outgoing::new(control::encode(request))?;
        let bytes = Arc::new(message);
        let mut owned = Vec::with_capacity(descriptors.len() + 1);
        owned.extend(document);
        for descriptor in descriptors {
            owned.push(descriptor.try_clone_to_owned().map_err(ZygoteError::Wait)?);
        }
        let owned = Arc::new(owned);
        let mut tries = 0;
        loop {
            tries += 1;
            let control = self.connection().await?;
            let sent = if control.has_greeted(&self.program).await? {
                send(Arc::clone(&control), Arc::clone(&bytes), Arc::clone(&owned)).await
            } else {
                // The daemon's log has the dynamic linker's message.
                self.needs_llvm.store(true, Ordering::Relaxed);
                Err(SocketError::Closed.into())
            };
            match sent {
                Ok(reply) => return answer(reply, &request.container).await,
                // Not accepted, so nothing happened: another zygote may try.
                Err(ZygoteError::Socket(SocketError::Closed)) if tries < TRIES => {
                    self.forget(&control).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Control {
    /// Waits for the greeting; false if the zygote ended instead, and so accepted nothing.
    async fn has_greeted(&self, program: &Program) -> Result<bool, ZygoteError> {
        let waiting = async {
            let mut buffer = [0; GREETING_LEN_MAX];
            loop {
                let mut ready = self.socket.readable().await.map_err(ZygoteError::Wait)?;
                match seqpacket::try_receive(self.socket.get_ref().as_fd(), &mut buffer) {
                    Ok(Some(greeting)) => {
                        return check_version(&buffer[..greeting.len], program).map(|()| true);
                    }
                    Ok(None) => ready.clear_ready(),
                    Err(SocketError::Closed) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let bounded = async {
            tokio::time::timeout(GREETING_MAX, waiting).await.map_err(|_| ZygoteError::Silent)?
        };
        self.greeted.get_or_try_init(|| bounded).await.copied()
    }
}

/// Their messages have no versions of their own.
fn check_version(greeting: &[u8], program: &Program) -> Result<(), ZygoteError> {
    if greeting == VERSION.as_bytes() {
        return Ok(());
    }
    let theirs = String::from_utf8_lossy(greeting).into_owned();
    let program = program.path().to_owned();
    Err(ZygoteError::OtherVersion { program, theirs, ours: VERSION })
}

/// Sends a request; returns our end of its reply socket.
async fn send(
    control: Arc<Control>,
    bytes: Arc<Vec<u8>>,
    descriptors: Arc<Vec<OwnedFd>>,
) -> Result<OwnedFd, ZygoteError> {
    let sending = move |deadline| {
        let (ours, theirs) = seqpacket::pair()?;
        let mut all = vec![theirs.as_fd()];
        all.extend(descriptors.iter().map(AsFd::as_fd));
        seqpacket::send(control.socket.get_ref().as_fd(), &[&bytes], &all, Some(deadline))?;
        Ok(ours)
    };
    // There usually is room, and another thread may start late on a busy node.
    match sending(Deadline::PASSED) {
        Err(SocketError::Deadline) => {}
        sent => return Ok(sent?),
    }
    let waiting = move || Ok(sending(Deadline::after(ACCEPT_MAX))?);
    tokio::task::spawn_blocking(waiting).await.map_err(|error| ZygoteError::Wait(error.into()))?
}

/// Waits for a builder's answer.
async fn answer(reply: OwnedFd, container: &str) -> Result<(VerbReply, Vec<OwnedFd>), ZygoteError> {
    let container = || container.to_owned();
    let waiting = async {
        let reply = readiness::watch(reply).map_err(ZygoteError::Wait)?;
        let mut buffer = PageBuffer::new(CONTROL_MESSAGE_MAX);
        loop {
            let mut ready = reply.readable().await.map_err(ZygoteError::Wait)?;
            match seqpacket::try_receive(reply.get_ref().as_fd(), &mut buffer) {
                Ok(Some(received)) => {
                    return Ok((control::decode(&buffer[..received.len])?, received.descriptors));
                }
                Ok(None) => ready.clear_ready(),
                Err(SocketError::Closed) => {
                    return Err(ZygoteError::NoAnswer { container: container() });
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    let slow = |_| ZygoteError::Slow { container: container() };
    match tokio::time::timeout(VERB_MAX, waiting).await.map_err(slow)?? {
        (VerbReply::Failed { message }, _) => Err(ZygoteError::Failed(message)),
        replied => Ok(replied),
    }
}
