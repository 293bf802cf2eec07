//! Which file imports which.
//!
//! A path that begins with `crate`, `self` or `super` is an import of the file that its longest prefix names. What a
//! parent re-exports counts as the parent's.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use crate::circles::Graph;
use crate::source::{Files, Name, arguments, is_conditional};

/// The paths that a file names outside of its tests.
pub struct Paths(pub Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_conditional(&item.attrs) {
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

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for argument in arguments(call) {
            <Self as Visit<'_>>::visit_expr(self, &argument);
        }
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

/// Every import, from file to file.
pub fn imports(files: &Files) -> Graph<Name> {
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

/// For each folder: which of its files and folders imports which other one.
pub fn between_siblings(imports: &Graph<Name>) -> Graph<Name> {
    let mut siblings = Graph::new();
    let pairs = imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    for (from, import) in pairs {
        let common = from.iter().zip(import).take_while(|(one, other)| one == other).count();
        if from.len() > common && import.len() > common {
            let uses: &mut BTreeSet<_> = siblings.entry(from[..=common].to_vec()).or_default();
            uses.insert(import[..=common].to_vec());
        }
    }
    siblings
}
