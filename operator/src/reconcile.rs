//! Brings the cluster to what a Workflow says: plan, observe, apply, prune, write the status. It may be called at any
//! time and any number of times, and another operator may have been there before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cwasi_workflow::Placement;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::conditions::{self, Trouble};
use crate::endpoints::Metrics;
use crate::objects::{self, Facilities, Object, names};
use crate::observe::Observed;
use crate::plan::Plan;
use crate::resource::{Workflow, WorkflowStatus};
use crate::service_status::replicas_of_service;
use crate::{placement, publish};

/// A look without a cause, for what no watch tells.
const PERIOD: Duration = Duration::from_secs(300);
/// After an error, and while the API refuses an object.
const RETRY: Duration = Duration::from_secs(15);
/// What the API says of a namespace that goes.
const TERMINATING: &str = "because it is being terminated";

/// What reconciling needs.
pub struct Context {
    pub client: Client,
    pub recorder: Recorder,
    pub metrics: Metrics,
    /// Address of this operator's scaler, as KEDA reaches it; `None` without Redis.
    pub scaler: Option<String>,
}

/// Why a Workflow could not be reconciled; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error("the API does not answer about workflow {workflow}")]
    Api {
        workflow: String,
        #[source]
        source: kube::Error,
    },
    #[error("workflow {workflow} has no namespace or no uid")]
    Unnamed { workflow: String },
}

/// Reconciles a Workflow once.
///
/// # Errors
/// When the API fails; objects that it refuses become conditions instead.
pub async fn reconcile(
    workflow: Arc<Workflow>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let started = Instant::now();
    let result = once(&workflow, &context).await;
    context.metrics.reconciled(result.is_ok(), started.elapsed());
    result
}

/// What comes after an error.
#[must_use]
pub fn retry(workflow: Arc<Workflow>, error: &ReconcileError, _context: Arc<Context>) -> Action {
    let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    warn!(workflow = workflow.name_any(), %error, source, "tries again");
    Action::requeue(RETRY)
}

async fn once(workflow: &Workflow, context: &Context) -> Result<Action, ReconcileError> {
    let name = workflow.name_any();
    // The garbage collector deletes what has it as its owner.
    if workflow.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let (Some(namespace), Some(uid)) = (workflow.namespace(), workflow.uid()) else {
        return Err(ReconcileError::Unnamed { workflow: name });
    };
    let generation = workflow.metadata.generation.unwrap_or(0);
    // What the status says about edges is written elsewhere.
    let WorkflowStatus { edges, .. } = workflow.status.clone().unwrap_or_default();
    let previous = workflow.status.as_ref().map(conditions::own).unwrap_or_default();
    let failed = |source| ReconcileError::Api { workflow: name.clone(), source };
    let (status, action) = match Plan::read(workflow) {
        Err(faults) => {
            (conditions::of_faults(&faults, &previous, generation), Action::await_change())
        }
        Ok(mut plan) => {
            let observed =
                Observed::ask(&context.client, &namespace, &name, &uid).await.map_err(failed)?;
            placement::decide(&mut plan, &observed, &edges);
            let facilities =
                Facilities { has_keda: observed.has_keda, scaler: context.scaler.clone() };
            let wanted = objects::build(&plan, &facilities);
            let refused = apply_all(workflow, context, &namespace, &plan, &wanted, &observed)
                .await
                .map_err(failed)?;
            let action = Action::requeue(if refused.is_empty() { PERIOD } else { RETRY });
            prune(context, &namespace, &wanted, &observed).await.map_err(failed)?;
            let view = conditions::View { observed: &observed, facilities: &facilities, refused };
            (conditions::of_plan(&plan, view, &previous, generation), action)
        }
    };
    if status != previous {
        write(workflow, context, &previous, &status).await.map_err(failed)?;
    }
    Ok(action)
}

/// Applies all objects; returns what the API refused.
async fn apply_all(
    workflow: &Workflow,
    context: &Context,
    namespace: &str,
    plan: &Plan,
    wanted: &[Object],
    observed: &Observed,
) -> kube::Result<Vec<Trouble>> {
    let mut refused = Vec::new();
    let may_start = plan.placement == Placement::Pod
        || secondaries_run(plan, observed) && services_run(plan, observed);
    for object in wanted {
        let exists = observed.has(object);
        // A Job runs once: what there is stays as it is, and a new one waits for the functions that it may call, and
        // for services.
        if object.resource.kind == "Job" && (exists || !may_start) {
            continue;
        }
        match apply(workflow, context, namespace, object, exists).await {
            Ok(None) => {}
            Ok(Some(trouble)) => refused.push(trouble),
            Err(kube::Error::Api(status)) if status.message.contains(TERMINATING) => {
                return Ok(Vec::new());
            }
            Err(kube::Error::Api(status)) => {
                let text = format!("{}: {}", object.reference(), status.message);
                refused.push(Trouble::new("Refused", text));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(refused)
}

fn secondaries_run(plan: &Plan, observed: &Observed) -> bool {
    // A function that is started on demand may have no pod.
    plan.secondaries().filter(|it| it.announcement.is_none()).all(|planned| {
        let name = names::object(&plan.workflow, Some(&planned.function.name));
        let status = observed.deployment(&name).and_then(|it| it.status.as_ref());
        status.and_then(|it| it.available_replicas).is_some_and(|available| available > 0)
    })
}

fn services_run(plan: &Plan, observed: &Observed) -> bool {
    let all = plan.services.iter();
    all.map(|it| replicas_of_service(plan, it, observed)).all(|(_, ready)| ready > 0)
}

/// Applies one object; a name that something else has is a trouble.
async fn apply(
    workflow: &Workflow,
    context: &Context,
    namespace: &str,
    object: &Object,
    exists: bool,
) -> kube::Result<Option<Trouble>> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &object.resource);
    let owner = workflow.controller_owner_ref(&());
    if !exists && let Some(other) = api.get_metadata_opt(&object.name).await? {
        let is_own = other
            .owner_references()
            .iter()
            .any(|it| Some(&it.uid) == owner.as_ref().map(|it| &it.uid));
        if !is_own {
            let text = format!(
                "{} is there and belongs to something else: delete it, or rename the workflow or function",
                object.reference()
            );
            return Ok(Some(Trouble::new("NameTaken", text)));
        }
    }
    let mut body = object.body.clone();
    body["metadata"]["namespace"] = json!(namespace);
    body["metadata"]["ownerReferences"] = json!(owner.as_slice());
    let parameters = PatchParams::apply(names::MANAGER).force();
    api.patch(&object.name, &parameters, &Patch::Apply(&body)).await?;
    Ok(None)
}

/// Deletes what is no longer wanted.
async fn prune(
    context: &Context,
    namespace: &str,
    wanted: &[Object],
    observed: &Observed,
) -> kube::Result<()> {
    for (resource, name) in &observed.objects {
        let is_wanted =
            wanted.iter().any(|it| it.resource.kind == resource.kind && it.name == *name);
        if is_wanted {
            continue;
        }
        info!(kind = resource.kind, name, namespace, "deletes what is no longer wanted");
        let api: Api<DynamicObject> =
            Api::namespaced_with(context.client.clone(), namespace, resource);
        match api.delete(name, &DeleteParams::background()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes a changed status, and an event when something needs a person, or no longer does.
async fn write(
    workflow: &Workflow,
    context: &Context,
    previous: &WorkflowStatus,
    status: &WorkflowStatus,
) -> kube::Result<()> {
    let fields: Value = json!(status);
    let change = (previous.conditions.as_slice(), status.conditions.as_slice());
    publish::write(&context.client, workflow, names::MANAGER, &fields, change).await?;
    if let Some(event) = event(previous, status) {
        // An event that is lost changes nothing.
        let reference = workflow.object_ref(&());
        if let Err(error) = context.recorder.publish(&event, &reference).await {
            warn!(%error, "an event was not published");
        }
    }
    Ok(())
}

fn event(previous: &WorkflowStatus, status: &WorkflowStatus) -> Option<Event> {
    let find = |status: &WorkflowStatus, kind: &str| {
        let found = status.conditions.iter().find(|it| it.type_ == kind)?;
        Some((found.status.clone(), found.reason.clone(), found.message.clone()))
    };
    let changed = |kind: &str| {
        let now = find(status, kind)?;
        (now.0 == "True" && find(previous, kind).as_ref() != Some(&now)).then_some(now)
    };
    let (type_, (_, reason, note)) = match (changed("Degraded"), changed("Ready")) {
        (Some(degraded), _) => (EventType::Warning, degraded),
        (None, Some(ready)) => (EventType::Normal, ready),
        (None, None) => return None,
    };
    // An event's note has at most 1 KiB.
    let note: String = note.chars().take(250).collect();
    let note = if note.is_empty() { "all functions are ready".to_owned() } else { note };
    Some(Event { type_, reason, note: Some(note), action: "Reconcile".to_owned(), secondary: None })
}
