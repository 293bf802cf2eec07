//! Who uses whom: the crates' table of `docs/architecture.md`, read from the manifests, and no circles between the files
//! of a crate, read from the source.
//!
//! A path that begins with `crate`, `self` or `super` is an import of the file that its longest prefix names. What a parent
//! re-exports counts as the parent's, and paths inside macros are not seen: a circle may hide there, none is made up.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};

/// A module's name, from the crate's root.
type Name = Vec<String>;
/// Every import, from file to file.
type Imports = BTreeMap<Name, BTreeSet<Name>>;

/// The crates below `src`, and which of the workspace's crates each of them may use. Cargo refuses circles.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("sys", &["abi"]),
    ("wire", &["abi"]),
    ("config", &["abi", "wire"]),
    ("modes", &["abi", "sys", "wire"]),
    ("modes/networked", &["modes", "sys", "wire"]),
    ("coordinator", &["abi", "config", "modes", "wire"]),
    ("content", &["coordinator"]),
    ("dispatcher", &["abi", "modes", "sys", "wire"]),
    ("vm", &["abi", "host-functions", "modes", "sys", "wire"]),
    ("vm/wasmedge", &["abi", "host-functions", "modes", "sys", "vm", "wire"]),
    ("host", &["abi", "config", "coordinator", "dispatcher", "modes", "networked", "sys", "wire"]),
    ("shim", &["config", "content", "coordinator", "host", "networked", "sys", "wire"]),
    ("sandbox", &["abi", "dispatcher", "host-functions", "modes", "sys", "vm", "wasmedge", "wire"]),
];

/// Libraries that one crate below `src` uses, and no other.
const SOLE_USERS: [(&str, &str); 8] = [
    ("containerd-client", "content"),
    ("containerd-shim", "shim"),
    ("libcontainer", "sandbox"),
    ("libseccomp", "sys"),
    ("redis", "modes/networked"),
    ("simple-dns", "vm"),
    ("wasmedge-sdk", "vm/wasmedge"),
    ("wasmedge-sys", "vm/wasmedge"),
];

/// The paths that a file names outside of its tests.
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !item.attrs.iter().any(|attribute| attribute.path().is_ident("cfg")) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

impl Paths {
    fn tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        let end = |name: &syn::Ident| [&before[..], &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.tree(before, item));
            }
            syn::UseTree::Name(name) => self.0.push(end(&name.ident)),
            syn::UseTree::Rename(rename) => self.0.push(end(&rename.ident)),
            syn::UseTree::Glob(_) => self.0.push(before.clone()),
        }
    }
}

/// The dependencies in a crate's manifest, without those of its tests.
fn dependencies(krate: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(krate).join("Cargo.toml");
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
    let (root, mut found) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), BTreeSet::new());
    find(&root, &root, &mut found);
    found
}

/// Every file of a crate that is no test, by its module's name; those of crates inside it are theirs.
fn files(krate: &str, all: &BTreeSet<String>) -> BTreeMap<Name, syn::File> {
    fn read(
        directory: &Path,
        name: &Name,
        inner: &dyn Fn(&Path) -> bool,
        files: &mut BTreeMap<Name, syn::File>,
    ) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let file = entry.file_name().into_string().unwrap();
            let inside = |part: &str| [&name[..], &[part.to_owned()]].concat();
            if entry.file_type().unwrap().is_dir() {
                if !["build", "tests"].contains(&file.as_str()) && !inner(&entry.path()) {
                    read(&entry.path(), &inside(&file), inner, files);
                }
            } else if let Some(stem) = file.strip_suffix(".rs")
                && !["build", "lib", "tests"].contains(&stem)
            {
                let text = fs::read_to_string(entry.path()).unwrap();
                let name = if stem == "mod" { name.clone() } else { inside(stem) };
                files.insert(name, syn::parse_file(&text).unwrap());
            }
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let inner =
        |path: &Path| all.contains(&path.strip_prefix(&source).unwrap().display().to_string());
    let mut files = BTreeMap::new();
    read(&source.join(krate), &Name::new(), &inner, &mut files);
    files
}

fn imports(files: &BTreeMap<Name, syn::File>) -> Imports {
    let imported = |from: &Name, path: &[String]| -> Option<Name> {
        let mut name = match path.first()?.as_str() {
            "crate" => Name::new(),
            "self" | "super" => from.clone(),
            _ => return None,
        };
        for part in path {
            match part.as_str() {
                "crate" | "self" => {}
                "super" => drop(name.pop()),
                part => name.push(part.to_owned()),
            }
        }
        while !name.is_empty() && !files.contains_key(&name) {
            name.pop();
        }
        (!name.is_empty() && name != *from).then_some(name)
    };
    let of = |(from, file): (&Name, &syn::File)| {
        let mut paths = Paths(Vec::new());
        paths.visit_file(file);
        (from.clone(), paths.0.iter().filter_map(|path| imported(from, path)).collect())
    };
    files.iter().map(of).collect()
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
    for (library, user) in SOLE_USERS {
        let users: Vec<_> =
            crates().into_iter().filter(|krate| dependencies(krate).contains(library)).collect();
        assert_eq!(users, [user], "{library}");
    }
}

#[test]
fn the_command_uses_one_module_of_the_shim() {
    fn read(directory: &Path, files: &mut usize, wrong: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                read(&path, files, wrong);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                *files += 1;
                let mut paths = Paths(Vec::new());
                paths.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
                for import in paths.0.iter().filter(|import| import[0] == "cwasi_shim") {
                    if import.get(1).is_none_or(|module| module != "local") {
                        wrong.push(format!("{} imports {}", path.display(), import.join("::")));
                    }
                }
            }
        }
    }
    let (mut files, mut wrong) = (0, Vec::new());
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cli/src"), &mut files, &mut wrong);
    assert!(files >= 5, "{files} files");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn nothing_in_a_folder_imports_itself_by_way_of_another() {
    let crates = crates();
    let files: Vec<_> = crates.iter().map(|krate| files(krate, &crates)).collect();
    assert!(files.iter().map(BTreeMap::len).sum::<usize>() > 100);
    files.iter().for_each(|files| no_circles(&imports(files)));
}

fn no_circles(imports: &Imports) {
    // For each folder: which of its files and folders imports which other one.
    let mut inside: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
    for (from, import) in imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)))
    {
        let common = from.iter().zip(import).take_while(|(one, other)| one == other).count();
        if from.len() > common && import.len() > common {
            let one = from[..=common].to_vec();
            inside.entry(one).or_default().insert(import[..=common].to_vec());
        }
    }
    let reaches_itself = |start: &Name| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(imports) = next.pop().map(|name| inside.get(name)) {
            for import in imports.into_iter().flatten().filter(|import| seen.insert(*import)) {
                next.push(import);
            }
        }
        seen.contains(start).then_some(seen)
    };
    for name in inside.keys() {
        // All that it reaches and that reaches it.
        let circle = reaches_itself(name).map(|reached| {
            let back = |other: &&Name| reaches_itself(other).is_some_and(|it| it.contains(name));
            reached.into_iter().filter(back).collect::<BTreeSet<_>>()
        });
        if let Some(circle) = circle {
            let names: Vec<_> = circle.iter().map(|name| name.join("::")).collect();
            panic!("these import each other: {}", names.join(", "));
        }
    }
}
