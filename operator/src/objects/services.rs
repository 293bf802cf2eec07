//! Services: a Deployment or StatefulSet of one pod, and its address. In a workflow of one pod they are sidecars
//! instead.

use std::time::Duration;

use cwasi_workflow::Placement;
use cwasi_workflow::services::{HealthCheck, Service as ServiceFields, Storage};
use k8s_openapi::DeepMerge as _;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, StatefulSet, StatefulSetSpec,
};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, ExecAction, HTTPGetAction, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    SecurityContext, Service, ServicePort, ServiceSpec, TCPSocketAction, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Object, names};
use crate::plan::{Plan, PlannedService};

/// Name of a port, which an object needs if it has several.
const PORT: &str = "service";
/// Name of the volume of the storage.
const STORAGE: &str = "storage";
/// Between two checks: while it starts, and later. Longest check.
const STARTUP_SECONDS: i32 = 1;
const READINESS_SECONDS: i32 = 10;
const CHECK_SECONDS: i32 = 10;

/// All objects of services.
#[must_use]
pub fn build(plan: &Plan) -> Vec<Object> {
    if plan.placement == Placement::Pod {
        return Vec::new();
    }
    let objects = plan.services.iter().flat_map(|planned| {
        let workload = match &planned.service.storage {
            Some(storage) => stateful_set(plan, planned, storage),
            None => deployment(plan, planned),
        };
        [address(plan, planned), workload]
    });
    objects.collect()
}

/// The service as a sidecar of functions: those start when it is ready.
#[must_use]
pub fn sidecar(planned: &PlannedService) -> Container {
    Container { restart_policy: Some("Always".to_owned()), ..container(planned) }
}

/// What the user says about the sidecar.
#[must_use]
pub fn template_of_sidecar(planned: &PlannedService) -> PodTemplateSpec {
    let mut template = planned.template.clone();
    if let Some(spec) = &mut template.spec {
        let containers = std::mem::take(&mut spec.containers);
        let is_own = |container: &Container| container.name == planned.service.name;
        let (own, others) = containers.into_iter().partition(is_own);
        let own: Vec<Container> = own;
        spec.containers = others;
        spec.init_containers.get_or_insert_default().extend(own);
    }
    template
}

fn metadata(plan: &Plan, planned: &PlannedService) -> ObjectMeta {
    let name = &planned.service.name;
    ObjectMeta {
        name: Some(names::object(&plan.workflow, Some(name))),
        labels: Some(names::service_labels(&plan.workflow, name)),
        ..ObjectMeta::default()
    }
}

fn selector(plan: &Plan, planned: &PlannedService) -> LabelSelector {
    let labels = names::service_selector(&plan.workflow, &planned.service.name);
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}

fn address(plan: &Plan, planned: &PlannedService) -> Object {
    let port = ServicePort {
        name: Some(PORT.to_owned()),
        port: planned.service.port.into(),
        target_port: Some(IntOrString::Int(planned.service.port.into())),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        selector: selector(plan, planned).match_labels,
        ports: Some(vec![port]),
        ..ServiceSpec::default()
    };
    Object::of(&Service { metadata: metadata(plan, planned), spec: Some(spec), status: None })
}

fn deployment(plan: &Plan, planned: &PlannedService) -> Object {
    let spec = DeploymentSpec {
        replicas: Some(1),
        selector: selector(plan, planned),
        // Two at a time would each have a part of the data.
        strategy: Some(DeploymentStrategy {
            type_: Some("Recreate".to_owned()),
            rolling_update: None,
        }),
        template: template(plan, planned),
        ..DeploymentSpec::default()
    };
    Object::of(&Deployment { metadata: metadata(plan, planned), spec: Some(spec), status: None })
}

fn stateful_set(plan: &Plan, planned: &PlannedService, storage: &Storage) -> Object {
    let requests = [("storage".to_owned(), Quantity(quantity(storage.size)))];
    let claim = PersistentVolumeClaim {
        metadata: ObjectMeta { name: Some(STORAGE.to_owned()), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: storage.class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests.into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    };
    let spec = StatefulSetSpec {
        replicas: Some(1),
        service_name: Some(names::object(&plan.workflow, Some(&planned.service.name))),
        selector: selector(plan, planned),
        // Otherwise a pod that never became ready would keep a corrected one from starting.
        pod_management_policy: Some("Parallel".to_owned()),
        template: template(plan, planned),
        volume_claim_templates: Some(vec![claim]),
        ..StatefulSetSpec::default()
    };
    Object::of(&StatefulSet { metadata: metadata(plan, planned), spec: Some(spec), status: None })
}

/// The pod: native, so of the cluster's own runtime.
fn template(plan: &Plan, planned: &PlannedService) -> PodTemplateSpec {
    let ServiceFields { name, user, host_network, storage, .. } = &planned.service;
    // A new volume is root's.
    let group = user.filter(|_| storage.is_some()).map(|user| PodSecurityContext {
        fs_group: Some(user.gid.into()),
        ..PodSecurityContext::default()
    });
    let spec = PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        host_network: host_network.then_some(true),
        security_context: group,
        containers: vec![container(planned)],
        ..PodSpec::default()
    };
    let metadata = ObjectMeta {
        labels: Some(names::service_labels(&plan.workflow, name)),
        ..ObjectMeta::default()
    };
    let mut template = PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) };
    template.merge_from(plan.template.clone());
    template.merge_from(planned.template.clone());
    template
}

fn container(planned: &PlannedService) -> Container {
    let service = &planned.service;
    let env = |(name, value): &(String, String)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        value_from: None,
    };
    let list = |words: &Vec<String>| (!words.is_empty()).then(|| words.clone());
    let mount = |storage: &Storage| VolumeMount {
        name: STORAGE.to_owned(),
        mount_path: storage.path.display().to_string(),
        ..VolumeMount::default()
    };
    let user = service.user.map(|user| SecurityContext {
        run_as_user: Some(user.uid.into()),
        run_as_group: Some(user.gid.into()),
        ..SecurityContext::default()
    });
    Container {
        name: service.name.clone(),
        image: Some(service.image.clone()),
        command: list(&service.command),
        args: list(&service.args),
        env: (!service.env.is_empty()).then(|| service.env.iter().map(env).collect()),
        ports: Some(vec![ContainerPort {
            name: Some(PORT.to_owned()),
            container_port: service.port.into(),
            ..ContainerPort::default()
        }]),
        security_context: user,
        startup_probe: Some(Probe {
            period_seconds: Some(STARTUP_SECONDS),
            failure_threshold: Some(checks_of(service.health.timeout)),
            ..probe(service)
        }),
        readiness_probe: Some(Probe { period_seconds: Some(READINESS_SECONDS), ..probe(service) }),
        volume_mounts: service.storage.as_ref().map(|storage| vec![mount(storage)]),
        ..Container::default()
    }
}

fn probe(service: &ServiceFields) -> Probe {
    let port = IntOrString::Int(service.port.into());
    let probe = Probe { timeout_seconds: Some(CHECK_SECONDS), ..Probe::default() };
    match &service.health.check {
        HealthCheck::Port => {
            Probe { tcp_socket: Some(TCPSocketAction { port, host: None }), ..probe }
        }
        HealthCheck::Http(path) => Probe {
            http_get: Some(HTTPGetAction {
                path: Some(path.clone()),
                port,
                ..HTTPGetAction::default()
            }),
            ..probe
        },
        HealthCheck::Command(words) => {
            Probe { exec: Some(ExecAction { command: Some(words.clone()) }), ..probe }
        }
    }
}

/// Checks until a container counts as one that does not start.
fn checks_of(timeout: Duration) -> i32 {
    let seconds = timeout.as_millis().div_ceil(1000);
    i32::try_from(seconds).unwrap_or(i32::MAX).div_euclid(STARTUP_SECONDS).max(1)
}

/// A size as Kubernetes writes it.
fn quantity(size: u64) -> String {
    let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.into_iter().find(|(bits, _)| size.trailing_zeros() >= *bits);
    unit.map_or_else(|| size.to_string(), |(bits, unit)| format!("{}{unit}", size >> bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        let sizes = [1 << 30, 3 << 29, 1 << 41, 1000, 1025 << 10];
        assert_eq!(sizes.map(quantity), ["1Gi", "1536Mi", "2Ti", "1000", "1025Ki"]);
    }

    #[test]
    fn a_time_is_rounded_up_to_whole_checks() {
        let times = [1, 1000, 1001, 60_000];
        let checks = times.map(|millis| checks_of(Duration::from_millis(millis)));
        assert_eq!(checks, [1, 1, 2, 60]);
    }
}
