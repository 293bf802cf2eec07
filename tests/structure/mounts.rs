//! Who names what a mount shows: raw paths reach no mount.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use crate::source::{Name, arguments, is_conditional};

/// Functions, flags and types by which a file or folder gets another place, and the files that may name them. All
/// others have a `ResolvedPath`.
pub const MOUNTING: [(&str, &[&str]); 9] = [
    // The one maker of sources.
    ("SYS_open_tree", &["src/sys resolved_path"]),
    ("open_tree", &[]),
    ("MS_BIND", &[]),
    ("fsmount", &[]),
    // Puts the sources' clones into the staging directory.
    ("move_mount", &["src/sandbox builder::propagation"]),
    // To a descriptor's name, and then to a staged clone's.
    ("set_source", &["src/sandbox builder::mount_sources", "src/sandbox builder::propagation"]),
    // Landlock's rules take descriptors.
    ("path_beneath_rules", &[]),
    ("PathFd", &[]),
    // Mounts of containerd, for the container's root.
    ("mount_rootfs", &["src/shim rootfs"]),
];

/// The names that a file uses outside of its tests.
struct Names(BTreeSet<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_conditional(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.0.insert(name.to_string());
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for argument in arguments(call) {
            <Self as Visit<'_>>::visit_expr(self, &argument);
        }
    }
}

/// Where the file of a folder uses names of [`MOUNTING`] that are not its to use.
pub fn wrong(folder: &str, name: &Name, file: &syn::File) -> Vec<String> {
    let mut names = Names(BTreeSet::new());
    names.visit_file(file);
    let place = format!("{folder} {}", name.join("::"));
    let used = MOUNTING.iter().filter(|(mounting, _)| names.0.contains(*mounting));
    let wrong = used.filter(|(_, may)| !may.contains(&place.as_str()));
    wrong.map(|(mounting, _)| format!("{place} uses {mounting}")).collect()
}
