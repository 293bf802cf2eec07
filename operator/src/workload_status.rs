//! What the status of workloads and pods says: how many are ready, and what needs a person.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::resource::FunctionStatus;

/// Reason of a pod that no node takes.
pub(crate) const UNSCHEDULABLE: &str = "Unschedulable";
/// Where pods of functions can run.
pub(crate) const WITH_RUNTIME: &str = "; nodes with the runtime have the label cwasi/runtime=true";

/// Something that needs a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One word in CamelCase, as Kubernetes' own.
    pub reason: String,
    /// Which function, what, and the remedy.
    pub message: String,
}

impl Trouble {
    /// A trouble of this reason.
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}

/// An object that the API did not take.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its kind and name, as `Deployment/hello-greeter`.
    pub object: String,
    pub trouble: Trouble,
}

pub(crate) fn is_ready(function: &FunctionStatus) -> bool {
    !function.workload.is_empty() && function.ready_replicas >= function.replicas
}

/// Wanted and ready pods of the newest template.
pub(crate) fn replicas(deployment: &Deployment) -> (i32, i32) {
    let wanted = deployment.spec.as_ref().and_then(|it| it.replicas).unwrap_or(1);
    let Some(status) = &deployment.status else { return (wanted, 0) };
    let is_current = status.observed_generation >= deployment.metadata.generation;
    let updated = status.updated_replicas.unwrap_or(0);
    // Pods of the template before go last of all, so those are available.
    let outdated = status.replicas.unwrap_or(0) - updated;
    let ready = (status.available_replicas.unwrap_or(0) - outdated).clamp(0, updated);
    (wanted, if is_current { ready } else { 0 })
}

pub(crate) fn job_is_ready(job: &Job) -> bool {
    let Some(status) = &job.status else { return false };
    status.succeeded.unwrap_or(0) > 0 || status.ready.unwrap_or(0) > 0
}

pub(crate) fn job_trouble(job: &Job, function: &str) -> Option<Trouble> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let failed = conditions.iter().find(|it| it.type_ == "Failed" && it.status == "True")?;
    let name = job.name_any();
    let text = format!(
        "{function}: its Job has failed ({}): see `kubectl logs job/{name}`; delete the Job to run it again",
        failed.message.as_deref().unwrap_or("no message")
    );
    Some(Trouble::new("JobFailed", text))
}

pub(crate) fn deployment_trouble(deployment: &Deployment, function: &str) -> Option<Trouble> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions.iter().find(|it| it.type_ == "ReplicaFailure" && it.status == "True");
    let stuck = conditions.iter().find(|it| {
        it.type_ == "Progressing" && it.reason.as_deref() == Some("ProgressDeadlineExceeded")
    });
    let found = failure.or(stuck)?;
    let message = found.message.as_deref().unwrap_or_default();
    let remedy = if message.contains("quota") {
        ": raise the namespace's quota, or lower `replicas`"
    } else if message.contains("RuntimeClass") {
        ": install the runtime's RuntimeClass (docs/kubernetes.md)"
    } else {
        ""
    };
    let reason = found.reason.clone().unwrap_or_else(|| found.type_.clone());
    Some(Trouble::new(reason, format!("{function}: {message}{remedy}")))
}

/// Why a pod of a function or service does not run; `where_it_runs` are words about the nodes that can take it.
pub(crate) fn pod_trouble(pod: &Pod, function: &str, where_it_runs: &str) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let unschedulable = status
        .conditions
        .iter()
        .flatten()
        .find(|it| it.type_ == "PodScheduled" && it.reason.as_deref() == Some(UNSCHEDULABLE));
    if let Some(condition) = unschedulable {
        let message = condition.message.as_deref().unwrap_or_default();
        let text = format!("{function}: no node takes the pod {name}: {message}{where_it_runs}");
        return Some(Trouble::new(UNSCHEDULABLE, text));
    }
    let all = [&status.init_container_statuses, &status.container_statuses];
    let containers = all.into_iter().flatten().flatten();
    let mut waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some((
            &container.name,
            waiting.reason.as_deref()?,
            waiting.message.as_deref().unwrap_or(""),
        ))
    });
    let (container, reason, message) = waiting
        .find(|(_, reason, _)| !matches!(*reason, "ContainerCreating" | "PodInitializing"))?;
    let remedy = match reason {
        "CrashLoopBackOff" => format!("see `kubectl logs {name} -c {container} --previous`"),
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" => {
            "check `image`, and podTemplate.spec.imagePullSecrets".to_owned()
        }
        _ => format!("see `kubectl describe pod {name}`"),
    };
    let text = format!("{function}: container {container} of pod {name}: {message}; {remedy}");
    Some(Trouble::new(reason, text))
}

/// Digest of the image that a container runs, in the newest pod that has it.
pub(crate) fn newest_digest<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    container: &str,
) -> Option<String> {
    let digests = pods.filter_map(|pod| Some((pod.creation_timestamp(), digest(pod, container)?)));
    digests.max().map(|(_, digest)| digest)
}

fn digest(pod: &Pod, container: &str) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all = [&status.init_container_statuses, &status.container_statuses];
    let mut containers = all.into_iter().flatten().flatten();
    let found = containers.find(|it| it.name == container)?;
    // An image that was not pulled from a registry has no name before it.
    let digest = found.image_id.rsplit('@').next()?;
    (!digest.is_empty()).then(|| digest.to_owned())
}
