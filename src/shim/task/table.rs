//! Which tasks the group has, and when the daemon may end.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

use super::container::Container;
use super::error::TaskError;
use super::provision::Provisioner;
use super::stdio::logger::LoggedContainer;
use crate::publisher::Publisher;
use crate::reaper::Reaper;
use crate::zygote::{Zygote, ZygoteError};
use crate::zygotes::Zygotes;
use cwasi_config::traces::TracesConfig;
use cwasi_config::{CgroupDriver, Engine};
use cwasi_host::broker::Broker;
use cwasi_host::state::{GroupDir, StateDir};
use cwasi_wire::control::{SandboxKind, Verb, VerbReply, VerbRequest};

/// Most plans at a time. Each holds a thread while its module is compiled, which needs another one: half of the blocking
/// threads that tokio has by default.
const PLANS_MAX: usize = 256;

/// What the verbs work with; composed by the daemon.
pub struct Parts {
    pub namespace: String,
    /// This daemon, which is its session too.
    pub pid: i32,
    /// Its start in clock ticks after boot.
    pub started: u64,
    pub state: StateDir,
    pub group: GroupDir,
    pub reaper: Reaper,
    pub zygotes: Arc<Zygotes>,
    pub publisher: Publisher,
    pub broker: Broker,
    pub provisioner: Provisioner,
    /// Who makes containers' cgroups.
    pub cgroup_driver: CgroupDriver,
    pub sandbox: SandboxKind,
    pub traces: TracesConfig,
}

impl Parts {
    /// Has a builder do one operation on a container, which `key` names in libcontainer's state. The operation needs no
    /// engine.
    ///
    /// # Errors
    /// As [`Zygote::run`].
    pub async fn run_verb(
        &self,
        key: &str,
        verb: Verb,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(VerbReply, Vec<OwnedFd>), ZygoteError> {
        self.ask(self.zygotes.default()?, key, verb, descriptors).await
    }

    /// As [`Self::run_verb`], in a builder that has the engine loaded. `None` = the container needs no engine.
    ///
    /// # Errors
    /// As [`Zygote::run`], and when the engine is not installed.
    pub async fn run_verb_with(
        &self,
        engine: Option<Engine>,
        key: &str,
        verb: Verb,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(VerbReply, Vec<OwnedFd>), ZygoteError> {
        let zygote = match engine {
            Some(engine) => self.zygotes.of(engine)?,
            None => self.zygotes.default()?,
        };
        self.ask(zygote, key, verb, descriptors).await
    }

    async fn ask(
        &self,
        zygote: &Zygote,
        key: &str,
        verb: Verb,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(VerbReply, Vec<OwnedFd>), ZygoteError> {
        let request = VerbRequest { container: key.to_owned(), root: self.group.oci(), verb };
        zygote.run(&request, descriptors).await
    }
}

pub struct Tasks {
    /// What the verbs work with.
    pub parts: Parts,
    table: Mutex<TaskTable>,
    /// Plans that may begin.
    plans: Semaphore,
    end: Notify,
}

#[derive(Default)]
struct TaskTable {
    slots: HashMap<String, TaskEntry>,
    closed: bool,
}

enum TaskEntry {
    /// Being created. The value becomes true when the creation is cancelled; its [`Reservation`] holds the receiver.
    Creating(Arc<watch::Sender<bool>>),
    Created(Arc<Container>),
}

impl Tasks {
    /// Waits until one more plan may begin.
    pub(super) async fn turn_to_plan(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed.
        self.plans.acquire().await.ok()
    }

    /// No tasks yet.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let plans = Semaphore::new(PLANS_MAX);
        Self { parts, table: Mutex::default(), plans, end: Notify::new() }
    }

    /// For a logging program of this container.
    #[must_use]
    pub fn logged<'a>(&'a self, id: &'a str) -> LoggedContainer<'a> {
        let Parts { reaper, namespace, .. } = &self.parts;
        LoggedContainer { reaper, namespace, id }
    }

    fn table(&self) -> MutexGuard<'_, TaskTable> {
        // Every change is one insertion or removal, so a panic elsewhere leaves it whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task with this id.
    ///
    /// # Errors
    /// When there is none, or it is still being created.
    pub fn find(&self, id: &str) -> Result<Arc<Container>, TaskError> {
        match self.table().slots.get(id) {
            Some(TaskEntry::Created(container)) => Ok(Arc::clone(container)),
            Some(TaskEntry::Creating(_)) | None => Err(TaskError::NotFound { id: id.to_owned() }),
        }
    }

    /// A secondary of the group, if it has one.
    #[must_use]
    pub fn a_secondary(&self) -> Option<String> {
        self.table().slots.values().find_map(|slot| match slot {
            TaskEntry::Created(container) => {
                let function = container.function.as_ref()?;
                function.record.as_ref().map(|_| function.name.clone())
            }
            TaskEntry::Creating(_) => None,
        })
    }

    /// Cancels the creation of a task and waits for its end; false when no such creation was under way. A creation that
    /// is past its slow part succeeds all the same: look for the task again.
    ///
    /// The wait ends, because each step of a creation has a bound, and the unbounded one, compiling, is cancelled.
    pub async fn cancel_creation(&self, id: &str) -> bool {
        let creation = match self.table().slots.get(id) {
            Some(TaskEntry::Creating(cancelled)) => Arc::clone(cancelled),
            Some(TaskEntry::Created(_)) | None => return false,
        };
        creation.send_replace(true);
        creation.closed().await;
        true
    }

    /// Takes the id for a container to be created.
    ///
    /// # Errors
    /// When it is taken or the daemon ends.
    pub fn reserve(self: &Arc<Self>, id: &str) -> Result<Reservation, TaskError> {
        let mut table = self.table();
        if table.closed {
            return Err(TaskError::Ending);
        }
        if table.slots.contains_key(id) {
            return Err(TaskError::Exists { id: id.to_owned() });
        }
        let (sender, cancelled) = watch::channel(false);
        table.slots.insert(id.to_owned(), TaskEntry::Creating(Arc::new(sender)));
        Ok(Reservation { tasks: Arc::clone(self), id: Some(id.to_owned()), cancelled })
    }

    /// Forgets a deleted task.
    pub fn forget(&self, id: &str) {
        self.table().slots.remove(id);
    }

    /// True when there is no task and none is being created.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table().slots.is_empty()
    }

    /// Refuses new tasks from now on, if there are none.
    #[must_use]
    pub fn close_if_empty(&self) -> bool {
        let mut table = self.table();
        table.closed = table.slots.is_empty();
        table.closed
    }

    /// Asks the daemon to end when it can.
    pub fn ask_to_end(&self) {
        self.end.notify_one();
    }

    /// Waits for [`Self::ask_to_end`].
    pub async fn asked_to_end(&self) {
        self.end.notified().await;
    }
}

/// An id that is taken while its container is made; given back when that fails.
pub struct Reservation {
    tasks: Arc<Tasks>,
    id: Option<String>,
    /// Dropped last: a cancellation of the creation waits for that.
    cancelled: watch::Receiver<bool>,
}

impl Reservation {
    /// Becomes true when the creation is cancelled.
    #[must_use]
    pub fn cancelled(&self) -> watch::Receiver<bool> {
        self.cancelled.clone()
    }

    pub fn fulfil(mut self, container: &Arc<Container>) {
        if let Some(id) = self.id.take() {
            self.tasks.table().slots.insert(id, TaskEntry::Created(Arc::clone(container)));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.tasks.forget(&id);
        }
    }
}
