//! The files of a crate, parsed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::{Expr, Token};

/// A module's name, from the crate's root.
pub type Name = Vec<String>;
pub type Files = BTreeMap<Name, syn::File>;

/// A path below the repository.
pub fn below(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The files below a folder of sources, by module; without tests and without the crates inside it.
pub fn files(folder: &str) -> Files {
    let mut files = Files::new();
    read(&below(folder), &Name::new(), &mut files);
    files
}

fn read(folder: &Path, name: &Name, files: &mut Files) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (file, path) = (entry.file_name().into_string().unwrap(), entry.path());
        let inside = |part: &str| [&name[..], &[part.to_owned()]].concat();
        if path.is_dir() {
            if !["build", "tests"].contains(&file.as_str()) && !path.join("Cargo.toml").exists() {
                read(&path, &inside(&file), files);
            }
        } else if let Some(stem) = file.strip_suffix(".rs")
            && !["build", "lib", "tests"].contains(&stem)
        {
            let name = if stem == "mod" { name.clone() } else { inside(stem) };
            files.insert(name, syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap());
        }
    }
}

/// Whether an item is for tests, or for one target, only.
pub fn is_conditional(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg"))
}

/// The arguments of a macro that looks like a function's call: `format!`, `assert!` and the like.
pub fn arguments(call: &syn::Macro) -> Vec<Expr> {
    let parse = Punctuated::<Expr, Token![,]>::parse_terminated;
    call.parse_body_with(parse).into_iter().flatten().collect()
}
