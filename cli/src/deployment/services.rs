//! Starts the services of a workflow before the functions that use them, waits until they are ready, and removes those
//! that no container and no other command uses any more ([`ServiceLock`]).

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use futures_util::future::try_join_all;

use super::platform::{Known, Platform};
use super::service_lock::ServiceLock;
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
            let lock = self.service_lock(&self.nodes[&self.node_name_of(service)])?;
            lock.share().await?;
            // One after the other, of all commands: the first one makes the network that the others enter.
            let change = lock.change().await?;
            let (id, deployed) = self.start_service(service, outdated).await?;
            drop(change);
            starts.push(self.wait_until_ready(service, id.clone()));
            started.push((id, deployed));
        }
        try_join_all(starts).await?;
        Ok(started)
    }

    /// Removes services that no container uses, and those that this deployment made, unless another command uses
    /// services of the workflow: then that one removes them at its end. Returns their ids.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn remove_unused_services(&self) -> Result<Vec<String>, Failure> {
        let (mut removed, mut outcome) = (Vec::new(), Ok(()));
        let workflow = &self.workflow.name;
        for (name, node) in &self.nodes {
            let made = self.made_services().into_iter().filter(|(at, _)| at == name);
            let made: Vec<_> = made.map(|(_, id)| id).collect();
            if made.is_empty() && node.services(workflow).await?.is_empty() {
                continue;
            }
            let lock = self.service_lock(node)?;
            match remove_unused(node, workflow, &lock, &made).await {
                Ok(ids) => removed.extend(ids),
                Err(failure) => outcome = outcome.and(Err(failure)),
            }
        }
        outcome.map(|()| removed)
    }

    /// The lock of the workflow's services on a node; nodes of one state directory have one.
    fn service_lock(&self, node: &P) -> Result<Arc<ServiceLock>, Failure> {
        let state = node.state_dir();
        let mut locks = self.service_locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(state) {
            return Ok(Arc::clone(lock));
        }
        let lock = Arc::new(ServiceLock::open(state, node.namespace(), &self.workflow.name)?);
        locks.insert(state.to_owned(), Arc::clone(&lock));
        Ok(lock)
    }

    /// Services that this deployment made, or was about to make: node and id.
    pub(super) fn made_services(&self) -> Vec<(Option<&'a str>, String)> {
        self.made_services.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let noted = (name, id.clone());
        self.made_services.lock().unwrap_or_else(PoisonError::into_inner).push(noted);
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

/// Removes a workflow's services on a node that no container uses, and those of `made` that none uses. `made` may have
/// no container yet. Removes nothing while another command uses services of the workflow. Returns their ids.
pub(super) async fn remove_unused<P: Platform>(
    node: &P,
    workflow: &str,
    lock: &ServiceLock,
    made: &[String],
) -> Result<Vec<String>, Failure> {
    let mut change = lock.change().await?;
    if !change.is_last_user()? {
        return Ok(Vec::new());
    }
    let services = node.services(workflow).await?;
    let is_used = |id: &String| services.iter().any(|service| service.id == *id && service.is_used);
    let known = services.iter().map(|service| &service.id);
    let unused: BTreeSet<_> = known.chain(made).filter(|id| !is_used(id)).collect();
    let (mut removed, mut outcome) = (Vec::new(), Ok(()));
    for id in unused {
        match node.remove(id).await {
            Ok(()) => removed.push(id.clone()),
            Err(failure) => outcome = outcome.and(Err(failure)),
        }
    }
    outcome.map(|()| removed)
}
