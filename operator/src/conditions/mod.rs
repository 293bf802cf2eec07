//! The status of a Workflow: a pure function of the plan and of what the cluster has.
//!
//! `Ready` is true when every function and service is ready. `Progressing` is true while one is on its way, `Degraded`
//! when something needs a person: each message names the function or service, and the remedy.
//!
//! - [`scaling`]: `ScalesToZero`; [`routes`]: HTTPRoutes that no Gateway serves.

mod routes;
mod scaling;

use cwasi_workflow::{Placement, Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use crate::fewest_pods::fewest_pods;
use crate::objects::{Facilities, names};
use crate::observe::Observed;
use crate::plan::{Plan, PlannedFunction};
use crate::resource::{FunctionStatus, WorkflowStatus};
use crate::service_status::{service, sidecar};
use crate::workload_status::{
    UNSCHEDULABLE, WITH_RUNTIME, deployment_trouble, is_ready, job_is_ready, job_trouble,
    newest_digest, pod_trouble, replicas,
};

pub use crate::workload_status::{Refused, Trouble};

/// Longest message of a condition in bytes; the API allows 32 KiB.
const MESSAGE_MAX: usize = 4096;

/// Conditions that are written here.
const CONDITIONS: [&str; 4] = ["Ready", "Progressing", "Degraded", "ScalesToZero"];

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The condition's type.
    pub kind: &'static str,
    pub is_true: bool,
    /// One word in CamelCase.
    pub reason: String,
    pub message: String,
}

/// The part of a status that is written here.
#[must_use]
pub fn own(status: &WorkflowStatus) -> WorkflowStatus {
    let mut own = WorkflowStatus { local: None, edges: Vec::new(), ..status.clone() };
    own.conditions.retain(|it| CONDITIONS.contains(&it.type_.as_str()));
    own
}

/// A condition. It keeps the time since when its status holds.
#[must_use]
pub fn condition(verdict: Verdict, previous: &[Condition], generation: i64) -> Condition {
    let Verdict { kind, is_true, reason, message } = verdict;
    let value = if is_true { "True" } else { "False" };
    let same = previous.iter().find(|it| it.type_ == kind && it.status == value);
    let since = same.map_or_else(|| Time(Timestamp::now()), |it| it.last_transition_time.clone());
    Condition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason,
        message: shortened(&message),
        observed_generation: Some(generation),
        last_transition_time: since,
    }
}

/// The status of a Workflow that cannot be planned: nothing of it was changed.
#[must_use]
pub fn of_faults(faults: &[String], previous: &WorkflowStatus, generation: i64) -> WorkflowStatus {
    let trouble = Trouble::new("Invalid", faults.join("\n"));
    let status = WorkflowStatus { observed_generation: generation, ..previous.clone() };
    conclude(status, &[trouble], previous, generation)
}

/// A cluster, and what its API said.
#[derive(Debug)]
pub struct View<'a> {
    pub observed: &'a Observed,
    pub facilities: &'a Facilities,
    /// What the API did not take.
    pub refused: Vec<Refused>,
}

impl View<'_> {
    /// The status of a function or service whose workload the API did not take as it is now: no pod has the newest
    /// template.
    fn checked(&self, mut status: FunctionStatus) -> FunctionStatus {
        if self.refused.iter().any(|it| it.object == status.workload) {
            (status.replicas, status.ready_replicas) = (status.replicas.max(1), 0);
        }
        status
    }
}

/// The status of a Workflow whose objects were applied.
#[must_use]
pub fn of_plan(
    plan: &Plan,
    view: View<'_>,
    previous: &WorkflowStatus,
    generation: i64,
) -> WorkflowStatus {
    let observed = view.observed;
    let mut troubles: Vec<_> = view.refused.iter().map(|it| it.trouble.clone()).collect();
    troubles.extend(routes::troubles(plan, &view));
    let running = plan.functions.iter().filter(|it| it.function.role != Role::Library);
    let functions: Vec<_> = running
        .map(|planned| view.checked(function(plan, planned, &view, &mut troubles)))
        .collect();
    let services = plan.services.iter();
    let services: Vec<_> = services
        .map(|planned| match plan.placement {
            Placement::Pod => sidecar(planned, functions.first()),
            _ => view.checked(service(plan, planned, observed, &mut troubles)),
        })
        .collect();
    let ready = functions.iter().filter(|it| is_ready(it)).count();
    let status = WorkflowStatus {
        observed_generation: generation,
        ready_functions: format!("{ready}/{}", functions.len()),
        functions,
        services,
        ..WorkflowStatus::default()
    };
    let mut status = conclude(status, &troubles, previous, generation);
    let scales = scaling::verdict(plan, &view);
    status.conditions.extend(scales.map(|it| condition(it, &previous.conditions, generation)));
    status
}

/// One of the objects, by its name.
fn found<'a>(objects: &'a [DynamicObject], name: &str) -> Option<&'a DynamicObject> {
    objects.iter().find(|it| it.name_any() == name)
}

fn conclude(
    mut status: WorkflowStatus,
    troubles: &[Trouble],
    previous: &WorkflowStatus,
    generation: i64,
) -> WorkflowStatus {
    let waiting: Vec<_> = status
        .functions
        .iter()
        .chain(&status.services)
        .filter(|it| !is_ready(it))
        .map(|it| format!("{} ({} of {})", it.name, it.ready_replicas, it.replicas))
        .collect();
    let degraded = troubles.first();
    let is_invalid = degraded.is_some_and(|it| it.reason == "Invalid");
    let mut messages: Vec<&str> = troubles.iter().map(|it| it.message.as_str()).collect();
    messages.dedup();
    let trouble = messages.join("\n");
    let ready = match degraded {
        _ if waiting.is_empty() && !is_invalid => (true, "AllReady", String::new()),
        Some(first) => (false, first.reason.as_str(), trouble.clone()),
        None => (false, "Waiting", format!("not ready: {}", waiting.join(", "))),
    };
    let progressing = match degraded {
        _ if is_invalid => (false, "Invalid", "nothing was changed".to_owned()),
        _ if waiting.is_empty() => (false, "AllReady", String::new()),
        _ => (true, "Waiting", format!("not ready: {}", waiting.join(", "))),
    };
    let degraded = match degraded {
        Some(first) => (true, first.reason.as_str(), trouble),
        None => (false, "AsExpected", String::new()),
    };
    let verdicts = CONDITIONS.into_iter().zip([ready, progressing, degraded]);
    status.conditions = verdicts
        .map(|(kind, (is_true, reason, message))| {
            let verdict = Verdict { kind, is_true, reason: reason.to_owned(), message };
            condition(verdict, &previous.conditions, generation)
        })
        .collect();
    status
}

fn shortened(text: &str) -> String {
    let end = (0..=text.len().min(MESSAGE_MAX)).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}

fn function(
    plan: &Plan,
    planned: &PlannedFunction,
    view: &View<'_>,
    troubles: &mut Vec<Trouble>,
) -> FunctionStatus {
    let (function, observed) = (&planned.function, view.observed);
    let own = (plan.placement != Placement::Pod).then_some(function.name.as_str());
    let (revision, first) = match own {
        Some(_) => (&planned.revision, planned),
        // The workload of the one pod is that of its first primary.
        None => (&plan.revision, plan.primaries().next().unwrap_or(planned)),
    };
    let object = names::object(&plan.workflow, own);
    let mut status = FunctionStatus {
        name: function.name.clone(),
        image: planned.image.clone(),
        image_digest: newest_digest(observed.pods_of(own), &function.name),
        replicas: 1,
        ..FunctionStatus::default()
    };
    if let Some(port) = function.cluster.service_port {
        let service = names::object(&plan.workflow, Some(&function.name));
        status.endpoint = Some(format!("http://{service}:{port}"));
    }
    match (first.function.role, &first.function.cluster.schedule) {
        (Role::Primary, Some(_)) => {
            if observed.cron_jobs.iter().any(|it| it.name_any() == object) {
                (status.workload, status.ready_replicas) = (format!("CronJob/{object}"), 1);
            }
        }
        (Role::Primary, None) => {
            let name = format!("{object}-{revision}");
            if let Some(job) = observed.job(&name) {
                status.workload = format!("Job/{name}");
                status.ready_replicas = i32::from(job_is_ready(job));
                troubles.extend(job_trouble(job, &function.name));
            }
        }
        (Role::Secondary | Role::Library, _) => {
            if let Some(deployment) = observed.deployment(&object) {
                status.workload = format!("Deployment/{object}");
                (status.replicas, status.ready_replicas) = replicas(deployment);
                // Until its autoscaler has made them.
                let fewest =
                    own.map_or(1, |_| fewest_pods(plan, planned, view.facilities, observed));
                status.replicas = status.replicas.max(i32::try_from(fewest).unwrap_or(i32::MAX));
                troubles.extend(deployment_trouble(deployment, &function.name));
            }
        }
    }
    if !is_ready(&status) {
        let trouble = |pod| pod_trouble(pod, &function.name, WITH_RUNTIME);
        // A pod that goes still has what the next one waits for: a port of the node, or its part of a quota.
        let mut pods = observed.pods_of(own);
        let is_making_room = pods.any(|pod| pod.metadata.deletion_timestamp.is_some());
        let found = observed.pods_of(own).find_map(trouble);
        troubles.extend(found.filter(|it| !is_making_room || it.reason != UNSCHEDULABLE));
    }
    status
}
