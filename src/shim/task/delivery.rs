//! Code that comes after a container's start: it is planned as the code of a start is, and sent to the init that waits.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::runtime::Handle;

use super::blocking::blocking;
use super::container::Container;
use super::error::TaskError;
use super::provision::ProvisionError;
use super::table::Tasks;
use crate::document::Outgoing;
use cwasi_coordinator::bundle::load_spec;
use cwasi_coordinator::delivered::Delivery;
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::{Plan, Progress};
use cwasi_sys::clock::Deadline;
use cwasi_sys::segment::Segment;
use cwasi_sys::seqpacket::{self, DESCRIPTORS_MAX};
use cwasi_wire::control::{self, FunctionLaunch};

/// Longest wait for init to take its launch.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);

impl Tasks {
    /// Plans the function with what has come. Ends with the container.
    pub(super) async fn plan_delivery(
        self: &Arc<Self>,
        container: &Arc<Container>,
        record: &Record,
        delivery: Delivery,
    ) -> Result<Plan, TaskError> {
        let (tasks, planned, record) = (Arc::clone(self), Arc::clone(container), record.clone());
        let reactor = Handle::current();
        let _turn = self.turn_to_plan().await;
        blocking(&container.id, move || {
            let progress = ActionProgress(&planned);
            let id = planned.id.clone();
            let read = load_spec(&planned.bundle).map_err(ProvisionError::from)?;
            let bundle = (&read.spec, planned.record.rootfs.as_path());
            let instance = (record.instance.as_str(), record.socket.as_path());
            let planning =
                tasks.parts.provisioner.plan_delivery(&id, bundle, instance, &delivery, &progress);
            reactor.block_on(async {
                tokio::select! {
                    plan = planning => Ok(plan?),
                    _exit = planned.exit() => Err(TaskError::Ended { id: id.clone() }),
                }
            })
        })
        .await
    }
}

/// Sends a launch and its code to the init that waits at `socket`.
pub(super) fn deliver(id: &str, socket: &Path, launch: FunctionLaunch) -> Result<(), TaskError> {
    let not_started = |reason: String| TaskError::NotStarted { id: id.to_owned(), reason };
    let artifacts = launch.embedded.iter().map(|module| &module.artifact);
    let artifacts: Vec<_> = std::iter::once(&launch.artifact).chain(artifacts).collect();
    let Outgoing { message, document } =
        Outgoing::new(control::encode(&launch)).map_err(|error| not_started(error.to_string()))?;
    let others = usize::from(document.is_some());
    if artifacts.len() + others > DESCRIPTORS_MAX {
        let most = DESCRIPTORS_MAX - 1 - others;
        return Err(not_started(format!("code that comes later embeds {most} modules at most")));
    }
    let copy = |path: &PathBuf| {
        sealed_copy(path).map_err(|error| {
            not_started(format!("its native code {} cannot be copied: {error}", path.display()))
        })
    };
    let files = artifacts.into_iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    let failed = |source| TaskError::Socket { id: id.to_owned(), source };
    let init = seqpacket::connect_to(socket).map_err(failed)?;
    let document = document.as_ref().map(OwnedFd::as_fd);
    let descriptors: Vec<_> =
        document.into_iter().chain(files.iter().map(Segment::as_fd)).collect();
    let deadline = Some(Deadline::after(LAUNCH_WAIT));
    seqpacket::send(init.as_fd(), &[&message], &descriptors, deadline).map_err(failed)
}

/// A copy of native code that any user can open by its descriptor, and nobody can change.
fn sealed_copy(path: &Path) -> io::Result<Segment> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut copy = File::from(memfd_create(c"cwasi-code", flags)?);
    io::copy(&mut File::open(path)?, &mut copy)?;
    Segment::seal(copy.into()).map_err(io::Error::other)
}

/// What the planning of delivered code says, in the logs of the daemon and of containerd.
struct ActionProgress<'a>(&'a Container);

impl Progress for ActionProgress<'_> {
    fn info(&self, text: &str) {
        tracing::info!(container = self.0.id, "{text}");
        self.0.log.line("info", &self.0.id, text);
    }

    fn warn(&self, text: &str) {
        tracing::warn!(container = self.0.id, "{text}");
        self.0.log.line("warning", &self.0.id, text);
    }
}
