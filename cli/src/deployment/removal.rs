//! Ends and removes containers: those that the file does not have, and those of a deployment that is taken down.

use std::collections::{BTreeSet, HashMap};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use cwasi_host::group::group_id;

use super::platform::Platform;
use super::{Deployment, container_id};
use crate::failure::Failure;
use cwasi_workflow::{Function, Role};

impl<'a, P: Platform> Deployment<'a, P> {
    /// Removes the workflow's containers that the file does not have: of functions that left it, and beyond the
    /// replicas. Returns their ids.
    ///
    /// # Errors
    /// The first one that cannot be removed.
    pub async fn prune(&self) -> Result<Vec<String>, Failure> {
        let name = &self.workflow.name;
        let ids = |function: &'a Function| {
            let replicas = 1..=function.replicas;
            replicas.map(|replica| container_id(name, &function.name, replica))
        };
        let mut pruned = Vec::new();
        for (place, node) in &self.nodes {
            let here = |function: &&Function| function.node.as_deref() == *place;
            let wanted: BTreeSet<String> =
                self.containers_of(Role::Secondary).filter(here).flat_map(ids).collect();
            for id in node.deployed(name).await? {
                if !wanted.contains(&id) {
                    node.remove(&id).await?;
                    pruned.push(id);
                }
            }
        }
        Ok(pruned)
    }

    /// Ends the functions that this deployment started, so that their shims write the last calls; [`Self::take_down`]
    /// removes them.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn stop(&self) -> Result<(), Failure> {
        self.phases.ends();
        self.settled().await;
        let mut outcome = Ok(());
        for (node, id) in self.made() {
            outcome = outcome.and(self.nodes[&node].stop(&id).await);
        }
        outcome
    }

    /// Removes what this deployment made, and services that nobody uses any more.
    ///
    /// # Errors
    /// The first failure, after all have been tried.
    pub async fn take_down(&self) -> Result<(), Failure> {
        self.settled().await;
        let mut outcome = Ok(());
        for (node, id) in self.made() {
            outcome = outcome.and(self.nodes[&node].remove(&id).await);
        }
        outcome.and(self.remove_unused_services().await.map(drop))
    }

    /// Removes what a start leaves that was interrupted in containerd: it goes on for a moment, and makes the
    /// function's log again.
    pub async fn clear_late_starts(&self) {
        if self.creating.load(Ordering::Relaxed) > 0 {
            let workflow = [("cwasi.workflow".to_owned(), self.workflow.name.clone())].into();
            for node in self.nodes.values() {
                node.end_late_starts(&group_id(node.namespace(), "", &workflow)).await;
            }
            for service in &self.workflow.services {
                let id = container_id(&self.workflow.name, &service.name, 1);
                for node in self.nodes.values() {
                    node.end_late_starts(&group_id(node.namespace(), &id, &HashMap::new())).await;
                }
            }
        }
        for (node, id) in self.made() {
            self.nodes[&node].forget_log(&id);
        }
        for (node, id) in self.made_services() {
            let node = &self.nodes[&node];
            let there = node.services(&self.workflow.name).await.unwrap_or_default();
            if !there.iter().any(|service| service.id == id) {
                node.forget_log(&id);
            }
        }
    }

    async fn settled(&self) {
        for node in self.nodes.values() {
            node.settled().await;
        }
    }

    fn made(&self) -> Vec<(Option<&'a str>, String)> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}
