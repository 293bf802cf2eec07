//! Which file calls methods that another file defines for the same type.
//!
//! Only calls on `self` and `Self` are seen, since a syntax tree has no types.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Expr, Item, Type};

use crate::circles::Graph;
use crate::source::{Files, Name, arguments, is_conditional};

/// A type, by the file that defines it and its name.
pub type TypeName = (Name, String);

/// The methods of one type in one file.
#[derive(Default)]
struct Methods {
    defined: BTreeSet<String>,
    called: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Methods {
    fn visit_impl_item_fn(&mut self, method: &'ast syn::ImplItemFn) {
        self.defined.insert(method.sig.ident.to_string());
        visit::visit_impl_item_fn(self, method);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if matches!(&*call.receiver, Expr::Path(path) if path.path.is_ident("self")) {
            self.called.insert(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() == 2 && path.segments[0].ident == "Self" {
            self.called.insert(path.segments[1].ident.to_string());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for argument in arguments(call) {
            <Self as Visit<'_>>::visit_expr(self, &argument);
        }
    }
}

/// For each type with methods in several files: which file calls methods of which other one.
pub fn calls_between_files(
    files: &Files,
    imports: &Graph<Name>,
) -> BTreeMap<TypeName, Graph<Name>> {
    let mut types: BTreeMap<TypeName, BTreeMap<Name, Methods>> = BTreeMap::new();
    for (file, item) in items(files) {
        let Item::Impl(block) = item else { continue };
        let Type::Path(path) = &*block.self_ty else { continue };
        let name = path.path.segments.last().unwrap().ident.to_string();
        if let Some(definition) = definition(files, imports, file, &name) {
            let methods = types.entry((definition.clone(), name)).or_default();
            methods.entry(file.clone()).or_default().visit_item_impl(block);
        }
    }
    types.into_iter().map(|(name, methods)| (name, calls(&methods))).collect()
}

fn items(files: &Files) -> impl Iterator<Item = (&Name, &Item)> {
    let all = files.iter().flat_map(|(name, file)| file.items.iter().map(move |item| (name, item)));
    all.filter(|(_, item)| !matches!(item, Item::Impl(block) if is_conditional(&block.attrs)))
}

/// The file of the type that `file` calls `name`: itself, or else a parent, or else one that it imports.
fn definition<'a>(
    files: &'a Files,
    imports: &Graph<Name>,
    file: &Name,
    name: &str,
) -> Option<&'a Name> {
    let defines = |item: &Item| match item {
        Item::Struct(item) => item.ident == name,
        Item::Enum(item) => item.ident == name,
        _ => false,
    };
    let candidates: BTreeSet<_> =
        items(files).filter(|(_, item)| defines(item)).map(|(file, _)| file).collect();
    let parents = candidates.iter().filter(|candidate| file.starts_with(candidate));
    let mut imported = candidates.iter().filter(|candidate| imports[file].contains(**candidate));
    parents.max_by_key(|parent| parent.len()).or_else(|| imported.next_back()).copied()
}

fn calls(methods: &BTreeMap<Name, Methods>) -> Graph<Name> {
    let called = |file: &Name, of: &Methods| -> BTreeSet<_> {
        let foreign: BTreeSet<_> = of.called.difference(&of.defined).collect();
        let defines = |other: &Methods| foreign.iter().any(|name| other.defined.contains(*name));
        let others = methods.iter().filter(|(other, methods)| *other != file && defines(methods));
        others.map(|(other, _)| other.clone()).collect()
    };
    methods.iter().map(|(file, of)| (file.clone(), called(file, of))).collect()
}
