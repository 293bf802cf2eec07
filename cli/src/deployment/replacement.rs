//! Replaces a container that runs by one that is as the file says. Calls always find an instance.
//!
//! Invariant: from the start of the surge container on, the replacement is noted until it has ended. So an interrupted
//! or failed command ends it, and leaves no surge container beside one that serves.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use super::platform::Platform;
use super::{Deployment, container_id};
use crate::failure::Failure;
use cwasi_workflow::Function;
use cwasi_workflow::fields::REPLICAS_MAX;

/// Longest wait for an old container that was asked to end; init lets its requests end for 10 s.
const ENDING_MAX: Duration = Duration::from_secs(12);

/// A replacement whose surge container serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replacement<'a> {
    function: &'a Function,
    replica: u32,
    /// True while the old container ends its requests. Another signal would take their time.
    old_ends: bool,
}

impl<'a, P: Platform> Deployment<'a, P> {
    /// Replaces a running container. A surge container (Kubernetes' `maxSurge`) of the new kind serves meanwhile. So
    /// calls always find an instance, and a function that does not start leaves the running one alone. The old
    /// container ends its calls first (SIGTERM).
    pub(super) async fn replace(
        &self,
        function: &'a Function,
        replica: u32,
        id: &str,
        plan: &P::Plan,
    ) -> Result<(), Failure> {
        let node = self.node(function);
        let surge = self.surge_of(function, replica);
        let surge_plan = self.plan(function, &surge).await?;
        node.remove(&surge).await?;
        self.note(function, &surge);
        if let Err(failure) = self.start_with_progress(function, &surge, &surge_plan).await {
            node.remove(&surge).await?;
            return Err(failure.with(&format!("\n{id} runs on as it was")));
        }
        // From here on it is what serves: an interrupted or failed deploy leaves it until `finish_replacements`.
        self.forget(&surge);
        self.replacements().push(Replacement { function, replica, old_ends: false });
        // One container at a time: a call that several ending instances refuse in a row would fail.
        let _turn = self.replacing.lock().await;
        self.swap(function, replica, id, plan).await
    }

    /// Puts a new container in the place of the old one, then removes the surge container.
    async fn swap(
        &self,
        function: &'a Function,
        replica: u32,
        id: &str,
        plan: &P::Plan,
    ) -> Result<(), Failure> {
        let node = self.node(function);
        let surge = self.surge_of(function, replica);
        self.note_old_ends(&surge, true);
        node.remove(id).await?;
        self.note_old_ends(&surge, false);
        self.start_with_progress(function, id, plan).await?;
        node.remove(&surge).await?;
        self.replacements().retain(|it| self.surge_of(it.function, it.replica) != surge);
        Ok(())
    }

    /// Ends the replacements that were interrupted while their surge containers served.
    ///
    /// # Errors
    /// The first failure, after all have been tried. Its surge container serves on.
    pub async fn finish_replacements(&self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        let begun = self.replacements().clone();
        for Replacement { function, replica, old_ends } in begun {
            let id = container_id(&self.workflow.name, &function.name, replica);
            let finished = async {
                if old_ends {
                    // Whatever it ends with: `swap` removes it.
                    let ended = timeout(ENDING_MAX, self.node(function).wait(&id)).await;
                    drop(ended);
                }
                let plan = self.plan(function, &id).await?;
                self.swap(function, replica, &id, &plan).await
            };
            let surge = self.surge_of(function, replica);
            outcome = outcome.and(finished.await.map_err(|failure| {
                failure.with(&format!("\n{surge} serves in its place; a later deploy replaces it"))
            }));
        }
        outcome
    }

    fn surge_of(&self, function: &Function, replica: u32) -> String {
        container_id(&self.workflow.name, &function.name, REPLICAS_MAX + replica)
    }

    fn note_old_ends(&self, surge: &str, old_ends: bool) {
        for replacement in self.replacements().iter_mut() {
            if self.surge_of(replacement.function, replacement.replica) == surge {
                replacement.old_ends = old_ends;
            }
        }
    }

    fn replacements(&self) -> MutexGuard<'_, Vec<Replacement<'a>>> {
        self.replacements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
