//! The fields of a function that become annotations. The runtime's own parser checks them: each value by itself, so
//! that an error has its location, then all together.

use std::collections::BTreeMap;

use cwasi_config::{FunctionSpec, function_name};

use super::values::Given;
use super::{FAN_IN, PROTOCOL, Reader};
use crate::document::{Entry, Location};
use crate::fields::{Field, FieldType, Target};
use crate::{Embedded, Role};

impl Reader<'_> {
    /// The annotations of a function. Each value is checked by itself, then all together.
    pub(super) fn annotations(
        &mut self,
        fields: &Given<'_>,
        path: &str,
        location: Location,
        workflow: &str,
        embed: &[(String, Embedded)],
        role: Role,
    ) -> BTreeMap<String, String> {
        let mut values: Vec<Annotated> = Vec::new();
        for (field, entry) in fields {
            let path = format!("{path}.{}", field.name);
            if let FieldType::Object(inner) = field.kind {
                if !inner.iter().any(|field| matches!(field.target, Target::Annotation(_))) {
                    continue;
                }
                for (field, entry) in self.fields(&entry.node, &path, inner) {
                    let path = format!("{path}.{}", field.name);
                    values.extend(self.annotation(field, entry, path));
                }
            } else if !matches!(field.name, "role" | "embed") {
                values.extend(self.annotation(field, entry, path));
            }
        }
        let mut faults = false;
        for value in &values {
            if let Some(problem) = value.problem() {
                faults = true;
                self.fault(value.location, format!("{}: {problem}", value.path));
            }
        }
        let mut all: BTreeMap<String, String> =
            values.iter().map(|value| (value.key.to_owned(), value.text.clone())).collect();
        let role = if role == Role::Secondary { "secondary" } else { "primary" };
        all.insert("cwasi.role".to_owned(), role.to_owned());
        if !faults {
            let image = |from: &Embedded| match from {
                Embedded::Function(_) => "image".to_owned(),
                Embedded::Image(image) => image.clone(),
            };
            let embed: Vec<_> =
                embed.iter().map(|(module, from)| format!("{module}={}", image(from))).collect();
            self.together(&all, &values, path, location, workflow, &embed.join(","));
        }
        all
    }

    fn together(
        &mut self,
        all: &BTreeMap<String, String>,
        values: &[Annotated],
        path: &str,
        location: Location,
        workflow: &str,
        embed: &str,
    ) {
        let mut pairs: Vec<(&str, &str)> =
            all.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        // A wrong name has been reported where it is.
        pairs.push(("cwasi.workflow", function_name(workflow).map_or("w", |_| workflow)));
        if !embed.is_empty() {
            pairs.push(("cwasi.embed", embed));
        }
        let Err(error) = FunctionSpec::parse(pairs) else { return };
        for problem in error.problems {
            let value = values.iter().find(|value| {
                problem.strip_prefix(value.key).is_some_and(|rest| rest.starts_with([' ', '=']))
            });
            match value {
                Some(value) => self.fault(value.location, format!("{}: {problem}", value.path)),
                None => self.fault(location, format!("{path}: {problem}")),
            }
        }
    }

    fn annotation(&mut self, field: &Field, entry: &Entry, path: String) -> Option<Annotated> {
        let Target::Annotation(key) = field.target else { return None };
        let text = match field.kind {
            FieldType::Texts => {
                let texts = self.texts(&entry.node, &path);
                if let Some(text) = texts.iter().find(|text| text.contains(',')) {
                    let text =
                        format!("{path}: `{text}` has a comma: make it two entries of the list");
                    self.fault(entry.node.location, text);
                }
                texts.join(",")
            }
            FieldType::Objects(_) => self.triggers(&entry.node, &path)?,
            _ => self.text(&entry.node, &path)?.to_owned(),
        };
        Some(Annotated { key, text, path, location: entry.node.location })
    }
}

/// A value that becomes an annotation.
struct Annotated {
    key: &'static str,
    text: String,
    path: String,
    location: Location,
}

impl Annotated {
    /// What the runtime says about this value alone.
    fn problem(&self) -> Option<String> {
        let mut pairs = vec![("cwasi.role", "secondary"), ("cwasi.workflow", "w")];
        if self.key.starts_with(FAN_IN) && self.key != FAN_IN {
            pairs.push((FAN_IN, "caller"));
        }
        if self.key == PROTOCOL {
            pairs.push(("cwasi.http", "8080"));
        }
        pairs.push((self.key, &self.text));
        let error = FunctionSpec::parse(pairs).err()?;
        let prefix = format!("{}=", self.key);
        let problem = error.problems.into_iter().next()?;
        Some(problem.strip_prefix(&prefix).map_or(problem.clone(), str::to_owned))
    }
}
