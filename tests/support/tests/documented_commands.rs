//! Checks the test commands in the documentation: each names an existing target, and each filter is part of a test's
//! name. A filter that matches nothing would run no test and succeed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};

use cwasi_testbed::page::Page;
use cwasi_testbed::paths::checkout;

/// Stands for a filter in the text above a table.
const PLACEHOLDER: &str = "NAME";

#[test]
fn every_test_that_the_documentation_names_is_there() {
    let (mut checked, mut missing) = (0, Vec::new());
    for page in Page::all() {
        for command in commands(&page) {
            checked += 1;
            if let Err(what) = check(&command) {
                missing.push(format!("{}: `{command}`: {what}", page.path));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(checked > 50, "only {checked} commands found");
}

#[test]
fn a_name_that_is_not_there_is_found_out() {
    assert_eq!(check("cargo test --test sandbox -- native_code"), Ok(()));
    for wrong in [
        "cargo test --test nothing",
        "cargo test --test sandbox -- native_code no_such_test",
        "cargo test -p cwasi-coordinator --lib -- no_such_module",
        "cargo test -p no-such-package",
    ] {
        assert!(check(wrong).is_err(), "{wrong}");
    }
}

/// `cargo test …` and `--test …` without comments, on one line each.
fn commands(page: &Page) -> Vec<String> {
    let all = page.commands().into_iter().map(|text| {
        let words = text.split_whitespace().take_while(|word| *word != "#");
        words.collect::<Vec<_>>().join(" ")
    });
    all.filter(|text| text.starts_with("cargo test ") || text.starts_with("--test ")).collect()
}

/// Whether there is a test for each part of the command.
fn check(command: &str) -> Result<(), String> {
    let mut words = command.split(' ');
    let mut root = checkout();
    let mut sources = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "cargo" | "test" | "--release" | "--no-run" => {}
            "-p" => root = package(words.next().unwrap_or_default())?,
            "--workspace" => root = checkout().join("src"),
            "--lib" => {
                let inner = root.join("src");
                sources = files(if inner.is_dir() { &inner } else { &root }, "rs");
            }
            "--test" => sources = target(&root.join("tests"), words.next().unwrap_or_default())?,
            "--" => break,
            other => return Err(format!("what is {other}?")),
        }
    }
    if sources.is_empty() {
        // All of a package's.
        sources = files(&root, "rs");
    }
    let names: Vec<String> = sources.iter().flat_map(|source| names(source)).collect();
    // Words such as `--nocapture` are for the test's program.
    let filters = words.filter(|word| *word != PLACEHOLDER && !word.starts_with("--"));
    for filter in filters {
        if !names.iter().any(|name| name.contains(filter)) {
            return Err(format!("no test has {filter} in its name"));
        }
    }
    Ok(())
}

fn package(name: &str) -> Result<PathBuf, String> {
    let line = format!("name = \"{name}\"");
    let is_it = |manifest: &PathBuf| {
        fs::read_to_string(manifest).is_ok_and(|text| text.lines().any(|found| found == line))
    };
    let root = checkout();
    let folders = [
        "",
        "abi",
        "benches",
        "benches/papers",
        "cli",
        "cli/kubectl",
        "host-functions",
        "operator",
        "tests/engines",
        "tests/support",
    ];
    let manifests = folders.iter().map(|folder| root.join(folder).join("Cargo.toml"));
    let below_src = files(&root.join("src"), "toml");
    let found =
        manifests.chain(below_src).find(is_it).ok_or_else(|| format!("no package {name}"))?;
    Ok(found.parent().unwrap().to_owned())
}

/// Sources of an integration test.
fn target(tests: &Path, name: &str) -> Result<Vec<PathBuf>, String> {
    let file = tests.join(name).with_extension("rs");
    let mut sources = files(&tests.join(name), "rs");
    sources.extend(file.is_file().then_some(file));
    if sources.is_empty() { Err(format!("no test target {name}")) } else { Ok(sources) }
}

/// What may be a test's name in a file: its functions, its modules, and, for tests with a harness of their own, its
/// texts; each behind the path of the file's module.
fn names(source: &Path) -> Vec<String> {
    let text = fs::read_to_string(source).unwrap();
    let inside = source.with_extension("");
    let inside = inside.strip_prefix(checkout()).unwrap();
    let module = inside.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("::");
    let is_name = |text: &&str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
    let modules = text.split("mod ").skip(1).filter_map(|rest| rest.split(' ').next());
    let texts = text.split('"').skip(1).step_by(2);
    let all = functions.chain(modules).chain(texts).filter(is_name);
    all.map(|name| format!("{module}::{name}")).collect()
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}
