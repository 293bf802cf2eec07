//! Where a module has what [`wrap`](cwasi_vm::linked_calls::wrap) added to it. Runs in builder and workers.

use cwasi_abi::{
    IMPORT_MODULE, LINKED_CALLEES_EXPORT, LINKED_CALLS_EXPORT, LINKED_MASK_EXPORT,
    LINKED_RUNNING_EXPORT, import,
};
use cwasi_vm::interface::ModuleInterface;
use cwasi_vm::linked_calls::is_linked;
use wasmtime::{Module, ModuleExport};

/// The functions that pass buffers.
const BUFFERS: [&str; 4] =
    [import::LINK_OFFER, import::LINK_READ, import::LINK_RETURN, import::LINK_RESULT];

/// True if a module passes buffers to or from linked ones.
#[must_use]
pub(super) fn passes_buffers(interface: &ModuleInterface) -> bool {
    interface.imported_from(IMPORT_MODULE).any(|name| BUFFERS.contains(&name))
}

/// Places of what was added to a module.
pub(super) struct LinkExports {
    pub(super) callees: ModuleExport,
    pub(super) mask: ModuleExport,
    pub(super) running: ModuleExport,
    /// Of each of `imports`.
    pub(super) calls: Vec<ModuleExport>,
    /// The linked functions that the module imports, in the order of their first imports.
    pub(super) imports: Vec<(String, String)>,
}

impl LinkExports {
    /// `None` for a module that was not changed.
    pub(super) fn of(module: &Module, interface: &ModuleInterface) -> Option<Self> {
        let mut imports: Vec<(String, String)> = Vec::new();
        for import in interface.imports.iter().filter(|import| is_linked(&import.module)) {
            let import = (import.module.clone(), import.name.clone());
            if !imports.contains(&import) {
                imports.push(import);
            }
        }
        let place = |name: &str| module.get_export_index(name);
        let calls =
            (0..imports.len()).map(|number| place(&format!("{LINKED_CALLS_EXPORT}{number}")));
        Some(Self {
            callees: place(LINKED_CALLEES_EXPORT)?,
            mask: place(LINKED_MASK_EXPORT)?,
            running: place(LINKED_RUNNING_EXPORT)?,
            calls: calls.collect::<Option<_>>()?,
            imports,
        })
    }
}
