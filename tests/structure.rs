//! Who imports whom, read from the source: the table of `docs/architecture.md`, and no circles in any folder.
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

/// Which folders of `src` each of them may import.
const MAY_IMPORT: [(&str, &[&str]); 11] = [
    ("sys", &[]),
    ("wire", &[]),
    ("config", &["wire"]),
    ("modes", &["wire", "sys"]),
    ("coordinator", &["config", "modes", "wire"]),
    ("content", &["coordinator"]),
    ("dispatcher", &["modes", "wire", "sys"]),
    ("vm", &["wire", "sys", "modes"]),
    ("host", &["coordinator", "dispatcher", "config", "modes", "wire", "sys"]),
    ("shim", &["host", "content", "coordinator", "dispatcher", "config", "modes", "wire", "sys"]),
    ("sandbox", &["dispatcher", "vm", "modes", "wire", "sys"]),
];

/// What the command `cwasi` may import of this crate: no engine, no containers, nothing that only a shim does.
const CLI_MAY_IMPORT: [&str; 9] = [
    "config",
    "content",
    "coordinator",
    "dispatcher",
    "host",
    "modes",
    "shim::local",
    "sys",
    "wire",
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

/// Every file of `src` that is no test, by its module's name.
fn files() -> BTreeMap<Name, syn::File> {
    fn read(directory: &Path, name: &Name, files: &mut BTreeMap<Name, syn::File>) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let file = entry.file_name().into_string().unwrap();
            let inside = |part: &str| [&name[..], &[part.to_owned()]].concat();
            if entry.file_type().unwrap().is_dir() {
                if file != "bin" && file != "tests" {
                    read(&entry.path(), &inside(&file), files);
                }
            } else if let Some(stem) = file.strip_suffix(".rs")
                && !["main", "lib", "tests"].contains(&stem)
            {
                let text = fs::read_to_string(entry.path()).unwrap();
                let name = if stem == "mod" { name.clone() } else { inside(stem) };
                files.insert(name, syn::parse_file(&text).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &Name::new(), &mut files);
    files
}

fn imports() -> Imports {
    let files = files();
    assert!(files.len() > 100, "{} files", files.len());
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
fn folders_import_what_the_table_says() {
    let mut wrong = Vec::new();
    for (from, imports) in imports() {
        let (_, may) = MAY_IMPORT.iter().find(|(folder, _)| *folder == from[0]).unwrap();
        for import in imports.iter().filter(|import| import[0] != from[0]) {
            if !may.contains(&import[0].as_str()) {
                wrong.push(format!("{} imports {}", from.join("::"), import.join("::")));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "against the table of docs/architecture.md");
}

#[test]
fn the_command_imports_what_the_table_says() {
    fn read(directory: &Path, wrong: &mut Vec<String>) -> usize {
        let mut files = 0;
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                files += read(&path, wrong);
                continue;
            }
            // Pages and styles that files include.
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            files += 1;
            let mut paths = Paths(Vec::new());
            paths.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
            for import in paths.0.iter().filter(|import| import[0] == "cwasi") {
                let import = import[1..].join("::");
                let may = |module: &&str| import.starts_with(*module);
                if !CLI_MAY_IMPORT.iter().any(may) {
                    wrong.push(format!("{} imports {import}", path.display()));
                }
            }
        }
        files
    }
    let mut wrong = Vec::new();
    let files = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cli/src"), &mut wrong);
    assert!(files >= 5, "{files} files");
    assert_eq!(wrong, Vec::<String>::new(), "against the table of docs/architecture.md");
}

#[test]
fn nothing_in_a_folder_imports_itself_by_way_of_another() {
    let imports = imports();
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
