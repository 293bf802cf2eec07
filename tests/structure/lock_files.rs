//! wasmtime's compiler and the demo's workflow are workspaces with lock files of their own. They are built in the folder
//! of the runtime and share what they have in the same version: half of the compiler's crates and of the demo's tools,
//! which are a minute of each first build.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::source::below;

/// The versions of each package of a lock file.
fn versions(lock: &str) -> BTreeMap<String, BTreeSet<String>> {
    let lock: toml::Table = fs::read_to_string(below(lock)).unwrap().parse().unwrap();
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for package in lock["package"].as_array().unwrap() {
        let field = |name: &str| package[name].as_str().unwrap().to_owned();
        found.entry(field("name")).or_default().insert(field("version"));
    }
    found
}

/// What Cargo takes for compatible: `1` of `1.4.2`, `0.4` of `0.4.2`.
fn compatible(version: &str) -> &str {
    let end = if version.starts_with("0.") { 2 } else { 1 };
    let end = version.match_indices('.').nth(end - 1).map_or(version.len(), |(at, _)| at);
    &version[..end]
}

#[test]
fn all_that_is_built_in_one_folder_has_the_same_versions() {
    let runtime = versions("Cargo.lock");
    for folder in ["compiler", "workflows/vehicle-paths"] {
        let mut wrong = Vec::new();
        for (name, others) in versions(&format!("{folder}/Cargo.lock")) {
            let Some(own) = runtime.get(&name) else { continue };
            for version in &others {
                let like = own.iter().find(|it| compatible(it) == compatible(version));
                if like.is_some_and(|it| it != version) {
                    wrong.push(format!("{name} {version}"));
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{folder}/Cargo.lock differs from Cargo.lock: cp Cargo.lock {folder}/ && \
             cargo metadata --manifest-path {folder}/Cargo.toml >/dev/null\n{wrong:#?}"
        );
    }
}
