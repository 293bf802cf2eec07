//! `Create`: from a bundle to a container whose init waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use containerd_shim::api::{CreateTaskRequest, CreateTaskResponse};
use containerd_shim::protos::events::task::{TaskCreate, TaskIO};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::action::Action;
use super::blocking::{blocking, unless_cancelled};
use super::container::{Built, BundleLog, Container, Function};
use super::error::TaskError;
use super::progress::StartProgress;
use super::provision::Provision;
use super::spec::{cgroups_path, has_aftermath, has_own_pids, has_start_hooks};
use super::stdio::{ContainerStdio, Stdio, StdioRelay, open};
use super::table::Tasks;
use crate::reaper::Exit;
use crate::session::Stat;
use crate::{cgroups, cleanup, rootfs};
use cwasi_config::{CgroupDriver, Engine};
use cwasi_coordinator::aot::EntryInUse;
use cwasi_coordinator::bundle::{BundleSpec, load_spec};
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::{Plan, Progress as _};
use cwasi_host::broker::BrokerPeer;
use cwasi_host::metrics::starts::{StartStages, micros};
use cwasi_host::state::{self, ContainerRecord, RegisteredAs, container_key};
use cwasi_sys::seqpacket;
use cwasi_wire::control::{CreateSpec, SandboxKind, Verb, VerbReply, Workload};

/// A container that can be built.
struct Prepared {
    /// Of its start, up to the builder.
    stages: StartStages,
    bundle: BundleSpec,
    stdio: Stdio,
    log: BundleLog,
    /// Cgroups of others, too.
    shared: Vec<PathBuf>,
    opened: Opened,
}

/// Everything that is opened for a container before its builder starts.
struct Opened {
    workload: Workload,
    /// Engine of a function.
    engine: Option<Engine>,
    /// Registry record of a secondary.
    record: Option<Record>,
    streams: ContainerStdio,
    relay: StdioRelay,
    /// Ours and the sandbox's, for functions.
    broker: Option<(OwnedFd, OwnedFd)>,
    receiver: Option<OwnedFd>,
    /// Keeps the native code in the cache, until the builder has loaded it.
    _in_use: Vec<Arc<EntryInUse>>,
}

impl Tasks {
    /// Creates a container; on failure nothing of it is left.
    ///
    /// # Errors
    /// What the user has to change, or what the node lacks.
    pub async fn create(
        self: Arc<Self>,
        request: CreateTaskRequest,
    ) -> Result<CreateTaskResponse, TaskError> {
        if !request.checkpoint.is_empty() || !request.parent_checkpoint.is_empty() {
            return Err(TaskError::NoCheckpoint { id: request.id });
        }
        let reservation = self.reserve(&request.id)?;
        cgroups::expect_a_move();
        let mut record = self.new_record(&request);
        let built = self.build(&request, &mut record, reservation.cancelled()).await;
        let (container, exit) = match built {
            Ok(built) => built,
            Err(error) => {
                tracing::error!(container = request.id, %error, "create failed");
                self.discard(record).await;
                return Err(error);
            }
        };
        let container = Arc::new(container);
        reservation.fulfil(&container);
        self.parts.publisher.publish(created_event(&request, &container));
        let (tasks, watched) = (Arc::clone(&self), Arc::clone(&container));
        tokio::spawn(async move { tasks.watch(watched, exit).await });
        let mut response = CreateTaskResponse::new();
        response.set_pid(container.api_pid());
        Ok(response)
    }

    fn new_record(&self, request: &CreateTaskRequest) -> ContainerRecord {
        ContainerRecord {
            namespace: self.parts.namespace.clone(),
            id: request.id.clone(),
            group: self.parts.group.id().to_owned(),
            bundle: PathBuf::from(&request.bundle),
            rootfs: PathBuf::from(&request.bundle).join("rootfs"),
            rootfs_mounted: !request.rootfs.is_empty(),
            pid: 0,
            pid_started: 0,
            cgroups: Vec::new(),
            shim_pid: self.parts.pid,
            shim_started: self.parts.started,
            registered: None,
            receiver: None,
        }
    }

    /// Removes what a failed create has made so far.
    async fn discard(&self, record: ContainerRecord) {
        let key = container_key(&record.namespace, &record.id);
        if self.parts.group.oci().join(&key).exists() {
            // A builder that died half-way; libcontainer knows the cgroup that it made.
            if let Err(error) = self.parts.run_verb(&key, Verb::Delete, &[]).await {
                tracing::warn!(container = record.id, %error, "cleaning up without the builder");
            }
        }
        let (state, group) = (self.parts.state.clone(), self.parts.group.clone());
        let removing = tokio::task::spawn_blocking(move || {
            cleanup::remove(&state, &record);
            // It is still there where the record could not be written, and would keep the daemon.
            let mark = group.start_mark(&record.namespace, &record.id);
            if let Err(error) = state::remove_file(&mark) {
                tracing::warn!(container = record.id, %error, "the mark of a start stays");
            }
        });
        if let Err(error) = removing.await {
            tracing::error!(%error, "cleaning up after a failed create died");
        }
    }

    async fn build(
        self: &Arc<Self>,
        request: &CreateTaskRequest,
        record: &mut ContainerRecord,
        cancelled: watch::Receiver<bool>,
    ) -> Result<(Container, oneshot::Receiver<Exit>), TaskError> {
        let (tasks, asked, mut draft) = (Arc::clone(self), request.clone(), record.clone());
        let reactor = Handle::current();
        // One thread does all that blocks: on a node without a free processor, each change of threads waits for one.
        let turn = unless_cancelled(&request.id, cancelled.clone(), self.turn_to_plan()).await?;
        let prepared = blocking(&request.id, move || {
            let prepared = tasks.prepare(&reactor, &asked, &mut draft, cancelled);
            Ok((prepared, draft))
        });
        let (prepared, draft) = prepared.await?;
        drop(turn);
        *record = draft;
        let Prepared { mut stages, bundle, stdio, log, shared, mut opened } = prepared?;
        let BundleSpec { spec, text } = bundle;
        let key = container_key(&record.namespace, &record.id);
        let ticket = self.parts.reaper.ticket();
        let terminal;
        let began = Instant::now();
        (record.pid, terminal) = self.run_builder(&key, record, text, &opened).await?;
        stages.container_us = Some(micros(began.elapsed()));
        let exit = ticket.claim(record.pid);
        drop(ticket);
        let function = self.listen(&record.id, &opened.workload, opened.broker)?;
        let action = Action::of(&opened.workload, opened.engine, &opened.streams);
        let record_of = opened.record;
        let function = function.map(|(name, readiness)| Function {
            name,
            readiness,
            record: record_of,
            action,
        });
        opened.relay.serve(terminal);
        let built = Built {
            stages,
            key,
            stdio,
            terminal: request.terminal,
            log,
            relay: opened.relay,
            function,
            shares_pids: !has_own_pids(&spec),
            has_start_hooks: has_start_hooks(&spec),
            has_aftermath: has_aftermath(&spec),
        };
        let (state, mut record) = (self.parts.state.clone(), record.clone());
        let finishing = blocking(&request.id, move || {
            record.pid_started = Stat::of(record.pid).map_or(0, |stat| stat.started);
            let joined = cgroups::of_process(record.pid, &shared);
            // An init that has ended already is in none.
            if !joined.is_empty() {
                record.cgroups = joined;
            }
            state::write_json(&state.record(&record.namespace, &record.id), &record)?;
            Ok(Container::new(built, record))
        });
        let container = finishing.await?;
        Ok((container, exit))
    }

    /// All that comes before the builder. Blocks.
    fn prepare(
        &self,
        reactor: &Handle,
        request: &CreateTaskRequest,
        record: &mut ContainerRecord,
        cancelled: watch::Receiver<bool>,
    ) -> Result<Prepared, TaskError> {
        let (began, mut stages) =
            (Instant::now(), StartStages::begin(&self.parts.namespace, &request.id));
        let bundle = self.mount(request, record)?;
        let spec = &bundle.spec;
        let key = container_key(&record.namespace, &record.id);
        let cgroup = cgroups::locate(self.parts.cgroup_driver, cgroups_path(spec), &key)
            .map_err(|source| TaskError::Cgroup { id: request.id.clone(), source })?;
        let stdio = Stdio {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
        };
        // The user who waits for the plan reads there what it does. The streams stay open from here on: with the last
        // writer's end a reader would see the end of the output.
        let open = if request.terminal { open::open_terminal } else { open::open };
        let (streams, relay) = open(&stdio, self.logged(&request.id))?;
        let progress = StartProgress::new(&request.id, &record.bundle, &streams);
        let planning = self.parts.provisioner.plan(&request.id, spec, &record.rootfs, &progress);
        let mut provision =
            reactor.block_on(unless_cancelled(&request.id, cancelled, planning))??;
        if let Workload::Function(launch) = &mut provision.plan.workload {
            launch.log_has_times = streams.stderr_is_file();
        }
        tracing::info!(container = request.id, note = provision.plan.note, "planned");
        if let (Workload::Function(launch), true) = (&provision.plan.workload, request.terminal) {
            let (id, function) = (request.id.clone(), launch.identity.to_string());
            return Err(TaskError::NoTerminal { id, function });
        }
        self.warn_of_another(&request.id, &provision.plan.workload);
        if let Some(name) = &provision.plan.shares_role
            && let Some(other) = self.a_secondary()
        {
            progress.warn(&format!(
                "{other} of this pod is a secondary, too, because cwasi.role names no container: write cwasi.role.{name}, and \
                 the like, to tell them apart"
            ));
        }
        let shared;
        (record.cgroups, shared) = match self.parts.sandbox {
            SandboxKind::Container => cgroups::to_be_made(&cgroup),
            SandboxKind::Process => Default::default(),
        };
        let code = provision.plan.code;
        let opened = self.open(provision, streams, relay, record)?;
        stages.planned(began.elapsed(), code);
        Ok(Prepared { stages, bundle, stdio, log: progress.into_log(), shared, opened })
    }

    /// Mounts the root file system, after writing down that it will be.
    fn mount(
        &self,
        request: &CreateTaskRequest,
        record: &mut ContainerRecord,
    ) -> Result<BundleSpec, TaskError> {
        let read = load_spec(&record.bundle).map_err(super::provision::ProvisionError::from)?;
        if let Some(root) = read.spec.root().as_ref() {
            record.rootfs = record.bundle.join(root.path());
        }
        self.write_down(record)?;
        // The record and the reservation stand for the start from here on.
        state::remove_file(&self.parts.group.start_mark(&record.namespace, &record.id))?;
        if !request.rootfs.is_empty() {
            rootfs::mount(&request.rootfs, &record.rootfs)?;
        }
        Ok(read)
    }

    fn write_down(&self, record: &ContainerRecord) -> Result<(), TaskError> {
        let path = self.parts.state.record(&record.namespace, &record.id);
        Ok(state::write_json(&path, record)?)
    }

    fn open(
        &self,
        provision: Provision,
        streams: ContainerStdio,
        relay: StdioRelay,
        record: &mut ContainerRecord,
    ) -> Result<Opened, TaskError> {
        let Provision { plan, socket } = provision;
        if let Some(entry) = &plan.record {
            let (identity, instance) = (entry.identity.clone(), entry.instance.clone());
            record.registered = Some(RegisteredAs { identity, instance });
            record.receiver = Some(socket);
        }
        let id = record.id.as_str();
        self.write_down(record)?;
        let receiver = record.receiver.as_deref().map(|path| receiver(path, id)).transpose()?;
        let broker = match &plan.workload {
            Workload::Native => None,
            Workload::Function(_) => {
                let failed = |source| TaskError::Socket { id: id.to_owned(), source };
                Some(seqpacket::pair().map_err(failed)?)
            }
        };
        let Plan { workload, record, engine, in_use, .. } = plan;
        Ok(Opened { workload, engine, record, streams, relay, broker, receiver, _in_use: in_use })
    }

    /// Has the container built; returns its init's pid, and the master of its terminal.
    async fn run_builder(
        &self,
        key: &str,
        record: &ContainerRecord,
        specification: String,
        opened: &Opened,
    ) -> Result<(i32, Option<OwnedFd>), TaskError> {
        let spec = CreateSpec {
            id: record.id.clone(),
            bundle: record.bundle.clone(),
            specification,
            systemd_cgroup: self.parts.cgroup_driver == CgroupDriver::Systemd,
            sandbox: self.parts.sandbox,
            workload: opened.workload.clone(),
        };
        let verb = Verb::Create(Box::new(spec));
        let mut descriptors: Vec<BorrowedFd<'_>> = opened.streams.in_order().to_vec();
        descriptors.extend(opened.broker.iter().map(|(_, theirs)| theirs.as_fd()));
        descriptors.extend(opened.receiver.iter().map(AsFd::as_fd));
        match self.parts.run_verb_with(opened.engine, key, verb, &descriptors).await? {
            (VerbReply::Created { pid }, passed) => Ok((pid, passed.into_iter().next())),
            (other, _) => Err(TaskError::NotStarted {
                id: record.id.clone(),
                reason: format!("the builder answered {other:?} to create"),
            }),
        }
    }

    /// A fan-in has one instance, and the only sign of a second one would be missing parts.
    fn warn_of_another(&self, container: &str, workload: &Workload) {
        let Workload::Function(launch) = workload else { return };
        if launch.fan_in.is_none() {
            return;
        }
        let function = &launch.identity;
        // What cannot be read now is no reason against the start.
        let others = self.parts.broker.registry().instances(function).unwrap_or_default();
        // One of another pod has callers of its own.
        let meets = |other: &&Record| other.group.is_empty() || other.group == launch.group;
        if let Some(other) = others.iter().find(meets) {
            let other = &other.container;
            tracing::warn!(container, %function, other, "a function with cwasi.fan-in has another instance: parts that go to different ones do not meet");
        }
    }

    /// Serves the sandbox of a function.
    fn listen(
        &self,
        id: &str,
        workload: &Workload,
        broker: Option<(OwnedFd, OwnedFd)>,
    ) -> Result<Option<Listening>, TaskError> {
        let (Workload::Function(launch), Some((ours, _))) = (workload, broker) else {
            return Ok(None);
        };
        let name = launch.identity.to_string();
        let readiness =
            self.parts.broker.serve(ours, BrokerPeer::of_sandbox(launch)).map_err(|source| {
                TaskError::System { id: id.to_owned(), operation: "watching its broker", source }
            })?;
        Ok(Some((name, readiness)))
    }
}

type Listening = (String, tokio::sync::watch::Receiver<cwasi_host::broker::Readiness>);

fn receiver(path: &Path, id: &str) -> Result<OwnedFd, TaskError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .map_err(state::StateError::io("create directory", parent))?;
    }
    seqpacket::listener(path).map_err(|source| TaskError::Socket { id: id.to_owned(), source })
}

fn created_event(request: &CreateTaskRequest, container: &Container) -> TaskCreate {
    let mut streams = TaskIO::new();
    streams.set_stdin(request.stdin.clone());
    streams.set_stdout(request.stdout.clone());
    streams.set_stderr(request.stderr.clone());
    let mut event = TaskCreate::new();
    event.set_container_id(request.id.clone());
    event.set_bundle(request.bundle.clone());
    event.set_rootfs(request.rootfs.clone());
    event.set_io(streams);
    event.set_pid(container.api_pid());
    event
}
