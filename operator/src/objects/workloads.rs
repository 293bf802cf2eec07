//! What runs pods: a Deployment for each secondary, a Job or CronJob for each primary; with placement `pod`, one of them
//! for the whole workflow.

use cwasi_workflow::Placement;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, Job, JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Object, names, pods};
use crate::plan::{Plan, PlannedFunction};

/// All workloads.
#[must_use]
pub fn build(plan: &Plan) -> Vec<Object> {
    if plan.placement == Placement::Pod {
        return vec![one_pod(plan)];
    }
    let mut objects = Vec::new();
    for planned in plan.secondaries() {
        let template = pods::of_function(plan, planned, None);
        let name = Some(planned.function.name.as_str());
        let is_fixed = planned.function.cluster.scale.is_none() && !planned.scaled_by_others;
        let fixed = is_fixed.then_some(planned.function.replicas);
        let metadata = placed(metadata(plan, name, names::object(&plan.workflow, name)), planned);
        objects.push(deployment(plan, name, metadata, fixed, template));
        objects.extend(disruption_budget(plan, planned));
    }
    for planned in plan.primaries() {
        let name = Some(planned.function.name.as_str());
        let template = pods::of_function(plan, planned, Some("OnFailure"));
        match &planned.function.cluster.schedule {
            Some(schedule) => {
                let metadata =
                    placed(metadata(plan, name, names::object(&plan.workflow, name)), planned);
                objects.push(cron_job(plan, name, metadata, schedule, template));
            }
            None => objects.push(job(plan, name, &planned.revision, template)),
        }
    }
    objects
}

fn one_pod(plan: &Plan) -> Object {
    let metadata = metadata(plan, None, names::object(&plan.workflow, None));
    match plan.primaries().next() {
        None => deployment(plan, None, metadata, Some(1), pods::of_workflow(plan, None)),
        Some(first) => {
            let template = pods::of_workflow(plan, Some("OnFailure"));
            match &first.function.cluster.schedule {
                Some(schedule) => cron_job(plan, None, metadata, schedule, template),
                None => job(plan, None, &plan.revision, template),
            }
        }
    }
}

fn metadata(plan: &Plan, function: Option<&str>, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        labels: Some(names::labels(&plan.workflow, function)),
        ..ObjectMeta::default()
    }
}

/// Records on a workload what its template says about the function's place, and since which state of the function.
fn placed(mut metadata: ObjectMeta, planned: &PlannedFunction) -> ObjectMeta {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(names::PLACED_FOR.to_owned(), planned.placed_for.clone());
    if !planned.near.is_empty() {
        annotations.insert(names::NEAR.to_owned(), planned.near.join(","));
    }
    metadata
}

/// `replicas` = `None` leaves the number to an autoscaler.
fn deployment(
    plan: &Plan,
    function: Option<&str>,
    metadata: ObjectMeta,
    replicas: Option<u32>,
    template: PodTemplateSpec,
) -> Object {
    // A new pod first, then an old one less: an update loses no call. Where the old one has a port of the node, the new
    // one could not start before.
    let surge = i32::from(!has_node_port(&template));
    let rolling = RollingUpdateDeployment {
        max_surge: Some(IntOrString::Int(surge)),
        max_unavailable: Some(IntOrString::Int(1 - surge)),
    };
    let spec = DeploymentSpec {
        replicas: replicas.and_then(|it| i32::try_from(it).ok()),
        selector: LabelSelector {
            match_labels: Some(names::selector(&plan.workflow, function)),
            ..LabelSelector::default()
        },
        strategy: Some(DeploymentStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(rolling),
        }),
        template,
        ..DeploymentSpec::default()
    };
    Object::of(&Deployment { metadata, spec: Some(spec), status: None })
}

/// True if a node can have one such pod only: it has a port there.
fn has_node_port(template: &PodTemplateSpec) -> bool {
    let Some(spec) = &template.spec else { return false };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let is_host = spec.host_network == Some(true);
    let mut ports = containers.flat_map(|it| it.ports.iter().flatten());
    ports.any(|it| is_host || it.host_port.is_some_and(|port| port > 0))
}

fn job(plan: &Plan, function: Option<&str>, revision: &str, template: PodTemplateSpec) -> Object {
    let name = format!("{}-{revision}", names::object(&plan.workflow, function));
    Object::of(&Job {
        metadata: metadata(plan, function, name),
        spec: Some(JobSpec { template, ..JobSpec::default() }),
        status: None,
    })
}

fn cron_job(
    plan: &Plan,
    function: Option<&str>,
    metadata: ObjectMeta,
    schedule: &str,
    template: PodTemplateSpec,
) -> Object {
    let job = JobTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(names::labels(&plan.workflow, function)),
            ..ObjectMeta::default()
        }),
        spec: Some(JobSpec { template, ..JobSpec::default() }),
    };
    let spec = CronJobSpec {
        schedule: schedule.to_owned(),
        // A run that takes longer than its period is not started a second time.
        concurrency_policy: Some("Forbid".to_owned()),
        job_template: job,
        ..CronJobSpec::default()
    };
    Object::of(&CronJob { metadata, spec: Some(spec), status: None })
}

/// One pod less at a time, if there are several.
fn disruption_budget(plan: &Plan, planned: &PlannedFunction) -> Option<Object> {
    let function = &planned.function;
    let fewest = function.cluster.scale.map_or(function.replicas, |scale| scale.min);
    if fewest < 2 {
        return None;
    }
    let spec = PodDisruptionBudgetSpec {
        max_unavailable: Some(IntOrString::Int(1)),
        selector: Some(LabelSelector {
            match_labels: Some(names::selector(&plan.workflow, Some(&function.name))),
            ..LabelSelector::default()
        }),
        ..PodDisruptionBudgetSpec::default()
    };
    let name = names::object(&plan.workflow, Some(&function.name));
    Some(Object::of(&PodDisruptionBudget {
        metadata: metadata(plan, Some(&function.name), name),
        spec: Some(spec),
        status: None,
    }))
}
