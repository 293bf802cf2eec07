//! The Workflows of a namespace.

use std::time::Duration;

use cwasi_operator_api::resource::Workflow;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::pods::selector;
use super::{Cluster, did_you_mean};
use cwasi_cli::cluster::ClusterError;

/// The resource, as roles name it.
const WORKFLOWS: &str = "workflows.cwasi.dev";
/// Interval at which a deleted Workflow's pods are looked for.
const PODS_INTERVAL: Duration = Duration::from_millis(500);

/// Something of a Workflow that needs a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    pub reason: String,
    pub message: String,
}

impl Cluster {
    /// All Workflows of the namespace, by name.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn workflows(&self) -> Result<Vec<Workflow>, ClusterError> {
        self.workflows_of(&self.namespace).await
    }

    /// All Workflows of a namespace, by name.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn workflows_of(&self, namespace: &str) -> Result<Vec<Workflow>, ClusterError> {
        let api: Api<Workflow> = Api::namespaced(self.client.clone(), namespace);
        let mut found = match api.list(&ListParams::default()).await {
            Ok(found) => found.items,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(ClusterError::NoDefinition);
            }
            Err(error) => return Err(self.failed(("list", WORKFLOWS), namespace)(error)),
        };
        found.sort_by_key(ResourceExt::name_any);
        Ok(found)
    }

    /// One Workflow.
    ///
    /// # Errors
    /// When there is none; the error has the nearest name.
    pub async fn workflow(&self, name: &str) -> Result<Workflow, ClusterError> {
        let mut all = self.workflows().await?;
        if let Some(index) = all.iter().position(|it| it.name_any() == name) {
            return Ok(all.swap_remove(index));
        }
        let names: Vec<_> = all.iter().map(ResourceExt::name_any).collect();
        let nearest = did_you_mean(name, names.iter().map(String::as_str));
        let namespace = self.namespace.clone();
        Err(ClusterError::NoWorkflow { namespace, name: name.to_owned(), nearest })
    }

    /// Deletes a Workflow, and waits until the garbage collector has removed its pods.
    ///
    /// # Errors
    /// When the API refuses, or pods remain after `timeout`.
    pub async fn delete(&self, workflow: &str, timeout: Duration) -> Result<(), ClusterError> {
        let api: Api<Workflow> = Api::namespaced(self.client.clone(), &self.namespace);
        match api.delete(workflow, &DeleteParams::background()).await {
            Ok(_) => {}
            // Another client deleted it meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(self.failed(("delete", WORKFLOWS), &self.namespace)(error)),
        }
        let began = Instant::now();
        loop {
            let pods = self.pods(&selector(workflow)).await?;
            if pods.is_empty() {
                return Ok(());
            }
            if began.elapsed() >= timeout {
                let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
                return Err(ClusterError::Remains {
                    workflow: workflow.to_owned(),
                    namespace: self.namespace.clone(),
                    waited: humantime::format_duration(timeout).to_string(),
                    pods: names.join(", "),
                });
            }
            tokio::time::sleep(PODS_INTERVAL).await;
        }
    }
}

/// What needs a person, as the operator says it; without a status, the operator itself.
#[must_use]
pub fn needs(workflow: &Workflow) -> Vec<Need> {
    let Some(status) = &workflow.status else {
        return vec![Need {
            reason: "NoStatus".to_owned(),
            message: "the operator has not read it: `kubectl -n cwasi-system get deployment \
                      cwasi-operator` shows whether it runs"
                .to_owned(),
        }];
    };
    let degraded = status.conditions.iter().filter(|it| it.type_ == "Degraded");
    degraded
        .filter(|it| it.status == "True")
        .map(|it| Need { reason: it.reason.clone(), message: it.message.clone() })
        .collect()
}

/// The objects that go with a Workflow, as `Deployment/hello-greeter`, in the order of its functions and services.
#[must_use]
pub fn workloads(workflow: &Workflow) -> Vec<String> {
    let all = workflow.status.iter();
    let functions = all.flat_map(|status| status.functions.iter().chain(&status.services));
    let mut found: Vec<String> = Vec::new();
    for workload in functions.map(|it| it.workload.clone()).filter(|it| !it.is_empty()) {
        // Functions in one pod share it.
        if !found.contains(&workload) {
            found.push(workload);
        }
    }
    found
}

/// The Workflow as the file of which it was made.
///
/// # Errors
/// The first fault.
pub fn file(workflow: &Workflow) -> Result<cwasi_workflow::Workflow, String> {
    let object = json!({
        "apiVersion": "cwasi.dev/v1alpha1",
        "kind": "Workflow",
        "metadata": { "name": workflow.name_any() },
        "spec": workflow.spec.fields,
    });
    let read = cwasi_workflow::Workflow::from_object(&object);
    read.map_err(|problems| problems.into_iter().next().map_or_else(String::new, |it| it.text))
}

impl Cluster {
    /// True if a Workflow of this namespace has the function, and its pods are started on demand.
    ///
    /// # Errors
    /// When the API refuses. A cluster without Workflows has no such function.
    pub async fn is_on_demand(
        &self,
        namespace: &str,
        function: &str,
    ) -> Result<bool, ClusterError> {
        let all = match self.workflows_of(namespace).await {
            Err(ClusterError::NoDefinition) => return Ok(false),
            found => found?,
        };
        let files = all.iter().filter_map(|workflow| file(workflow).ok());
        let scales = files.filter_map(|file| file.function(function)?.cluster.scale);
        Ok(scales.into_iter().any(|scale| scale.min == 0))
    }
}

/// Names of the functions in the spec, for a Workflow without a status.
#[must_use]
pub fn functions_of_spec(workflow: &Workflow) -> Vec<String> {
    names_of_spec(workflow, "functions")
}

/// Names of the services in the spec.
#[must_use]
pub fn services_of_spec(workflow: &Workflow) -> Vec<String> {
    names_of_spec(workflow, "services")
}

fn names_of_spec(workflow: &Workflow, field: &str) -> Vec<String> {
    let named = workflow.spec.fields.get(field).and_then(|it| it.as_object());
    named.into_iter().flat_map(|it| it.keys().cloned()).collect()
}
