//! Checks a document and makes a [`Workflow`] of it. Reports every fault, not the first one.

mod annotations;
mod cluster;
mod mounts;
mod process;
mod services;
mod triggers;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::values::{Given, given};
use crate::document::{Entry, Location, Node, Problem, Value};
use crate::fields::{self, API_VERSION, KIND};
use crate::nearest::nearest;
use crate::{Additions, Embedded, Function, NodeSpec, Role, Source, Workflow};

/// The annotation that others of a fan-in need.
const FAN_IN: &str = "cwasi.fan-in";
/// An annotation that needs a port.
const PROTOCOL: &str = "cwasi.protocol";
/// Most functions of one workflow.
const FUNCTIONS_MAX: usize = 256;
/// Keys of Kubernetes' metadata that are not read.
const METADATA_OTHERS: [&str; 2] = ["labels", "annotations"];

/// Reads the document. Paths begin at `folder`.
pub(super) fn read(
    root: &Node,
    folder: &Path,
    additions: &Additions,
) -> Result<Workflow, Vec<Problem>> {
    let inputs = additions.inputs.as_slice();
    let mut reader = Reader { problems: Vec::new(), folder, inputs, mounts: Vec::new() };
    let workflow = reader.workflow(root, additions);
    reader.unused_inputs();
    reader.problems.sort();
    match workflow {
        Some(workflow) if reader.problems.is_empty() => Ok(workflow),
        _ => Err(reader.problems),
    }
}

struct Reader<'a> {
    problems: Vec<Problem>,
    folder: &'a Path,
    inputs: &'a [(String, PathBuf)],
    /// Names of all mounts.
    mounts: Vec<String>,
}

impl Reader<'_> {
    fn workflow(&mut self, root: &Node, additions: &Additions) -> Option<Workflow> {
        let (mut name, mut spec) = (None, None);
        let mut missing = vec!["apiVersion", "kind", "metadata", "spec"];
        let known = missing.clone();
        for entry in self.map(root, "the file") {
            missing.retain(|key| *key != entry.key);
            match entry.key.as_str() {
                "apiVersion" => self.constant(&entry.node, "apiVersion", API_VERSION),
                "kind" => self.constant(&entry.node, "kind", KIND),
                "metadata" => name = self.metadata(&entry.node),
                "spec" => spec = Some(&entry.node),
                other => self.unknown(entry.location, "the file", other, &known),
            }
        }
        for key in missing {
            self.fault(root.location, format!("the file has no `{key}`"));
        }
        let (name, spec) = (name.unwrap_or_default(), spec?);
        let fields = self.fields(spec, "spec", fields::SPEC);
        let field = |name: &str| given(&fields, name).map(|entry| &entry.node);
        let nodes = field("nodes").map(|node| self.nodes(node)).unwrap_or_default();
        let keys = |name: &str| field(name).map(keys_of).unwrap_or_default();
        let (names, backends) = (keys("functions"), keys("services"));
        let placed =
            field("placement").map(|node| self.placement(node, &names)).unwrap_or_default();
        if let Some(template) = field("podTemplate") {
            self.raw(template, "spec.podTemplate");
        }
        let mut services =
            field("services").map(|node| self.services(node, &names)).unwrap_or_default();
        self.addresses(&mut services, &additions.services);
        let functions = self.functions(field("functions")?, &name, &nodes, &backends);
        let (placement, may_move, placed_edges) = placed;
        Some(Workflow { name, functions, services, nodes, placement, may_move, placed_edges })
    }

    fn metadata(&mut self, node: &Node) -> Option<String> {
        let mut name = None;
        for entry in self.map(node, "metadata") {
            match entry.key.as_str() {
                "name" => {
                    let text = self.text(&entry.node, "metadata.name")?;
                    name = Some(self.name(entry.node.location, "metadata.name", text));
                }
                other if METADATA_OTHERS.contains(&other) => {}
                other => self.unknown(
                    entry.location,
                    "metadata",
                    other,
                    &["name", "labels", "annotations"],
                ),
            }
        }
        if name.is_none() {
            self.fault(node.location, "metadata has no `name`");
        }
        name
    }

    fn nodes(&mut self, node: &Node) -> BTreeMap<String, NodeSpec> {
        let mut nodes = BTreeMap::new();
        for entry in self.map(node, "spec.nodes") {
            let path = format!("spec.nodes.{}", entry.key);
            let fields = self.fields(&entry.node, &path, fields::NODE);
            let mut text = |name: &str| {
                let entry = given(&fields, name)?;
                self.text(&entry.node, &format!("{path}.{name}")).map(PathBuf::from)
            };
            let (address, config) = (text("address"), text("config"));
            nodes.insert(
                entry.key.clone(),
                NodeSpec { address: address.unwrap_or_default(), config },
            );
        }
        nodes
    }

    fn functions(
        &mut self,
        node: &Node,
        workflow: &str,
        nodes: &BTreeMap<String, NodeSpec>,
        services: &[String],
    ) -> Vec<Function> {
        let entries = self.map(node, "spec.functions");
        if entries.is_empty() || entries.len() > FUNCTIONS_MAX {
            self.fault(
                node.location,
                format!("spec.functions must have 1 to {FUNCTIONS_MAX} functions"),
            );
        }
        let names: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        let mut functions = Vec::new();
        for entry in entries {
            let Some(mut function) = self.function(entry, workflow, nodes, &names) else {
                continue;
            };
            function.uses = self.uses(entry, &names, services);
            functions.push(function);
        }
        functions
    }

    fn function(
        &mut self,
        entry: &Entry,
        workflow: &str,
        nodes: &BTreeMap<String, NodeSpec>,
        names: &[&str],
    ) -> Option<Function> {
        let path = format!("spec.functions.{}", entry.key);
        let name = self.name(entry.location, &path, &entry.key);
        let fields = self.fields(&entry.node, &path, fields::FUNCTION);
        let role = self.role(&fields, &path);
        let embed = self.embed(&fields, &path, names);
        let annotations = self.annotations(&fields, &path, entry.location, workflow, &embed, role);
        let source = self.source(&fields, &path, entry.location);
        if role == Role::Library {
            let allowed = ["module", "image", "role"];
            for (field, entry) in fields.iter().filter(|(field, _)| !allowed.contains(&field.name))
            {
                self.fault(
                    entry.location,
                    format!("{path}.{} means nothing: a library has no container", field.name),
                );
            }
        }
        let field = |name: &str| given(&fields, name);
        let args = field("args").map(|entry| self.args(&entry.node, &format!("{path}.args")));
        let env = field("env").map(|entry| self.env(&entry.node, &format!("{path}.env")));
        let working_dir = field("workingDir")
            .and_then(|entry| self.folder_of(&entry.node, &format!("{path}.workingDir")));
        let mounts =
            field("mounts").map(|entry| self.mounts(&entry.node, &format!("{path}.mounts")));
        let host_network = field("hostNetwork")
            .is_some_and(|entry| self.flag(&entry.node, &format!("{path}.hostNetwork")));
        let replicas = field("replicas").and_then(|entry| self.replicas(entry, &path, role));
        let node = field("node").and_then(|entry| self.node_of(entry, &path, nodes));
        let cluster = self.in_cluster(&fields, &path, role);
        Some(Function {
            name,
            location: entry.location,
            source: source?,
            role,
            args: args.unwrap_or_default(),
            env: env.unwrap_or_default(),
            working_dir,
            mounts: mounts.unwrap_or_default(),
            host_network,
            replicas: replicas.unwrap_or(1),
            uses: Vec::new(),
            node,
            embed,
            annotations,
            cluster,
        })
    }

    fn role(&mut self, fields: &Given<'_>, path: &str) -> Role {
        let Some(entry) = given(fields, "role") else { return Role::Primary };
        match self.text(&entry.node, &format!("{path}.role")) {
            Some("secondary") => Role::Secondary,
            Some("library") => Role::Library,
            Some("primary") | None => Role::Primary,
            Some(other) => {
                let text = format!("{path}.role: `{other}` must be primary, secondary or library");
                self.fault(entry.node.location, text);
                // It may have every field: no faults that only follow from this one.
                Role::Secondary
            }
        }
    }

    fn source(&mut self, fields: &Given<'_>, path: &str, location: Location) -> Option<Source> {
        match (given(fields, "module"), given(fields, "image")) {
            (Some(module), None) => {
                let text = self.filled(&module.node, &format!("{path}.module"))?;
                Some(Source::Module(self.folder.join(text)))
            }
            (None, Some(image)) => {
                let text = self.filled(&image.node, &format!("{path}.image"))?;
                Some(Source::Image(text.to_owned()))
            }
            (Some(_), Some(image)) => {
                self.fault(
                    image.location,
                    format!("{path} has both `module` and `image`: keep one"),
                );
                None
            }
            (None, None) => {
                self.fault(location, format!("{path} has neither `module` nor `image`"));
                None
            }
        }
    }

    fn embed(&mut self, fields: &Given<'_>, path: &str, names: &[&str]) -> Vec<(String, Embedded)> {
        let Some(entry) = given(fields, "embed") else { return Vec::new() };
        let path = format!("{path}.embed");
        let mut embed = Vec::new();
        for (module, from) in self.pairs(&entry.node, &path) {
            // Images have a repository or a tag; a bare word is meant to be a function.
            let from = if names.contains(&from.as_str()) {
                Embedded::Function(from)
            } else if from.contains(['/', ':', '@']) {
                Embedded::Image(from)
            } else {
                let near = nearest(&from, names.iter().copied())
                    .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                let text =
                    format!("{path}.{module}: there is no function `{from}` in this file{near}");
                self.fault(entry.node.location, text);
                continue;
            };
            embed.push((module, from));
        }
        embed
    }

    fn replicas(&mut self, entry: &Entry, path: &str, role: Role) -> Option<u32> {
        let text = self.text(&entry.node, &format!("{path}.replicas"))?;
        let number = text.parse().ok().filter(|number| (1..=fields::REPLICAS_MAX).contains(number));
        if number.is_none() {
            let text = format!(
                "{path}.replicas: {text} is not a whole number from 1 to {}",
                fields::REPLICAS_MAX
            );
            self.fault(entry.node.location, text);
        } else if role == Role::Primary && number != Some(1) {
            let text = format!("{path}.replicas needs role: secondary: a primary runs once");
            self.fault(entry.location, text);
        }
        number
    }

    fn node_of(
        &mut self,
        entry: &Entry,
        path: &str,
        nodes: &BTreeMap<String, NodeSpec>,
    ) -> Option<String> {
        let name = self.text(&entry.node, &format!("{path}.node"))?;
        if !nodes.contains_key(name) {
            let near = nearest(name, nodes.keys().map(String::as_str))
                .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            self.fault(
                entry.node.location,
                format!("{path}.node: spec.nodes has no `{name}`{near}"),
            );
        }
        Some(name.to_owned())
    }
}

/// The keys of a mapping; none of anything else, which is a fault elsewhere.
fn keys_of(node: &Node) -> Vec<String> {
    match &node.value {
        Value::Map(entries) => entries.iter().map(|it| it.key.clone()).collect(),
        Value::Null | Value::Text(_) | Value::List(_) => Vec::new(),
    }
}

#[cfg(test)]
#[path = "reader/tests.rs"]
mod tests;
