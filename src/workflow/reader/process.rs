//! What a function's process gets: its module's name, arguments, environment and working directory.

use std::path::PathBuf;

use cwasi_config::mount_target::plain_path;

use super::Reader;
use crate::document::{Node, Value};

impl Reader<'_> {
    /// Arguments. A text is refused, as Kubernetes does: it could be one argument, or several between spaces.
    pub(super) fn args(&mut self, node: &Node, path: &str) -> Vec<String> {
        if let Value::Text(_) = node.value {
            let text =
                "must be a list such as [Ada, Grace], not a text: each entry is one argument";
            self.fault(node.location, format!("{path} {text}"));
            return Vec::new();
        }
        self.texts(node, path)
    }

    /// A folder of the container.
    pub(super) fn folder_of(&mut self, node: &Node, path: &str) -> Option<PathBuf> {
        let text = self.text(node, path)?;
        let folder = plain_path(text);
        folder
            .map_err(|problem| self.fault(node.location, format!("{path}: {text} {problem}")))
            .ok()
    }

    pub(super) fn env(&mut self, node: &Node, path: &str) -> Vec<(String, String)> {
        let is_wrong = |key: &str| key.is_empty() || key.contains(['=', '\0']);
        if let Value::Map(entries) = &node.value {
            for entry in entries.iter().filter(|entry| is_wrong(&entry.key)) {
                let text = format!("{path}: `{}` is not the name of a variable", entry.key);
                self.fault(entry.location, text);
            }
        }
        self.pairs(node, path)
    }
}
