//! Writes objects: by server-side apply, unless they are there already as they would be applied.
//!
//! - [`replicas`]: numbers of pods that are left to others.

mod replicas;

use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use tracing::info;

use self::replicas::Scaled;

use cwasi_workflow::Placement;

use crate::cache::drift;
use crate::context::Context;
use crate::fewest_pods::fewest_pods;
use crate::objects::{Facilities, Object, names};
use crate::observe::{Observed, Owned};
use crate::plan::Plan;
use crate::resource::Workflow;
use crate::service_status::replicas_of_service;
use crate::workload_status::{Refused, Trouble};

/// What the API says of a namespace that goes.
const TERMINATING: &str = "because it is being terminated";

/// Answers that say nothing about the object: a conflict of two writers, too many requests, a server that has no time
/// or is away.
const TRANSIENT: [u16; 4] = [409, 429, 503, 504];

const AUTOSCALERS: [&str; 2] = ["HorizontalPodAutoscaler", "ScaledObject"];

/// What became of an object.
enum Outcome {
    Done,
    Refused(Trouble),
    /// Its namespace goes.
    Terminating,
}

/// Applies all objects; returns those that the API refused.
///
/// # Errors
/// When the API fails, or answers with one of [`TRANSIENT`].
pub async fn all(
    workflow: &Workflow,
    context: &Context,
    (plan, facilities): (&Plan, &Facilities),
    wanted: &[Object],
    observed: &Observed,
) -> kube::Result<Vec<Refused>> {
    let mut refused = Vec::new();
    let may_start = plan.placement == Placement::Pod
        || secondaries_run(plan, facilities, observed) && services_run(plan, observed);
    for object in wanted {
        let exists = observed.has(object);
        // A Job runs once: what there is stays as it is, and a new one waits for the functions that it may call, and
        // for services.
        if object.resource.kind == "Job" && (exists || !may_start) {
            continue;
        }
        let scaled = Scaled::of(object, plan, facilities, observed);
        match one(workflow, context, object, (exists, scaled)).await? {
            Outcome::Done => {}
            Outcome::Refused(trouble) => {
                refused.push(Refused { object: object.reference(), trouble });
            }
            Outcome::Terminating => return Ok(Vec::new()),
        }
    }
    Ok(refused)
}

fn secondaries_run(plan: &Plan, facilities: &Facilities, observed: &Observed) -> bool {
    plan.secondaries().all(|planned| {
        let name = names::object(&plan.workflow, Some(&planned.function.name));
        let Some(deployment) = observed.deployment(&name) else { return false };
        let available = deployment.status.as_ref().and_then(|it| it.available_replicas);
        if available.is_some_and(|available| available > 0) {
            return true;
        }
        // Calls of a function that is started on demand wait for its pod. Others may want none of theirs.
        let wants_none = deployment.spec.as_ref().and_then(|it| it.replicas) == Some(0);
        let may_be_none = fewest_pods(plan, planned, facilities, observed) == 0;
        may_be_none && (wants_none || planned.announcement.is_some() && !planned.scaled_by_others)
    })
}

fn services_run(plan: &Plan, observed: &Observed) -> bool {
    let all = plan.services.iter();
    all.map(|it| replicas_of_service(plan, it, observed)).all(|(_, ready)| ready > 0)
}

/// Applies one object; a name that something else has is a trouble.
async fn one(
    workflow: &Workflow,
    context: &Context,
    object: &Object,
    (exists, scaled): (bool, Option<Scaled>),
) -> kube::Result<Outcome> {
    let namespace = workflow.namespace().unwrap_or_default();
    let owner = workflow.controller_owner_ref(&());
    let mut body = object.body.clone();
    body["metadata"]["namespace"] = json!(namespace);
    body["metadata"]["ownerReferences"] = json!(owner.as_slice());
    let digest = drift::digest(&body);
    let is_current = exists && context.cache.is_current(object, &namespace, &body, &digest);
    if is_current && !scaled.as_ref().is_some_and(Scaled::is_stuck) {
        return Ok(Outcome::Done);
    }
    let api = api(context, &namespace, &object.resource);
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
            return Ok(Outcome::Refused(Trouble::new("NameTaken", text)));
        }
    }
    if let Some(scaled) = scaled {
        match scaled.hand_over(context, &namespace, object).await {
            Ok(Some(answer)) => context.cache.put(object, answer, None),
            Ok(None) => {}
            Err(error) => return refusal(object, error),
        }
    }
    body["metadata"]["annotations"][names::APPLIED] = json!(digest);
    let parameters = PatchParams::apply(names::MANAGER).force();
    match api.patch(&object.name, &parameters, &Patch::Apply(&body)).await {
        Ok(answer) => {
            context.cache.put(object, answer, Some(digest));
            Ok(Outcome::Done)
        }
        Err(error) => refusal(object, error),
    }
}

/// What an error of the API says of an object.
fn refusal(object: &Object, error: kube::Error) -> kube::Result<Outcome> {
    match error {
        kube::Error::Api(status) if status.message.contains(TERMINATING) => {
            Ok(Outcome::Terminating)
        }
        kube::Error::Api(status) if !TRANSIENT.contains(&status.code) => {
            let text = format!("{}: {}", object.reference(), status.message);
            Ok(Outcome::Refused(Trouble::new("Refused", text)))
        }
        error => Err(error),
    }
}

/// Deletes autoscalers that are no longer wanted: a Deployment has one at a time. To be called before [`all`].
///
/// # Errors
/// When the API fails.
pub async fn prune_autoscalers(
    context: &Context,
    namespace: &str,
    wanted: &[Object],
    observed: &Observed,
) -> kube::Result<()> {
    let is_autoscaler = |it: &&Owned| AUTOSCALERS.contains(&it.resource.kind.as_str());
    delete(context, namespace, wanted, observed.objects.iter().filter(is_autoscaler)).await
}

/// Deletes what is no longer wanted.
///
/// # Errors
/// When the API fails.
pub async fn prune(
    context: &Context,
    namespace: &str,
    wanted: &[Object],
    observed: &Observed,
) -> kube::Result<()> {
    delete(context, namespace, wanted, observed.objects.iter()).await
}

/// Deletes those of `found` that are not wanted.
async fn delete(
    context: &Context,
    namespace: &str,
    wanted: &[Object],
    found: impl Iterator<Item = &Owned>,
) -> kube::Result<()> {
    for Owned { resource, name, uid, is_terminating } in found {
        let is_wanted =
            wanted.iter().any(|it| it.resource.kind == resource.kind && it.name == *name);
        if is_wanted || *is_terminating {
            continue;
        }
        info!(kind = resource.kind, name, namespace, "deletes what is no longer wanted");
        // Another object of this name may have been made meanwhile.
        let parameters = DeleteParams {
            preconditions: Some(Preconditions { uid: uid.clone(), resource_version: None }),
            ..DeleteParams::background()
        };
        match api(context, namespace, resource).delete(name, &parameters).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn api(context: &Context, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(context.client.clone(), namespace, resource)
}
