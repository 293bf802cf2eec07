//! Pod templates: containers of functions, their annotations, where they are placed, and the user's own template over
//! all of it.

use std::collections::BTreeMap;

use cwasi_workflow::Role;
use k8s_openapi::DeepMerge as _;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, LifecycleHandler, PodSpec, PodTemplateSpec,
    ResourceRequirements, SleepAction,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{affinity, names, services};
use crate::plan::{Plan, PlannedFunction};

/// RuntimeClass of functions' pods.
const RUNTIME_CLASS: &str = "cwasi";
/// What a function that nobody calls needs; podTemplate can say more.
const REQUESTS: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "16Mi")];
/// Seconds for which a function still serves its port after its pod was deleted: until then the nodes and proxies of the
/// cluster learn that its Service has this pod no more. Connections that come later would be refused.
const DRAIN_SECONDS: i64 = 5;
/// `terminationGracePeriodSeconds` of a pod that does not say it.
const GRACE_SECONDS: i64 = 30;

/// The pod of one function. `restart_policy` is that of a Job's pod.
#[must_use]
pub fn of_function(
    plan: &Plan,
    planned: &PlannedFunction,
    restart_policy: Option<&str>,
) -> PodTemplateSpec {
    let mut pod = Pod::new(plan, Some(planned));
    pod.libraries(plan, &[planned]);
    pod.containers.push(container(planned, &planned.function.name));
    pod.annotate(planned, &planned.function.name);
    let mut template = pod.template(plan, restart_policy);
    template.merge_from(planned.template.clone());
    drain(&mut template, &[planned]);
    template
}

/// One pod with all functions. With primaries, secondaries are sidecars, which end when the primaries have ended.
#[must_use]
pub fn of_workflow(plan: &Plan, restart_policy: Option<&str>) -> PodTemplateSpec {
    let mut pod = Pod::new(plan, None);
    let running: Vec<_> =
        plan.functions.iter().filter(|it| it.function.role != Role::Library).collect();
    pod.libraries(plan, &running);
    // Before the functions, which start when they are ready.
    pod.init_containers.extend(plan.services.iter().map(services::sidecar));
    let has_primaries = plan.primaries().next().is_some();
    for planned in plan.secondaries() {
        for name in planned.container_names() {
            let mut container = container(planned, &name);
            pod.annotate(planned, &name);
            if has_primaries {
                container.restart_policy = Some("Always".to_owned());
                pod.init_containers.push(container);
            } else {
                pod.containers.push(container);
            }
        }
    }
    for planned in plan.primaries() {
        pod.containers.push(container(planned, &planned.function.name));
        pod.annotate(planned, &planned.function.name);
    }
    let mut template = pod.template(plan, restart_policy);
    for planned in &plan.services {
        template.merge_from(services::template_of_sidecar(planned));
    }
    for planned in &running {
        let is_sidecar = has_primaries && planned.function.role == Role::Secondary;
        template.merge_from(template_in_one_pod(planned, is_sidecar));
    }
    drain(&mut template, &running);
    template
}

/// Has functions with a port serve it for [`DRAIN_SECONDS`] before they are told to end, or for half of the time that
/// they have for that, if it is less. Hooks of the user's template stay as they are.
fn drain(template: &mut PodTemplateSpec, functions: &[&PlannedFunction]) {
    let Some(spec) = &mut template.spec else { return };
    let grace = spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS);
    let seconds = DRAIN_SECONDS.min(grace / 2);
    if seconds < 1 {
        return;
    }
    let with_port = functions.iter().filter(|it| it.function.cluster.http_port.is_some());
    let names: Vec<_> = with_port.flat_map(|it| it.container_names()).collect();
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for container in containers.filter(|it| names.contains(&it.name)) {
        let sleep = || LifecycleHandler {
            sleep: Some(SleepAction { seconds }),
            ..LifecycleHandler::default()
        };
        container.lifecycle.get_or_insert_default().pre_stop.get_or_insert_with(sleep);
    }
}

/// A function's own template in the one pod: what it says of the function's container is said of each replica, where
/// that container is.
fn template_in_one_pod(planned: &PlannedFunction, is_sidecar: bool) -> PodTemplateSpec {
    let mut template = planned.template.clone();
    let Some(spec) = &mut template.spec else { return template };
    let (own, others) = std::mem::take(&mut spec.containers)
        .into_iter()
        .partition(|container| container.name == planned.function.name);
    spec.containers = others;
    let own: Vec<Container> = own;
    for name in planned.container_names() {
        let named = own.iter().map(|it| Container { name: name.clone(), ..it.clone() });
        if is_sidecar {
            spec.init_containers.get_or_insert_default().extend(named);
        } else {
            spec.containers.extend(named);
        }
    }
    template
}

struct Pod<'a> {
    workflow: &'a str,
    /// `None` = of the whole workflow.
    planned: Option<&'a PlannedFunction>,
    annotations: BTreeMap<String, String>,
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    host_network: bool,
    /// True if its functions look up names of services.
    uses_services: bool,
}

impl<'a> Pod<'a> {
    fn new(plan: &'a Plan, planned: Option<&'a PlannedFunction>) -> Self {
        let workflow = ("cwasi.workflow".to_owned(), plan.workflow.clone());
        Self {
            workflow: &plan.workflow,
            planned,
            annotations: BTreeMap::from([workflow]),
            init_containers: Vec::new(),
            containers: Vec::new(),
            host_network: false,
            uses_services: false,
        }
    }

    /// Annotations of a container: `KEY.CONTAINER` (docs/annotations.md#pods).
    fn annotate(&mut self, planned: &PlannedFunction, container: &str) {
        self.host_network |= planned.function.host_network;
        self.uses_services |= !planned.function.uses.is_empty();
        for (key, value) in &planned.annotations {
            // Also the name: without it a function has that of its module's file.
            if key != "cwasi.role" || value != "primary" {
                self.annotations.insert(format!("{key}.{container}"), value.clone());
            }
        }
    }

    /// Images to embed come to the node as containers that end at once.
    fn libraries(&mut self, plan: &Plan, functions: &[&PlannedFunction]) {
        let libraries: Vec<_> = plan.libraries(functions).collect();
        for planned in libraries {
            let name = &planned.function.name;
            self.annotations.insert(format!("cwasi.role.{name}"), "library".to_owned());
            self.init_containers.push(container(planned, name));
        }
    }

    fn template(self, plan: &Plan, restart_policy: Option<&str>) -> PodTemplateSpec {
        let function = self.planned.map(|it| it.function.name.as_str());
        let labels = names::labels(self.workflow, function);
        // The node's name server does not know Services.
        let asks_cluster = self.host_network && self.uses_services;
        let (affinity, topology_spread_constraints) = affinity::of(plan, self.planned);
        let spec = PodSpec {
            runtime_class_name: Some(RUNTIME_CLASS.to_owned()),
            restart_policy: restart_policy.map(str::to_owned),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            host_network: self.host_network.then_some(true),
            dns_policy: asks_cluster.then(|| "ClusterFirstWithHostNet".to_owned()),
            affinity,
            topology_spread_constraints,
            init_containers: (!self.init_containers.is_empty()).then_some(self.init_containers),
            containers: self.containers,
            ..PodSpec::default()
        };
        let metadata = ObjectMeta {
            labels: Some(labels),
            annotations: Some(self.annotations),
            ..ObjectMeta::default()
        };
        let mut template = PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) };
        template.merge_from(plan.template.clone());
        template
    }
}

fn container(planned: &PlannedFunction, name: &str) -> Container {
    let function = &planned.function;
    let env = |(name, value): &(String, String)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        value_from: None,
    };
    let port = |port: u16| ContainerPort {
        name: Some("http".to_owned()),
        container_port: port.into(),
        ..ContainerPort::default()
    };
    let requests = REQUESTS.map(|(name, value)| (name.to_owned(), Quantity(value.to_owned())));
    Container {
        name: name.to_owned(),
        image: Some(planned.image.clone()),
        args: (!function.args.is_empty()).then(|| function.args.clone()),
        env: (!function.env.is_empty()).then(|| function.env.iter().map(env).collect()),
        working_dir: function.working_dir.as_ref().map(|folder| folder.display().to_string()),
        ports: function.cluster.http_port.map(|it| vec![port(it)]),
        resources: Some(ResourceRequirements {
            requests: Some(requests.into()),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}
