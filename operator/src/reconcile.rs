//! Brings the cluster to what a Workflow says: plan, observe, apply, prune, write the status. It may be called at any
//! time and any number of times, and another operator may have been there before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tracing::warn;

use crate::conditions;
use crate::context::Context;
use crate::objects::{self, Facilities, http_route_kind, names, scaled_object_kind};
use crate::observe::Observed;
use crate::plan::Plan;
use crate::resource::{Workflow, WorkflowStatus};
use crate::{apply, placement, publish};

/// A look without a cause, for what no watch tells.
const PERIOD: Duration = Duration::from_secs(300);
/// After an error, while the API refuses an object, and while nobody has answered to an HTTPRoute or ScaledObject.
const RETRY: Duration = Duration::from_secs(15);

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
    let previous = context.written.status(workflow);
    let failed = |source| ReconcileError::Api { workflow: name.clone(), source };
    let admitted = Plan::read(workflow).and_then(|plan| {
        let faults = context.pod_security.faults(&plan);
        if faults.is_empty() { Ok(plan) } else { Err(faults) }
    });
    let (status, action) = match admitted {
        Err(faults) => {
            (conditions::of_faults(&faults, &previous, generation), Action::await_change())
        }
        Ok(mut plan) => {
            let observe = || Observed::read(&context.cache, &namespace, &name, &uid);
            let observed = observe();
            placement::decide(&mut plan, &observed, &edges);
            let facilities = Facilities {
                has_keda: context.cache.has_kind(&scaled_object_kind()),
                has_gateway_api: context.cache.has_kind(&http_route_kind()),
                scaler: context.scaler.clone(),
            };
            let wanted = objects::build(&plan, &facilities);
            apply::prune_autoscalers(context, &namespace, &wanted, &observed)
                .await
                .map_err(failed)?;
            let observed = observe();
            let what = (&plan, &facilities);
            let refused =
                apply::all(workflow, context, what, &wanted, &observed).await.map_err(failed)?;
            apply::prune(context, &namespace, &wanted, &observed).await.map_err(failed)?;
            let observed = observe();
            let is_waiting = !refused.is_empty() || observed.has_unanswered();
            let action = Action::requeue(if is_waiting { RETRY } else { PERIOD });
            let view = conditions::View { observed: &observed, facilities: &facilities, refused };
            (conditions::of_plan(&plan, view, &previous, generation), action)
        }
    };
    if status != previous {
        write(workflow, context, &previous, &status).await.map_err(failed)?;
        context.written.set(workflow, status);
    }
    Ok(action)
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
