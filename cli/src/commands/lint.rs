//! `cwasi lint FILE`: what is wrong with a workflow before it is run. The file's own faults come first; then modules,
//! and images if containerd answers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::process::ExitCode;

use bytesize::ByteSize;
use clap::Args;
use serde_json::json;

use super::explain::caller::Caller;
use super::workflow_arguments::WorkflowArguments;
use crate::arguments::Global;
use crate::deployment::mounts::problems;
use crate::deployment::{Node, left_out};
use crate::failure::{Exit, Failure};
use crate::module::ModuleFacts;
use crate::output;
use cwasi_config::regular_file;
use cwasi_config::triggers::Trigger;
use cwasi_coordinator::triggers::TriggerPolicy;
use cwasi_wire::ids::Identity;
use cwasi_workflow::document::{Location, Problem};
use cwasi_workflow::services::Service;
use cwasi_workflow::visible;
use cwasi_workflow::{Embedded, Function, Role, Source, Workflow};

const TRIGGERS: &str = "cwasi.triggers";

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Lint {
    #[command(flatten)]
    workflow: WorkflowArguments,
}

impl Lint {
    /// Prints all findings; exit code 1 if there are any.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let workflow = self.workflow.load()?;
        let mut findings = Vec::new();
        for function in &workflow.functions {
            modules(function, &mut findings);
            mounts(function, &mut findings);
            network(&workflow, function, &mut findings);
            replicas(function, &mut findings);
            scale(function, &mut findings);
            payloads(function, &mut findings);
        }
        left_out::note_schedules(&workflow);
        cycles(&workflow, &mut findings);
        services(&workflow, &mut findings);
        on_nodes(&workflow, global, &mut findings).await?;
        findings.sort();
        if global.json {
            let list: Vec<_> = findings
                .iter()
                .map(|Problem { location, text }| json!({ "place": location.to_string(), "text": text }))
                .collect();
            output::json(&list)?;
        } else {
            for Problem { location, text } in &findings {
                let file = self.workflow.file.display().to_string();
                let (file, text) = (visible::word(&file), visible::word(text));
                match location {
                    Location::File(..) => output::line(format_args!("{file}:{location}: {text}"))?,
                    Location::CommandLine | Location::Object => {
                        output::line(format_args!("{location}: {text}"))?;
                    }
                }
            }
        }
        Ok(if findings.is_empty() { ExitCode::SUCCESS } else { Exit::Findings.into() })
    }
}

fn find(findings: &mut Vec<Problem>, function: &Function, text: impl std::fmt::Display) {
    findings.push(Problem::new(function.location, format!("{}: {text}", function.name)));
}

fn modules(function: &Function, findings: &mut Vec<Problem>) {
    let Source::Module(path) = &function.source else { return };
    let bytes = match regular_file::read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            return find(findings, function, format!("module {}: {error}", path.display()));
        }
    };
    let facts = match ModuleFacts::read(&bytes, &path.display().to_string()) {
        Ok(facts) => facts,
        Err(error) => return find(findings, function, error),
    };
    if let Some(why) = &facts.refused {
        return find(findings, function, why);
    }
    let is_prototype = function.annotations.contains_key("cwasi.compat");
    match function.role {
        Role::Secondary if is_prototype && (facts.is_reactor() || facts.is_prototype_callee()) => {}
        Role::Secondary if is_prototype => {
            let missing = "its module exports neither `cwasi_handle` nor `cwasi_function`";
            find(findings, function, missing);
        }
        Role::Primary if !facts.is_command() => {
            find(
                findings,
                function,
                format!("its module is a {}: a primary needs `_start`", facts.kind),
            );
        }
        Role::Secondary if !facts.is_reactor() && !facts.is_command() => {
            find(findings, function, "its module exports neither `cwasi_handle` nor `_start`");
        }
        _ => {}
    }
    if facts.imports_prototype() && !is_prototype && function.role != Role::Library {
        let text = "its module imports `cwasi_export`, the ABI of the paper's prototype: set `compat: \"2023\"`";
        find(findings, function, text);
    }
    for (key, what) in [("cwasi.fan-in", "fanIn"), ("cwasi.isolation", "isolation")] {
        let given = function.annotations.get(key).is_some_and(|value| value != "request");
        if given && !facts.is_reactor() {
            find(
                findings,
                function,
                format!("{what} needs a reactor, and its module is a {}", facts.kind),
            );
        }
    }
    for module in facts.foreign() {
        if !function.embed.iter().any(|(name, _)| name == module) && function.role != Role::Library
        {
            find(
                findings,
                function,
                format!("its module imports from `{module}`, which `embed` does not have"),
            );
        }
    }
    let needs_network = facts.imports.iter().find(|import| import.served.contains("`network`"));
    if let Some(import) = needs_network
        && !function.annotations.contains_key("cwasi.network")
        && function.role != Role::Library
    {
        find(
            findings,
            function,
            format!("its module imports {}, and `network` allows no destination", import.name),
        );
    }
}

/// Destinations and ports that a network of the function's own does not reach.
fn network(workflow: &Workflow, function: &Function, findings: &mut Vec<Problem>) {
    if function.host_network {
        return;
    }
    // The addresses of its services are looked at together.
    let is_service = |entry: &&str| {
        let external = workflow.services.iter().filter_map(|service| service.external.as_ref());
        external.map(ToString::to_string).any(|address| address == **entry)
    };
    let entries = function.annotations.get("cwasi.network").map_or("", String::as_str);
    let is_inside = |entry: &&str| {
        ["127.", "[::1]", "localhost"].iter().any(|inside| entry.starts_with(inside))
    };
    let outside: Vec<&str> = entries
        .split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty() && !is_inside(entry) && !is_service(entry))
        .collect();
    if !outside.is_empty() {
        let text = format!(
            "`network` allows {}, and its container has no network but 127.0.0.1: set `hostNetwork: true`",
            outside.join(", ")
        );
        find(findings, function, text);
    }
    let http = function.annotations.get("cwasi.http").map_or("", String::as_str);
    if let Some(port) = http.split(',').map(str::trim).find(|part| part.parse::<u16>().is_ok()) {
        let text = format!(
            "`http: {port}` listens in its container, which nobody reaches: set `hostNetwork: true`, or `http: gateway`"
        );
        find(findings, function, text);
    }
}

fn mounts(function: &Function, findings: &mut Vec<Problem>) {
    for problem in problems(function) {
        find(findings, function, problem);
    }
    for mount in function.mounts.iter().filter(|mount| !Path::new(&mount.source).exists()) {
        find(
            findings,
            function,
            format!("mount {}: {} does not exist", mount.target, mount.source.display()),
        );
    }
}

fn replicas(function: &Function, findings: &mut Vec<Problem>) {
    if function.replicas > 1 && function.annotations.contains_key("cwasi.fan-in") {
        let text =
            "fanIn with replicas: parts of one group that come to different replicas never meet";
        find(findings, function, text);
    }
}

/// A port that is not reached while the function has no pod.
fn scale(function: &Function, findings: &mut Vec<Problem>) {
    if let Some(port) = function.port_unreached_at_zero() {
        let text = format!(
            "`http: {port}` is not reached while it has no pod (`scale.min: 0`): send clients to the gateway (`http: \"{port}, \
             gateway\"`), or keep one pod (`scale.min: 1`)"
        );
        find(findings, function, text);
    }
}

/// Payloads that cannot be received.
fn payloads(function: &Function, findings: &mut Vec<Problem>) {
    let size = |key: &str| function.annotations.get(key)?.parse::<ByteSize>().ok();
    if let (Some(payload), Some(memory)) = (size("cwasi.max-payload"), size("cwasi.memory"))
        && payload >= memory
    {
        let text = format!(
            "maxPayload ({payload}) does not fit into memory ({memory}): such a payload cannot be received"
        );
        find(findings, function, text);
    }
}

/// Functions that embed each other.
fn cycles(workflow: &Workflow, findings: &mut Vec<Problem>) {
    let embeds = |function: &Function| -> Vec<String> {
        let names = function.embed.iter().filter_map(|(_, from)| match from {
            Embedded::Function(name) => Some(name.clone()),
            Embedded::Image(_) => None,
        });
        names.collect()
    };
    let edges: BTreeMap<&str, Vec<String>> =
        workflow.functions.iter().map(|it| (it.name.as_str(), embeds(it))).collect();
    for function in &workflow.functions {
        let (mut reached, mut next) = (Vec::new(), edges[function.name.as_str()].clone());
        while let Some(name) = next.pop() {
            if !reached.contains(&name) {
                next.extend(edges.get(name.as_str()).into_iter().flatten().cloned());
                reached.push(name);
            }
        }
        if reached.contains(&function.name) {
            find(findings, function, "it embeds itself, by way of what it embeds");
        }
    }
}

/// Services that nobody uses, and those that have no common network with their users.
fn services(workflow: &Workflow, findings: &mut Vec<Problem>) {
    let unused = workflow.services.iter().filter(|it| workflow.users_of(&it.name).next().is_none());
    for Service { name, location, .. } in unused {
        let text = format!("{name}: no function has it in `uses`, so it is never started");
        findings.push(Problem::new(*location, text));
    }
    findings.extend(workflow.network_problems());
}

/// What only the nodes know: images that are in no containerd, modules that may not be embedded, and triggers.
async fn on_nodes(
    workflow: &Workflow,
    global: &Global,
    findings: &mut Vec<Problem>,
) -> Result<(), Failure> {
    let mut nodes: BTreeMap<Option<&str>, Node> = BTreeMap::new();
    for function in workflow.functions.iter().filter(|it| it.role != Role::Library) {
        let has_triggers = function.annotations.contains_key(TRIGGERS);
        if matches!(function.source, Source::Module(_))
            && function.embed.is_empty()
            && !has_triggers
        {
            continue;
        }
        let Some(node) = node_of(workflow, function, global, &mut nodes).await else {
            return Ok(());
        };
        triggers(function, node, global, findings);
        image(function, node, global, findings).await?;
        let spec = function.node.as_deref().and_then(|name| workflow.nodes.get(name));
        let address = spec.map_or(&global.address, |spec| &spec.address).clone();
        embedded(workflow, function, node, &Global { address, ..global.clone() }, findings).await;
    }
    for service in workflow.used_services().filter(|service| service.is_started()) {
        let Some(user) = workflow.users_of(&service.name).next() else { continue };
        let Some(node) = node_of(workflow, user, global, &mut nodes).await else { return Ok(()) };
        let Service { name, image, .. } = service;
        if !node.containerd.has_image(image).await? {
            let text = format!("{name}: {}", missing_image(image, global));
            findings.push(Problem::new(service.location, text));
        }
    }
    Ok(())
}

/// The node of a function, connected; `None` if its containerd does not answer.
async fn node_of<'n, 'w>(
    workflow: &'w Workflow,
    function: &'w Function,
    global: &Global,
    nodes: &'n mut BTreeMap<Option<&'w str>, Node>,
) -> Option<&'n Node> {
    let name = function.node.as_deref();
    let vacant = match nodes.entry(name) {
        Entry::Occupied(known) => return Some(known.into_mut()),
        Entry::Vacant(vacant) => vacant,
    };
    let connected = match name.and_then(|name| workflow.nodes.get(name)) {
        Some(spec) => Node::of(global, spec).await,
        None => Node::connect(global).await,
    };
    match connected {
        Ok(node) => Some(vacant.insert(node)),
        Err(failure) => {
            output::note(format_args!(
                "cwasi: images and embedded modules are not checked: {failure}"
            ));
            None
        }
    }
}

/// Triggers that the node does not have.
fn triggers(function: &Function, node: &Node, global: &Global, findings: &mut Vec<Problem>) {
    // The file's reader has refused a wrong value.
    let triggers = function.annotations.get(TRIGGERS).and_then(|value| Trigger::list(value).ok());
    let identity = Identity {
        namespace: global.namespace.clone(),
        pod_namespace: String::new(),
        function: function.name.clone(),
    };
    let policy = TriggerPolicy::of(&node.config);
    if let Err(error) = policy.check(&identity, &triggers.unwrap_or_default()) {
        find(findings, function, error);
    }
}

/// An image that is not there.
async fn image(
    function: &Function,
    node: &Node,
    global: &Global,
    findings: &mut Vec<Problem>,
) -> Result<(), Failure> {
    if let Source::Image(image) = &function.source
        && !node.containerd.has_image(image).await?
    {
        find(findings, function, missing_image(image, global));
    }
    Ok(())
}

fn missing_image(image: &str, global: &Global) -> String {
    format!("image {image} is not in containerd's namespace {}", global.namespace)
}

/// Modules that the coordinator would not embed, and imports that nothing satisfies then.
async fn embedded(
    workflow: &Workflow,
    function: &Function,
    node: &Node,
    global: &Global,
    findings: &mut Vec<Problem>,
) {
    // A function with other faults cannot be started, so nothing would be embedded.
    if function.embed.is_empty() || findings.iter().any(|known| known.location == function.location)
    {
        return;
    }
    // A module of another function that cannot be read is a finding already.
    let Ok(caller) = Caller::of_workflow(workflow, function, global) else { return };
    match caller.embedding(node).await {
        Ok(found) => {
            for (name, why) in found.refused {
                find(findings, function, format!("{name} will not be embedded: {why}"));
            }
        }
        Err(failure) => find(findings, function, failure),
    }
}
