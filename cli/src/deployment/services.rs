//! Starts the services of a workflow before the functions that use them, waits until they are ready, and removes those
//! that nobody uses any more.

use futures_util::future::try_join_all;

use super::platform::{Known, Platform};
use super::{Deployed, Deployment, Outdated, container_id, outdated_failure};
use crate::failure::Failure;
use cwasi_workflow::Role;
use cwasi_workflow::services::Service;

impl<'a, P: Platform> Deployment<'a, P> {
    /// Starts the services that functions of these roles use, as far as they do not run as the file says, and waits
    /// until all are ready.
    ///
    /// # Errors
    /// The first one that does not start, or is not ready in time. The failure has the end of its log.
    pub async fn start_services(
        &self,
        roles: &[Role],
        outdated: Outdated,
    ) -> Result<Vec<(String, Deployed)>, Failure> {
        let mut started = Vec::new();
        let mut starts = Vec::new();
        for service in self.services_of(roles) {
            // One after the other: the first one makes the network that the others enter.
            let (id, deployed) = self.start_service(service, outdated).await?;
            starts.push(self.wait_until_ready(service, id.clone()));
            started.push((id, deployed));
        }
        try_join_all(starts).await?;
        Ok(started)
    }

    /// Removes services that no container uses. Returns their ids.
    ///
    /// # Errors
    /// The first one that cannot be removed.
    pub async fn prune_services(&self) -> Result<Vec<String>, Failure> {
        let mut pruned = Vec::new();
        for node in self.nodes.values() {
            for id in node.unused_services(&self.workflow.name).await? {
                node.remove(&id).await?;
                pruned.push(id);
            }
        }
        Ok(pruned)
    }

    /// The services that are started for functions of these roles.
    pub(super) fn services_of<'r>(
        &self,
        roles: &'r [Role],
    ) -> impl Iterator<Item = &'a Service> + use<'a, 'r, P> {
        let workflow = self.workflow;
        workflow.services.iter().filter(|service| service.is_started()).filter(move |service| {
            workflow.users_of(&service.name).any(|user| roles.contains(&user.role))
        })
    }

    /// The node of a service: that of the functions that use it.
    pub(super) fn node_name_of(&self, service: &'a Service) -> Option<&'a str> {
        self.workflow.users_of(&service.name).find_map(|user| user.node.as_deref())
    }

    async fn start_service(
        &self,
        service: &'a Service,
        outdated: Outdated,
    ) -> Result<(String, Deployed), Failure> {
        let name = self.node_name_of(service);
        let node = &self.nodes[&name];
        let id = container_id(&self.workflow.name, &service.name, 1);
        let plan = node.plan_service(&self.workflow.name, service, &id).await?;
        match node.known(&self.workflow.name, &id, &plan).await? {
            Known::Runs { as_planned: true } => return Ok((id, Deployed::Unchanged)),
            Known::Runs { .. } if outdated == Outdated::Refuse => {
                return Err(outdated_failure(&id));
            }
            Known::Runs { .. } | Known::Idle => node.remove(&id).await?,
        }
        self.note_at(name, &id);
        let line = self.display.line(&id);
        line.state("starting");
        let stdio = node.create_log(&id)?;
        let started = async {
            self.create(node, &id, &plan, &stdio).await?;
            node.start(&id).await
        };
        let started = started.await;
        line.clear();
        started.map_err(|failure| failure.with(&node.log_tail(&id)))?;
        Ok((id, Deployed::Started))
    }

    async fn wait_until_ready(&self, service: &'a Service, id: String) -> Result<(), Failure> {
        let node = &self.nodes[&self.node_name_of(service)];
        let line = self.display.line(&id);
        line.set_message("waiting until it is ready");
        let ready = node.wait_until_ready(&id, service).await;
        line.clear();
        ready.map_err(|failure| failure.with(&node.log_tail(&id)))?;
        if !self.display.is_live() {
            line.state("ready");
        }
        Ok(())
    }
}
