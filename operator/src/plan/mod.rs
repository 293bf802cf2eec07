//! A workflow as a cluster can run it: checked by the workflow file's own reader, and by what only a cluster demands.
//! All faults come together; each names the function and the remedy.
//!
//! - [`one_pod`]: what functions share in one pod. [`templates`]: what users merge into pods; [`pod_security`]: the most
//!   that they may.

mod one_pod;
pub mod pod_security;
mod templates;

use std::collections::BTreeMap;

use cwasi_config::http::MAX_HEAD_DEFAULT;
use cwasi_config::triggers::Trigger;
use cwasi_config::{AnnotationError, FunctionSpec};
use cwasi_operator_api::names;
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;
use cwasi_workflow::document::Problem;
use cwasi_workflow::services::{Address, SHARED_HOST, Service};
use cwasi_workflow::{Embedded, Function, PlacedEdge, Placement, Role, Source};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::replicas::scaled_by_others;
use crate::resource::Workflow;

/// Longest name of an object: that of a CronJob, whose Jobs and pods get a suffix.
const NAME_MAX: usize = 52;
const REVISION_BYTES: usize = 4;
/// containerd's namespace of pods.
pub const CONTAINERD_NAMESPACE: &str = "k8s.io";

/// What is to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub workflow: String,
    pub placement: Placement,
    /// True if functions may move to those that they call much, at their next rollout.
    pub may_move: bool,
    /// Edges for which the file says where their functions are.
    pub placed_edges: Vec<PlacedEdge>,
    pub functions: Vec<PlannedFunction>,
    /// Services that functions use.
    pub services: Vec<PlannedService>,
    /// Merged into every pod template.
    pub template: PodTemplateSpec,
    /// Digest of the whole spec.
    pub revision: String,
}

/// A function with its image.
#[derive(Clone, Debug)]
pub struct PlannedFunction {
    pub function: Function,
    pub image: String,
    /// Without `cwasi.workflow`, which is the pod's.
    pub annotations: BTreeMap<String, String>,
    /// `concurrency`; 1 without it: pods come before a pod has all the workers that it can have.
    pub workers: u32,
    /// Its announcement for callers, if it is started on demand.
    pub announcement: Option<Location>,
    /// Streams of others that are its triggers.
    pub streams: Vec<String>,
    /// Merged into its pods' template.
    pub template: PodTemplateSpec,
    /// Digest of what the user said about it. A Job has it in its name, because a Job's template cannot be changed: a
    /// changed function runs again, and another version of the operator does not run it again.
    pub revision: String,
    /// True if others decide how many pods it has: [`crate::replicas`].
    pub scaled_by_others: bool,
    /// Functions whose nodes its pods prefer to the workflow's other ones: [`crate::placement`].
    pub near: Vec<String>,
    /// The state of the function for which that was decided.
    pub placed_for: String,
}

/// A backend of functions.
#[derive(Clone, Debug)]
pub struct PlannedService {
    pub service: Service,
    /// Merged into its pod's template.
    pub template: PodTemplateSpec,
}

impl Plan {
    /// Reads a Workflow.
    ///
    /// # Errors
    /// All that is wrong with it, or that a cluster cannot do.
    pub fn read(resource: &Workflow) -> Result<Self, Vec<String>> {
        let object = json!({
            "apiVersion": "cwasi.dev/v1alpha1",
            "kind": "Workflow",
            "metadata": { "name": resource.name_any() },
            "spec": resource.spec.fields,
        });
        let mut workflow = cwasi_workflow::Workflow::from_object(&object).map_err(|problems| {
            problems.into_iter().map(|Problem { text, .. }| text).collect::<Vec<_>>()
        })?;
        let mut faults = Vec::new();
        if !workflow.nodes.is_empty() {
            faults.push(
                "spec.nodes are containerds of a machine: choose nodes by podTemplate.spec.nodeSelector".to_owned(),
            );
        }
        let raw = &resource.spec.fields;
        let shared = templates::read(raw.get("podTemplate"), "spec.podTemplate", &mut faults);
        let services = services(&mut workflow, raw, &shared, &mut faults);
        let images = images(&workflow.functions);
        let others = scaled_by_others(resource.annotations(), &workflow, &mut faults);
        let mut functions = Vec::new();
        for mut function in workflow.functions {
            let path = format!("spec.functions.{}", function.name);
            let is_scaled = others.contains(&function.name);
            check(&workflow.name, &function, &path, &mut faults);
            digests(&function, &images, &path, &mut faults);
            let said = raw.get("functions").and_then(|all| all.get(&function.name));
            let own = said.and_then(|function| function.get("podTemplate"));
            let own = templates::read(own, &format!("{path}.podTemplate"), &mut faults);
            let image_of = |name: &str| images.get(name).cloned().unwrap_or_default();
            let mut annotations = function.all_annotations(&workflow.name, image_of);
            let parsed = templates::parsed(&annotations, &function.name, [&shared, &own]);
            let parsed = or_fault(parsed, &path, &mut faults);
            function.host_network = templates::host_network([&shared, &own], function.host_network);
            let is_on_demand = function.cluster.scale.is_some_and(|scale| scale.min == 0);
            let announcement =
                is_on_demand.then(|| announcement(resource, &function.name, &parsed));
            annotations.remove("cwasi.workflow");
            if function.role == Role::Library {
                annotations.insert("cwasi.role".to_owned(), "library".to_owned());
            }
            let image = image(&function).unwrap_or_default();
            let revision = revision(&json!([said, raw.get("podTemplate"), annotations]));
            functions.push(PlannedFunction {
                function,
                image,
                annotations,
                workers: parsed.concurrency.unwrap_or(1),
                announcement,
                streams: streams(&parsed),
                scaled_by_others: is_scaled,
                template: own,
                placed_for: revision.clone(),
                revision,
                near: Vec::new(),
            });
        }
        let plan = Self {
            workflow: workflow.name,
            placement: workflow.placement,
            may_move: workflow.may_move,
            placed_edges: workflow.placed_edges,
            functions,
            services,
            template: shared,
            revision: revision(&json!(raw)),
        };
        plan.check_placement(&mut faults);
        if faults.is_empty() { Ok(plan) } else { Err(faults) }
    }

    /// Functions that are called.
    pub fn secondaries(&self) -> impl Iterator<Item = &PlannedFunction> {
        self.functions.iter().filter(|it| it.function.role == Role::Secondary)
    }

    /// Functions that run once, or by a schedule.
    pub fn primaries(&self) -> impl Iterator<Item = &PlannedFunction> {
        self.functions.iter().filter(|it| it.function.role == Role::Primary)
    }

    /// Images that `functions` embed.
    pub fn libraries<'a>(
        &'a self,
        functions: &[&'a PlannedFunction],
    ) -> impl Iterator<Item = &'a PlannedFunction> {
        let embedded: Vec<&str> = functions
            .iter()
            .flat_map(|it| &it.function.embed)
            .filter_map(|(_, from)| match from {
                Embedded::Function(name) => Some(name.as_str()),
                Embedded::Image(_) => None,
            })
            .collect();
        self.functions.iter().filter(move |it| {
            it.function.role == Role::Library && embedded.contains(&it.function.name.as_str())
        })
    }
}

impl PlannedFunction {
    /// Names of its containers in the one pod.
    #[must_use]
    pub fn container_names(&self) -> Vec<String> {
        let name = &self.function.name;
        let further = (2..=self.function.replicas).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(further).collect()
    }
}

/// Images by functions' names.
fn images(functions: &[Function]) -> BTreeMap<String, String> {
    functions.iter().filter_map(|it| Some((it.name.clone(), image(it)?))).collect()
}

/// The services that functions use, whose addresses the functions get.
fn services(
    workflow: &mut cwasi_workflow::Workflow,
    raw: &Map<String, Value>,
    shared: &PodTemplateSpec,
    faults: &mut Vec<String>,
) -> Vec<PlannedService> {
    let is_pod = workflow.placement == Placement::Pod;
    let name = workflow.name.clone();
    workflow.connect(|service| {
        let host =
            if is_pod { SHARED_HOST.to_owned() } else { names::object(&name, Some(&service.name)) };
        Address { host, port: service.port }
    });
    let mut planned = Vec::new();
    for service in workflow.used_services() {
        let path = format!("spec.services.{}", service.name);
        check_name(&workflow.name, &service.name, &path, faults);
        let own = raw.get("services").and_then(|all| all.get(&service.name)?.get("podTemplate"));
        let template = templates::read(own, &format!("{path}.podTemplate"), faults);
        let mut service = service.clone();
        service.host_network = templates::host_network([shared, &template], service.host_network);
        planned.push(PlannedService { service, template });
    }
    planned
}

fn or_fault(
    parsed: Result<FunctionSpec, AnnotationError>,
    path: &str,
    faults: &mut Vec<String>,
) -> FunctionSpec {
    parsed.unwrap_or_else(|error| {
        faults.push(format!("{path}: annotations of `podTemplate`: {error}"));
        FunctionSpec::default()
    })
}

fn streams(parsed: &FunctionSpec) -> Vec<String> {
    let stream = |trigger: &Trigger| match trigger {
        Trigger::RedisStream(name) => Some(name.clone()),
        Trigger::RedisChannel(_) => None,
    };
    parsed.triggers.iter().filter_map(stream).collect()
}

/// A function as callers' shims know it.
pub fn identity(resource: &Workflow, function: &str) -> Identity {
    Identity {
        namespace: CONTAINERD_NAMESPACE.to_owned(),
        pod_namespace: resource.namespace().unwrap_or_default(),
        function: function.to_owned(),
    }
}

/// What callers' shims know of a function that may have no pod.
fn announcement(resource: &Workflow, function: &str, parsed: &FunctionSpec) -> Location {
    Location {
        identity: identity(resource, function),
        node: String::new(),
        instance: String::new(),
        allow: parsed.allow.clone(),
        max_payload: parsed.max_payload,
        max_head: parsed.http.max_head.unwrap_or(MAX_HEAD_DEFAULT),
        http: parsed.http.gateway,
        link: None,
    }
}

fn revision(value: &Value) -> String {
    hex::encode(&Sha256::digest(value.to_string())[..REVISION_BYTES])
}

fn image(function: &Function) -> Option<String> {
    match &function.source {
        Source::Image(image) => Some(image.clone()),
        Source::Module(_) => None,
    }
}

/// What a cluster cannot do with a function.
fn check(workflow: &str, function: &Function, path: &str, faults: &mut Vec<String>) {
    if matches!(function.source, Source::Module(_)) {
        faults.push(format!(
            "{path}.module is a file of your machine: push it (`cwasi image build --push`) and name the image in `image`"
        ));
    }
    if !function.mounts.is_empty() {
        faults.push(format!(
            "{path}.mounts are files of a machine: use podTemplate.spec.volumes, and volumeMounts of the container `{}`",
            function.name
        ));
    }
    if function.node.is_some() {
        faults.push(format!(
            "{path}.node is a containerd of a machine: use podTemplate.spec.nodeSelector"
        ));
    }
    let is_label = |name: &str| {
        let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        name.bytes().all(inside) && !name.starts_with('-') && !name.ends_with('-')
    };
    if !is_label(&function.name) {
        faults.push(format!(
            "{path}: names of functions are lower-case letters, digits and `-` in a cluster"
        ));
    }
    check_name(workflow, &function.name, path, faults);
}

fn check_name(workflow: &str, name: &str, path: &str, faults: &mut Vec<String>) {
    let name = names::object(workflow, Some(name));
    if name.len() > NAME_MAX {
        faults
            .push(format!("{path}: the name {name} is longer than {NAME_MAX} bytes: shorten one"));
    }
}

/// Embedded images are named with their digests: images of all tenants are together on a node (docs/embedding.md).
fn digests(
    function: &Function,
    images: &BTreeMap<String, String>,
    path: &str,
    faults: &mut Vec<String>,
) {
    for (module, from) in &function.embed {
        let image = match from {
            Embedded::Function(name) => images.get(name),
            Embedded::Image(image) => Some(image),
        };
        if let Some(image) = image.filter(|image| !image.contains("@sha256:")) {
            faults.push(format!(
                "{path}.embed.{module}: name {image} with its digest, as IMAGE@sha256:…: images of all tenants are together on a node"
            ));
        }
    }
}
