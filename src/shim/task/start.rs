//! `Start`: lets the workload of a created container run.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use containerd_shim::api::{StartRequest, StartResponse};
use containerd_shim::protos::events::task::TaskStart;

use super::action::Action;
use super::blocking::blocking;
use super::container::{Container, Function, Status};
use super::delivery::deliver;
use super::error::TaskError;
use super::provision::ProvisionError;
use super::stdio::copying::drain;
use super::table::Tasks;
use cwasi_config::Engine;
use cwasi_coordinator::PlanError;
use cwasi_coordinator::delivered::Delivery;
use cwasi_coordinator::registry::Record;
use cwasi_host::broker::Readiness;
use cwasi_host::caller::{HostCaller, Tracer};
use cwasi_host::http::openwhisk::{ActionHost, StartError};
use cwasi_host::http::port::ServedPort;
use cwasi_host::metrics::starts::{StartStages, micros};
use cwasi_wire::control::{START_SOCKET, START_WORD, SandboxKind, Verb, Workload};

/// Longest time a function may take from start to ready: its workers are forked and its instances made.
const READY_MAX: Duration = Duration::from_secs(60);

impl Tasks {
    /// Lets the workload run; a secondary can be called when this returns.
    ///
    /// # Errors
    /// When it is not created or does not come up.
    pub async fn start(
        self: &Arc<Self>,
        request: &StartRequest,
    ) -> Result<StartResponse, TaskError> {
        if !request.exec_id.is_empty() {
            return self.start_exec(&request.id, &request.exec_id).await;
        }
        let container = self.find(&request.id)?;
        let _verbs = container.verbs.lock().await;
        if container.status() != Status::Created {
            return Err(container.refuse("start"));
        }
        let began = Instant::now();
        if let Err(error) = self.run_workload(&container).await {
            tracing::error!(container = container.id, %error, "start failed");
            container.log.line("error", &container.id, &error.to_string());
            // A workload that did not come up is of no use; it may have ended already.
            let _ = container.signal(libc::SIGKILL);
            // The user reads the reason in its log.
            let logs = container.relay().take_logs();
            drain(logs).await;
            return Err(error);
        }
        container.set_ready();
        let ready_us = Some(micros(began.elapsed()));
        let stages = StartStages { ready_us, ..container.stages.clone() };
        self.parts.broker.metrics().set_start(stages);
        container.status.send_replace(Status::Running);
        let mut event = TaskStart::new();
        event.set_container_id(container.id.clone());
        event.set_pid(container.api_pid());
        self.parts.publisher.publish(event);
        tracing::info!(container = container.id, pid = container.pid, "started");
        let mut response = StartResponse::new();
        response.set_pid(container.api_pid());
        Ok(response)
    }

    async fn run_workload(self: &Arc<Self>, container: &Arc<Container>) -> Result<(), TaskError> {
        if container.has_start_hooks {
            self.parts.run_verb(&container.key, Verb::Start, &[]).await?;
        } else {
            // A connection to a socket that listens, and a word that fits into it: nothing here waits.
            start_word(&container.id, &self.parts.group.oci().join(&container.key))?;
        }
        let Some(function) = &container.function else { return Ok(()) };
        if function.action.is_some() {
            let Some(record) = &function.record else { return Ok(()) };
            return self.serve_port(container, record).await;
        }
        wait_ready(&container.id, function).await?;
        let Some(record) = function.record.clone() else { return Ok(()) };
        self.register(container, record, true).await
    }

    /// Lets callers find a function that is ready, and serves its port, if that is not served yet.
    async fn register(
        self: &Arc<Self>,
        container: &Arc<Container>,
        record: Record,
        serves_port: bool,
    ) -> Result<(), TaskError> {
        let record = match self.parts.broker.network() {
            Some(network) => {
                let failed = |source| TaskError::Trigger { id: container.id.clone(), source };
                network.prepare(&record).await.map_err(failed)?;
                network.linked(record)
            }
            None => record,
        };
        let registry = self.parts.broker.registry().clone();
        let local = record.clone();
        blocking(&container.id, move || Ok(registry.add(&local).map(drop)?)).await?;
        if serves_port {
            self.serve_port(container, &record).await?;
        }
        tracing::info!(container = container.id, function = %record.identity, "registered");
        if let Some(network) = self.parts.broker.network() {
            network.serve(record).await;
        }
        Ok(())
    }

    /// Serves the port of `cwasi.http`, if the function has one.
    async fn serve_port(
        self: &Arc<Self>,
        container: &Arc<Container>,
        record: &Record,
    ) -> Result<(), TaskError> {
        let Some(port) = record.http_port else { return Ok(()) };
        let resolver = self.parts.broker.resolver().clone();
        let pid = match self.parts.sandbox {
            SandboxKind::Container => Some(container.pid),
            SandboxKind::Process => None,
        };
        let spans = self.parts.broker.spans().clone();
        let tracer = Tracer::new(spans, &self.parts.traces);
        let metrics = self.parts.broker.metrics().clone();
        let caller = HostCaller::of_instance(resolver, record, tracer, metrics);
        let is_action = container.action().is_some();
        let served = if is_action {
            let (tasks, container) = (Arc::clone(self), Arc::downgrade(container));
            let host = ActionPort { tasks, container };
            ServedPort::start_action(pid, port, record, caller, host).await
        } else {
            ServedPort::start(pid, port, record, caller).await
        };
        let served = served.map_err(|source| TaskError::HttpPort {
            id: container.id.clone(),
            port,
            source,
        })?;
        container.set_port(Some(served));
        Ok(())
    }

    /// Starts the function of a container that waits for its code: plans it, sends it to its init, and registers it
    /// when it is ready.
    async fn start_action(
        self: &Arc<Self>,
        container: &Arc<Container>,
        delivery: Delivery,
    ) -> Result<(), TaskError> {
        let not_started = |reason: &str| TaskError::NotStarted {
            id: container.id.clone(),
            reason: reason.to_owned(),
        };
        let Some(function) = &container.function else {
            return Err(not_started("it is no function"));
        };
        let Some(record) = function.record.clone() else {
            return Err(not_started("it takes no calls"));
        };
        let plan = self.plan_delivery(container, &record, delivery).await?;
        let planned_for = container.action().and_then(Action::engine);
        if plan.engine != planned_for {
            let name = |engine: Option<Engine>| engine.map_or("none", Engine::name);
            return Err(not_started(&format!(
                "the code needs the engine {}, and the container has {}: set the annotation cwasi.engine",
                name(plan.engine),
                name(planned_for)
            )));
        }
        let Workload::Function(launch) = plan.workload else {
            return Err(not_started("it is no function"));
        };
        let (id, socket) = (container.id.clone(), record.socket.clone());
        blocking(&container.id, move || deliver(&id, &socket, *launch)).await?;
        // In the cache until it is loaded.
        let ready = wait_ready(&container.id, function).await;
        drop(plan.in_use);
        ready?;
        // Its end waits for this, or has come before.
        let _verbs = container.verbs.lock().await;
        if container.status() != Status::Running {
            return Err(container.refuse("a start of its code"));
        }
        self.register(container, record, false).await
    }
}

/// The port's way to its container, which owns the port.
struct ActionPort {
    tasks: Arc<Tasks>,
    container: Weak<Container>,
}

impl ActionHost for ActionPort {
    async fn start(&self, delivery: Delivery) -> Result<(), StartError> {
        let ended = || StartError::Failed("the container has ended".to_owned());
        let container = self.container.upgrade().ok_or_else(ended)?;
        self.tasks.start_action(&container, delivery).await.map_err(|error| match error {
            TaskError::Provision(ProvisionError::Plan(PlanError::NoCode)) => StartError::NoCode,
            error => {
                tracing::warn!(container = container.id, %error, "an action does not start");
                StartError::Failed(error.to_string())
            }
        })
    }

    async fn end_activation(&self) {
        if let Some(container) = self.container.upgrade()
            && let Some(action) = container.action()
        {
            action.end_activation().await;
        }
    }

    async fn log(&self, text: &str) {
        if let Some(container) = self.container.upgrade()
            && let Some(action) = container.action()
        {
            action.log(text).await;
        }
    }
}

/// Tells an init that waits in libcontainer to go on, as libcontainer's own `start` does. Its socket is in `state`,
/// whose path may be too long for one.
fn start_word(id: &str, state: &Path) -> Result<(), TaskError> {
    let failed = |source: io::Error| TaskError::System {
        id: id.to_owned(),
        operation: "telling init to start",
        source,
    };
    let directory = File::open(state).map_err(failed)?;
    let socket = format!("/proc/self/fd/{}/{START_SOCKET}", directory.as_raw_fd());
    let mut init = UnixStream::connect(socket).map_err(failed)?;
    init.write_all(START_WORD).map_err(failed)
}

/// Waits for the sandbox's word about its start.
async fn wait_ready(id: &str, function: &Function) -> Result<(), TaskError> {
    let mut readiness = function.readiness.clone();
    let reported = readiness.wait_for(|readiness| *readiness != Readiness::Waiting);
    let failed = |reason: String| Err(TaskError::NotStarted { id: id.to_owned(), reason });
    match tokio::time::timeout(READY_MAX, reported)
        .await
        .map(|state| state.map(|state| state.clone()))
    {
        Ok(Ok(Readiness::Ready)) => Ok(()),
        Ok(Ok(Readiness::Failed(message))) => failed(message),
        Ok(_) => failed(format!("the sandbox of {} ended before it was ready", function.name)),
        Err(_) => failed(format!(
            "{} was not ready within {} s: its module's `_initialize` or start function has not returned, or its workers \
             cannot be started; its stderr may say why",
            function.name,
            READY_MAX.as_secs()
        )),
    }
}
