//! What reconciling needs and keeps between two times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::runtime::events::Recorder;
use kube::{Client, ResourceExt as _};

use crate::cache::Cache;
use crate::conditions;
use crate::endpoints::Metrics;
use crate::plan::pod_security::PodSecurity;
use crate::resource::{Workflow, WorkflowStatus};

/// Most statuses that were written a moment ago; one that is forgotten is written twice.
const WRITTEN_MAX: usize = 10_000;

/// What reconciling needs.
pub struct Context {
    pub client: Client,
    pub cache: Arc<Cache>,
    pub recorder: Recorder,
    pub metrics: Metrics,
    /// Address of this operator's scaler, as KEDA reaches it; `None` without Redis.
    pub scaler: Option<String>,
    /// The most that Workflows may ask for their pods.
    pub pod_security: PodSecurity,
    pub written: Written,
}

/// Statuses that were written and that the watch has not shown yet, by the Workflow's uid: with the version of the
/// Workflow that was read before.
#[derive(Debug, Default)]
pub struct Written(Mutex<HashMap<String, (Option<String>, WorkflowStatus)>>);

impl Written {
    /// The own part of a Workflow's status.
    #[must_use]
    pub fn status(&self, workflow: &Workflow) -> WorkflowStatus {
        let uid = workflow.uid().unwrap_or_default();
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match written.get(&uid) {
            Some((before, status)) if *before == workflow.resource_version() => status.clone(),
            _ => {
                written.remove(&uid);
                workflow.status.as_ref().map(conditions::own).unwrap_or_default()
            }
        }
    }

    /// Notes what was written.
    pub fn set(&self, workflow: &Workflow, status: WorkflowStatus) {
        // Without a version nothing tells that a newer one was read.
        if let (Some(uid), Some(before)) = (workflow.uid(), workflow.resource_version()) {
            let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if written.len() >= WRITTEN_MAX {
                written.clear();
            }
            written.insert(uid, (Some(before), status));
        }
    }
}
