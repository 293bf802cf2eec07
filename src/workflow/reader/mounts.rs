//! The mounts of a function. `--input` gives named ones their source.

use cwasi_config::mount_target::mount_target;

use super::Reader;
use super::values::given;
use crate::Mount;
use crate::document::{Location, Node, Problem, Value};
use crate::fields;
use crate::nearest::nearest;

impl Reader<'_> {
    pub(super) fn mounts(&mut self, node: &Node, path: &str) -> Vec<Mount> {
        let Value::List(nodes) = &node.value else {
            let kind = node.value.kind();
            self.fault(node.location, format!("{path} must be a list, not {kind}"));
            return Vec::new();
        };
        let mut mounts: Vec<Mount> = Vec::new();
        for node in nodes {
            let Some(mount) = self.mount(node, &format!("{path}[]")) else { continue };
            if mounts.iter().any(|other| other.target == mount.target) {
                let text = format!("{path}[].target: {} is there twice", mount.target);
                self.fault(node.location, text);
            }
            mounts.push(mount);
        }
        mounts
    }

    fn mount(&mut self, node: &Node, path: &str) -> Option<Mount> {
        let fields = self.fields(node, path, fields::MOUNT);
        let mut text = |name: &str| {
            let entry = given(&fields, name)?;
            self.text(&entry.node, &format!("{path}.{name}"))
                .map(|text| (entry.node.location, text.to_owned()))
        };
        let (name, source, target) = (text("name"), text("source"), text("target"));
        let read_only = text("readOnly");
        let input = name.as_ref().and_then(|(_, name)| {
            self.inputs.iter().find(|(input, _)| input == name).map(|(_, path)| path.clone())
        });
        self.mounts.extend(name.as_ref().map(|(_, name)| name.clone()));
        let source = input.or_else(|| source.map(|(_, source)| self.folder.join(source)));
        let (target_location, target) = target?;
        let target = match mount_target(&target) {
            Ok(plain) => plain.display().to_string(),
            Err(problem) => {
                self.fault(target_location, format!("{path}.target: {target} {problem}"));
                target
            }
        };
        let read_only = match read_only.as_ref().map(|(location, text)| (*location, text.as_str()))
        {
            None | Some((_, "false")) => false,
            Some((_, "true")) => true,
            Some((location, text)) => {
                self.fault(location, format!("{path}.readOnly: {text} must be true or false"));
                false
            }
        };
        match (source, name) {
            (Some(source), _) => Some(Mount { source, target, read_only }),
            (None, Some((location, name))) => {
                let text =
                    format!("{path} has no `source`: give it one, or run with --input {name}=PATH");
                self.fault(location, text);
                None
            }
            (None, None) => {
                self.fault(node.location, format!("{path} has no `source`"));
                None
            }
        }
    }

    pub(super) fn unused_inputs(&mut self) {
        let unused: Vec<_> =
            self.inputs.iter().filter(|(name, _)| !self.mounts.contains(name)).collect();
        for (name, _) in unused {
            let near = nearest(name, self.mounts.iter().map(String::as_str))
                .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let text = format!("--input {name}: no mount has this `name`{near}");
            self.problems.push(Problem::new(Location::CommandLine, text));
        }
    }
}
