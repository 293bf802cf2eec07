//! Starts the secondaries of a workflow, and replaces those that run otherwise than the file says.

use futures_util::future::try_join_all;

use super::platform::{Known, Platform};
use super::{Deployed, Deployment, Outdated, container_id, outdated_failure};
use crate::failure::Failure;
use cwasi_workflow::{Function, Role};

impl<'a, P: Platform> Deployment<'a, P> {
    /// Starts the secondaries that do not run as the file says, all at a time.
    ///
    /// # Errors
    /// The first one that does not start.
    pub async fn start_secondaries(
        &self,
        outdated: Outdated,
    ) -> Result<Vec<(String, Deployed)>, Failure> {
        let mut starts = Vec::new();
        for function in self.containers_of(Role::Secondary) {
            for replica in 1..=function.replicas {
                starts.push(self.start_secondary(function, replica, outdated));
            }
        }
        try_join_all(starts).await
    }

    async fn start_secondary(
        &self,
        function: &'a Function,
        replica: u32,
        outdated: Outdated,
    ) -> Result<(String, Deployed), Failure> {
        let node = self.node(function);
        let id = container_id(&self.workflow.name, &function.name, replica);
        let plan = self.plan(function, &id).await?;
        let known = node.known(&self.workflow.name, &id, &plan).await?;
        match known {
            Known::Runs { as_planned: true } => return Ok((id, Deployed::Unchanged)),
            Known::Runs { .. } if outdated == Outdated::Refuse => {
                return Err(outdated_failure(&id));
            }
            Known::Runs { .. } if !self.has_taken_port(function) => {
                self.replace(function, replica, &id, &plan).await?;
            }
            Known::Runs { .. } | Known::Idle => {
                node.remove(&id).await?;
                self.note(function, &id);
                self.start_with_progress(function, &id, &plan).await?;
            }
        }
        Ok((id, Deployed::Started))
    }

    /// True for a port of a network that it shares, which two containers cannot have at a time.
    fn has_taken_port(&self, function: &Function) -> bool {
        let http = function.annotations.get("cwasi.http").map_or("", String::as_str);
        let shares = function.host_network || self.workflow.shares_network(function);
        shares && http.split(',').any(|part| part.trim().parse::<u16>().is_ok())
    }
}
