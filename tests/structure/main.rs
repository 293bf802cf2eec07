//! Who uses whom: the crates' table of `docs/architecture.md`, read from the manifests, and no circles between the
//! files of a crate, read from the source. And who may mount: only paths that were resolved. A circle may hide where the
//! source is no syntax tree (in a macro); none is made up. And the table of the specification's fields.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod circles;
mod imports;
mod lock_files;
mod methods;
mod mounts;
mod source;
mod specification;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::Visit as _;

use circles::circles;
use imports::{Paths, between_siblings, imports};
use methods::calls_between_files;
use source::{below, files};

/// The crates below `src`, and which of the workspace's crates each of them may use. Cargo refuses circles.
const MAY_USE: [(&str, &[&str]); 20] = [
    ("sys", &["abi"]),
    ("wire", &["abi"]),
    ("config", &["abi", "wire"]),
    ("workflow", &["config"]),
    ("modes", &["abi", "sys", "wire"]),
    ("modes/direct", &["modes", "sys", "wire"]),
    ("modes/networked", &["modes", "sys", "wire"]),
    ("coordinator", &["abi", "config", "modes", "sys", "wire"]),
    ("content", &["coordinator"]),
    ("dispatcher", &["abi", "modes", "sys", "wire"]),
    ("vm", &["abi", "host-functions", "modes", "sys", "wire"]),
    ("vm/components", &["abi", "host-functions", "modes", "sys", "vm", "wasi", "wire"]),
    ("vm/wasi", &["host-functions", "vm", "wire"]),
    ("vm/wasmedge", &["abi", "host-functions", "modes", "sys", "vm", "wire"]),
    (
        "vm/wasmtime",
        &[
            "abi",
            "components",
            "host-functions",
            "modes",
            "sys",
            "vm",
            "wasi",
            "wasmtime-artifact",
            "wire",
        ],
    ),
    ("vm/wasmtime/artifact", &[]),
    (
        "host",
        &[
            "abi",
            "config",
            "coordinator",
            "direct",
            "dispatcher",
            "modes",
            "networked",
            "sys",
            "wire",
        ],
    ),
    ("shim", &["config", "content", "coordinator", "host", "networked", "sys", "wire"]),
    ("sandbox", &["abi", "dispatcher", "host-functions", "modes", "sys", "vm", "wire"]),
    ("bin/cwasi-sandbox-wasmedge", &["sandbox", "vm", "wasmedge"]),
];

/// Libraries that one crate below `src` uses, and no other; but for wasmtime, on which its compiler has to agree.
const SOLE_USERS: [(&str, &[&str]); 12] = [
    ("containerd-client", &["content"]),
    ("containerd-shim", &["shim"]),
    ("libcontainer", &["sandbox"]),
    ("libseccomp", &["sandbox"]),
    ("redis", &["modes/networked"]),
    ("ring", &["coordinator", "modes/direct"]),
    ("rustix", &["sys", "vm/wasi"]),
    ("simple-dns", &["vm"]),
    ("wasmedge-sdk", &["vm/wasmedge"]),
    ("wasmedge-sys", &["vm/wasmedge"]),
    ("wasmtime", &["vm/components", "vm/wasmtime", "vm/wasmtime/artifact"]),
    ("wasmtime-wasi", &["vm/components"]),
];

/// Folders of sources outside of `src`.
const OTHER_SOURCES: [&str; 12] = [
    "abi/src",
    "benches/kubernetes/src",
    "benches/papers/src",
    "benches/protocol/src",
    "benches/src",
    "cli/kubectl/src",
    "cli/src",
    "host-functions/src",
    "operator/api/src",
    "operator/fake-api/src",
    "operator/src",
    "tests/support/src",
];

/// The dependencies in a crate's manifest, without those of its tests.
fn dependencies(krate: &str) -> BTreeSet<String> {
    let path = below("src").join(krate).join("Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
    manifest["dependencies"].as_table().unwrap().keys().cloned().collect()
}

/// The folders below `src` with a manifest.
fn crates() -> BTreeSet<String> {
    fn find(directory: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                find(&path, root, found);
            } else if path.file_name().is_some_and(|name| name == "Cargo.toml") {
                found.insert(directory.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    let (root, mut found) = (below("src"), BTreeSet::new());
    find(&root, &root, &mut found);
    found
}

#[test]
fn crates_use_what_the_table_says() {
    let listed: BTreeSet<String> = MAY_USE.iter().map(|(krate, _)| (*krate).to_owned()).collect();
    assert_eq!(crates(), listed);
    for (krate, may) in MAY_USE {
        let of_ours = |name: String| name.strip_prefix("cwasi-").map(str::to_owned);
        let uses: BTreeSet<_> = dependencies(krate).into_iter().filter_map(of_ours).collect();
        let may: BTreeSet<_> = may.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(uses, may, "src/{krate}, against the table of docs/architecture.md");
    }
}

#[test]
fn some_libraries_have_one_user() {
    for (library, only) in SOLE_USERS {
        let users: Vec<_> =
            crates().into_iter().filter(|krate| dependencies(krate).contains(library)).collect();
        assert_eq!(users, only, "{library}");
    }
}

/// The folders of sources of all crates.
fn folders() -> Vec<String> {
    let crates = crates();
    let folders = crates.iter().map(|krate| format!("src/{krate}"));
    folders.chain(OTHER_SOURCES.map(str::to_owned)).collect()
}

#[test]
fn the_command_uses_one_module_of_the_shim() {
    let files = files("cli/src");
    assert!(files.len() >= 5, "{} files", files.len());
    for (name, file) in files {
        let mut paths = Paths(Vec::new());
        paths.visit_file(&file);
        let of_the_shim = paths.0.iter().filter(|import| import[0] == "cwasi_shim");
        let wrong: Vec<_> =
            of_the_shim.filter(|path| path.get(1).is_none_or(|module| module != "local")).collect();
        assert!(wrong.is_empty(), "{} imports {wrong:?}", name.join("::"));
    }
}

#[test]
fn no_circles_by_imports() {
    let mut wrong = Vec::new();
    for folder in folders() {
        let siblings = between_siblings(&imports(&files(&folder)));
        for circle in circles(&siblings) {
            let names: Vec<_> = circle.iter().map(|name| name.join("::")).collect();
            wrong.push(format!("{folder}: {} import each other", names.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_circles_by_methods() {
    let mut found = BTreeMap::new();
    for folder in folders() {
        let files = files(&folder);
        for ((file, name), calls) in calls_between_files(&files, &imports(&files)) {
            for circle in circles(&calls) {
                let names: Vec<_> = circle.iter().map(|name| name.join("::")).collect();
                let name = format!("{folder} {}::{name}", file.join("::"));
                found.insert(name, names.join(", "));
            }
        }
    }
    assert!(found.is_empty(), "methods of these types call each other across files: {found:#?}");
}

/// A raw path may lead elsewhere when it is mounted than when it was checked.
#[test]
fn no_raw_path_reaches_a_mount() {
    let mut found = Vec::new();
    for folder in folders() {
        for (name, file) in files(&folder) {
            found.extend(mounts::wrong(&folder, &name, &file));
        }
    }
    assert!(found.is_empty(), "use cwasi_sys::resolved_path: {found:#?}");
    // The table names files that there are, and sees what they use.
    for (mounting, places) in mounts::MOUNTING {
        for place in places {
            let (folder, name) = place.split_once(' ').unwrap();
            let name: Vec<_> = name.split("::").map(str::to_owned).collect();
            let file = &files(folder)[&name];
            let seen = mounts::wrong("elsewhere", &name, file);
            let expected = format!("elsewhere {} uses {mounting}", name.join("::"));
            assert!(seen.contains(&expected), "{place} does not use {mounting}");
        }
    }
}
