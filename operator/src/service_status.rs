//! The status of services: what runs them, and whether they are ready.

use cwasi_workflow::services::{SHARED_HOST, Service};

use crate::objects::names;
use crate::observe::Observed;
use crate::plan::{Plan, PlannedService};
use crate::resource::FunctionStatus;
use crate::workload_status::{
    Trouble, deployment_trouble, is_ready, newest_digest, pod_trouble, replicas,
};

/// The status of a service that has a pod of its own.
pub(crate) fn service(
    plan: &Plan,
    planned: &PlannedService,
    observed: &Observed,
    troubles: &mut Vec<Trouble>,
) -> FunctionStatus {
    let Service { name, image, port, .. } = &planned.service;
    let object = names::object(&plan.workflow, Some(name));
    let (workload, ready_replicas) = replicas_of_service(plan, planned, observed);
    let status = FunctionStatus {
        name: name.clone(),
        image: image.clone(),
        image_digest: newest_digest(observed.pods_of_service(name), name),
        workload,
        replicas: 1,
        ready_replicas,
        endpoint: Some(format!("{object}:{port}")),
    };
    let words = format!("service {name}");
    if let Some(deployment) = observed.deployment(&object) {
        troubles.extend(deployment_trouble(deployment, &words));
    }
    if !is_ready(&status) {
        let trouble = |pod| pod_trouble(pod, &words, "");
        troubles.extend(observed.pods_of_service(name).find_map(trouble));
    }
    status
}

/// The status of a service in the one pod: that of the pod.
pub(crate) fn sidecar(planned: &PlannedService, pod: Option<&FunctionStatus>) -> FunctionStatus {
    let Service { name, image, port, .. } = &planned.service;
    FunctionStatus {
        name: name.clone(),
        image: image.clone(),
        endpoint: Some(format!("{SHARED_HOST}:{port}")),
        image_digest: None,
        ..pod.cloned().unwrap_or_default()
    }
}

/// The workload of a service, empty before there is one, and its ready pods.
pub(crate) fn replicas_of_service(
    plan: &Plan,
    planned: &PlannedService,
    observed: &Observed,
) -> (String, i32) {
    let object = names::object(&plan.workflow, Some(&planned.service.name));
    if planned.service.storage.is_none() {
        let deployment = observed.deployment(&object);
        let ready = deployment.map(|it| (format!("Deployment/{object}"), replicas(it).1));
        return ready.unwrap_or_default();
    }
    let Some(set) = observed.stateful_set(&object) else { return (String::new(), 0) };
    let ready = set.status.as_ref().filter(|it| it.observed_generation >= set.metadata.generation);
    // Before the first pod there is no revision to compare.
    let ready = ready.filter(|it| it.update_revision == it.current_revision);
    let ready = ready.and_then(|it| it.ready_replicas).unwrap_or(0);
    (format!("StatefulSet/{object}"), ready)
}
