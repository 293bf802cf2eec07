//! The table of `docs/specification.md`: each field of the runtime specification's schema has a row, each row is about
//! such a field, and names tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::source::below;

/// The schema's folder, and the file about a container's configuration.
const SCHEMA: &str = "third_party/runtime-spec/schema";
const CONFIGURATION: &str = "config-schema.json";
const PAGE: &str = "docs/specification.md";
/// Stands for everything below a field.
const ALL: &str = ".*";
/// Deepest field; a schema that refers to itself has no end.
const DEPTH_MAX: usize = 40;

/// The schema's documents by name.
struct Schema(BTreeMap<String, Value>);

impl Schema {
    fn read() -> Self {
        let files = fs::read_dir(below(SCHEMA)).unwrap().map(|entry| entry.unwrap().path());
        let document = |path: &Path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        Self(files.map(|path| (name(&path), document(&path))).collect())
    }

    /// Adds the paths of the fields of `node`, which is in `document`.
    fn fields(
        &self,
        document: &str,
        node: &Value,
        path: &str,
        depth: usize,
        found: &mut BTreeSet<String>,
    ) {
        assert!(depth < DEPTH_MAX, "{path}");
        if let Some(reference) = node["$ref"].as_str() {
            let (file, pointer) = reference.split_once('#').unwrap_or((reference, ""));
            let file = if file.is_empty() { document } else { file };
            // Some pointers of the schema lack their first slash.
            let pointer = pointer.trim_matches('/');
            let parts = pointer.split('/').filter(|part| !part.is_empty());
            let target = parts.fold(&self.0[file], |node, part| &node[part]);
            assert!(target.is_object(), "{reference}");
            self.fields(file, target, path, depth + 1, found);
        }
        for list in ["allOf", "anyOf", "oneOf"] {
            for part in node[list].as_array().into_iter().flatten() {
                self.fields(document, part, path, depth + 1, found);
            }
        }
        for (name, field) in node["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            found.insert(path.clone());
            self.fields(document, field, &path, depth + 1, found);
        }
        if node["items"].is_object() {
            self.fields(document, &node["items"], &format!("{path}[]"), depth + 1, found);
        }
    }
}

fn schema_fields() -> BTreeSet<String> {
    let schema = Schema::read();
    let mut found = BTreeSet::new();
    schema.fields(CONFIGURATION, &schema.0[CONFIGURATION], "", 0, &mut found);
    found
}

/// The texts between backticks.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The rows of the page's tables: fields, what native containers and functions do with them, and tests.
fn rows(page: &str) -> Vec<[&str; 4]> {
    let lines = page.lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            cells.try_into().unwrap_or_else(|cells| panic!("four cells: {cells:?}"))
        })
        .collect()
}

fn is_about(row: &str, field: &str) -> bool {
    match row.strip_suffix(ALL) {
        Some(around) => {
            let below = field.strip_prefix(around);
            below.is_some_and(|below| below.starts_with('.') || below.starts_with("[]"))
        }
        None => row == field,
    }
}

#[test]
fn each_field_of_the_schema_has_one_row() {
    let page = fs::read_to_string(below(PAGE)).unwrap();
    let named: Vec<&str> = rows(&page).iter().flat_map(|row| code(row[0])).collect();
    let fields = schema_fields();
    assert!(fields.len() > 300, "{} fields", fields.len());
    let mut wrong = Vec::new();
    for field in &fields {
        let count = named.iter().filter(|row| is_about(row, field)).count();
        if count != 1 {
            wrong.push(format!("{field} has {count} rows"));
        }
    }
    for row in named {
        if !fields.iter().any(|field| is_about(row, field)) {
            wrong.push(format!("{row} is no field"));
        }
    }
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
}

#[test]
fn each_row_says_what_happens_and_names_its_tests() {
    let page = fs::read_to_string(below(PAGE)).unwrap();
    for [field, native, function, tests] in rows(&page) {
        assert!(!native.is_empty() && !function.is_empty(), "{field}");
        let tests = code(tests);
        assert!(!tests.is_empty(), "{field}: no test");
        for test in tests {
            let (module, name) = test.split_once("::").unwrap();
            let files = ["sandbox", "e2e", "processes"];
            let files = files.map(|suite| below("tests").join(suite).join(format!("{module}.rs")));
            let has = |file: &Path| {
                fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}(")))
            };
            assert!(files.iter().any(|file| has(file)), "{field}: there is no test {test}");
        }
    }
}
