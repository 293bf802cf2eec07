//! Reads values of one type, and the fields of mappings. Anything else is a fault with its path.

use cwasi_config::function_name;

use super::Reader;
use crate::document::{Entry, Location, Node, Problem, Value};
use crate::fields::Field;
use crate::nearest::nearest;

/// The fields of one mapping that are in the file.
pub(super) type Given<'a> = Vec<(&'static Field, &'a Entry)>;

pub(super) fn given<'a>(fields: &Given<'a>, name: &str) -> Option<&'a Entry> {
    fields.iter().find(|(field, _)| field.name == name).map(|(_, entry)| *entry)
}

impl Reader<'_> {
    pub(super) fn fault(&mut self, location: Location, text: impl Into<String>) {
        self.problems.push(Problem::new(location, text));
    }

    /// The entries of a mapping; faults otherwise.
    pub(super) fn map<'n>(&mut self, node: &'n Node, path: &str) -> &'n [Entry] {
        match &node.value {
            Value::Map(entries) => entries,
            other => {
                self.fault(
                    node.location,
                    format!("{path} must be a mapping, not {}", other.kind()),
                );
                &[]
            }
        }
    }

    pub(super) fn text<'n>(&mut self, node: &'n Node, path: &str) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) => Some(text),
            other => {
                self.fault(node.location, format!("{path} must be a text, not {}", other.kind()));
                None
            }
        }
    }

    /// A list of texts; a single text is a list of one.
    pub(super) fn texts(&mut self, node: &Node, path: &str) -> Vec<String> {
        match &node.value {
            Value::List(nodes) => {
                let mut texts = Vec::new();
                for node in nodes {
                    texts.extend(self.text(node, &format!("{path}[]")).map(str::to_owned));
                }
                texts
            }
            Value::Text(text) => vec![text.clone()],
            other => {
                self.fault(node.location, format!("{path} must be a list, not {}", other.kind()));
                Vec::new()
            }
        }
    }

    /// A mapping of texts.
    pub(super) fn pairs(&mut self, node: &Node, path: &str) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for entry in self.map(node, path) {
            let text = self.text(&entry.node, &format!("{path}.{}", entry.key));
            pairs.extend(text.map(|text| (entry.key.clone(), text.to_owned())));
        }
        pairs
    }

    /// The known fields of a mapping; unknown and missing ones are faults.
    pub(super) fn fields<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        known: &'static [Field],
    ) -> Given<'n> {
        let mut found = Vec::new();
        for entry in self.map(node, path) {
            match known.iter().find(|field| field.name == entry.key) {
                Some(field) => found.push((field, entry)),
                None => {
                    let names: Vec<_> = known.iter().map(|field| field.name).collect();
                    self.unknown(entry.location, path, &entry.key, &names);
                }
            }
        }
        let missing =
            known.iter().filter(|field| field.required && given(&found, field.name).is_none());
        for field in missing {
            self.fault(node.location, format!("{path} has no `{}`: {}", field.name, field.about));
        }
        found
    }

    pub(super) fn unknown(&mut self, location: Location, path: &str, key: &str, known: &[&str]) {
        let nearest = match nearest(key, known.iter().copied()) {
            Some(nearest) => format!("; did you mean `{nearest}`?"),
            None => String::new(),
        };
        self.fault(location, format!("{path} has the unknown field `{key}`{nearest}"));
    }

    pub(super) fn name(&mut self, location: Location, path: &str, name: &str) -> String {
        if let Err(problem) = function_name(name) {
            self.fault(location, format!("{path}: `{name}` {problem}"));
        }
        name.to_owned()
    }

    pub(super) fn constant(&mut self, node: &Node, path: &str, expected: &str) {
        if self.text(node, path).is_some_and(|text| text != expected) {
            self.fault(node.location, format!("{path} must be {expected}"));
        }
    }

    /// A text that is not empty.
    pub(super) fn filled<'n>(&mut self, node: &'n Node, path: &str) -> Option<&'n str> {
        let text = self.text(node, path)?;
        if text.is_empty() {
            self.fault(node.location, format!("{path} is empty"));
        }
        Some(text)
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, node: &Node, path: &str) -> bool {
        match self.text(node, path) {
            Some("true") => true,
            None | Some("false") => false,
            Some(text) => {
                let text = format!("{path}: {text} must be true or false");
                self.fault(node.location, text);
                false
            }
        }
    }
}
