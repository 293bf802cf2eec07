//! What a module says about itself: imports and who serves them, exports, memory, kind.

use cwasi_abi::interfaces::{HANDLERS, Interface, RUN};
use cwasi_abi::{IMPORT_MODULE, export, import, prototype};
use cwasi_coordinator::component::{self, Interfaces};
use cwasi_coordinator::module::{self as runtime, ModuleError};
use serde::Serialize;
use wasmparser::{BinaryReaderError, ExternalKind, Parser, Payload, TypeRef};

/// The engine's own import module.
const WASI: &str = "wasi_snapshot_preview1";
/// Bytes of a page of linear memory.
const PAGE: u64 = 65_536;

#[derive(Clone, Debug, Serialize)]
pub struct ModuleFacts {
    /// Length in bytes.
    pub bytes: usize,
    /// `reactor`, `command`, both or neither; `component …` for a component.
    pub kind: &'static str,
    /// Imports and exports are interfaces.
    pub is_component: bool,
    /// Version of the guest ABI that it uses; `None` if it imports nothing of it.
    pub abi: Option<u32>,
    /// Its imports, in its order.
    pub imports: Vec<ImportFacts>,
    pub exports: Vec<String>,
    /// Its memories: bytes at the start, and at most.
    pub memories: Vec<(u64, Option<u64>)>,
    /// Why the runtime refuses it; `None` if it does not.
    pub refused: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ImportFacts {
    /// An interface with its version, for a component.
    pub module: String,
    /// Empty for an interface.
    pub name: String,
    /// Who serves it, or why it is not served.
    pub served: String,
}

impl ImportFacts {
    /// True for the host function of the paper's prototype.
    fn is_prototypes(&self) -> bool {
        self.module == prototype::IMPORT_MODULE && self.name == prototype::FUNC_CONNECT
    }
}

impl ModuleFacts {
    /// Reads a module. `origin` names it in the reason of a refusal.
    ///
    /// # Errors
    /// When it is no WebAssembly at all, or damaged.
    pub fn read(bytes: &[u8], origin: &str) -> Result<Self, ModuleError> {
        Self::parse(bytes, origin).map_err(|source| {
            let refused = runtime::check(bytes, origin).err();
            refused.unwrap_or_else(|| ModuleError::Invalid { origin: origin.to_owned(), source })
        })
    }

    fn parse(bytes: &[u8], origin: &str) -> Result<Self, BinaryReaderError> {
        let mut facts = Self {
            bytes: bytes.len(),
            kind: "neither command nor reactor",
            is_component: false,
            abi: None,
            imports: Vec::new(),
            exports: Vec::new(),
            memories: Vec::new(),
            refused: runtime::check(bytes, origin).err().map(|error| error.to_string()),
        };
        if Parser::is_component(bytes) {
            facts.interfaces(Interfaces::read(bytes)?);
            return Ok(facts);
        }
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        if matches!(import.ty, TypeRef::Func(_)) {
                            facts.import(import.module, import.name);
                        }
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export?;
                        if export.kind == ExternalKind::Func {
                            facts.exports.push(export.name.to_owned());
                        }
                    }
                }
                Payload::MemorySection(section) => {
                    for memory in section {
                        let memory = memory?;
                        facts
                            .memories
                            .push((memory.initial * PAGE, memory.maximum.map(|it| it * PAGE)));
                    }
                }
                _ => {}
            }
        }
        facts.kind = match (facts.has(export::START), facts.is_reactor()) {
            (true, true) => "command and reactor",
            (true, false) => "command",
            (false, true) => "reactor",
            (false, false) => "neither command nor reactor",
        };
        Ok(facts)
    }

    /// True if it exports this function.
    #[must_use]
    pub fn has(&self, export: &str) -> bool {
        self.exports.iter().any(|name| name == export)
    }

    /// True if requests go to `cwasi_handle`, or to a component's handler.
    #[must_use]
    pub fn is_reactor(&self) -> bool {
        self.has(export::HANDLE) || self.has_interface(&HANDLERS)
    }

    /// True if it exports `_start`, or is a component with `wasi:cli/run`.
    #[must_use]
    pub fn is_command(&self) -> bool {
        self.has(export::START) || self.has_interface(&[RUN])
    }

    fn has_interface(&self, wanted: &[Interface]) -> bool {
        let is = |export: &String| wanted.iter().any(|interface| interface.is(export));
        self.is_component && self.exports.iter().any(is)
    }

    /// Takes the facts of a component.
    fn interfaces(&mut self, found: Interfaces) {
        self.is_component = true;
        self.kind = match (found.runs(), found.handles()) {
            (true, true) => "component, command and handler",
            (true, false) => "component, command",
            (false, true) => "component, handler",
            (false, false) => "component, neither command nor handler",
        };
        self.exports = found.exports;
        for import in found.imports {
            let served = component::served(&import).unwrap_or_else(|nobody| nobody).to_owned();
            self.imports.push(ImportFacts { module: import, name: String::new(), served });
        }
    }

    /// Modules that it imports from, but for the host's.
    #[must_use]
    pub fn foreign(&self) -> Vec<&str> {
        if self.is_component {
            return Vec::new();
        }
        let others = self.imports.iter().filter(|import| !import.is_prototypes());
        let mut modules: Vec<_> = others.map(|import| import.module.as_str()).collect();
        modules.retain(|module| ![WASI, IMPORT_MODULE].contains(module));
        modules.dedup();
        modules
    }

    /// True if it imports the host function of the paper's prototype.
    #[must_use]
    pub fn imports_prototype(&self) -> bool {
        self.imports.iter().any(ImportFacts::is_prototypes)
    }

    /// True if it is a callee of the paper's prototype.
    #[must_use]
    pub fn is_prototype_callee(&self) -> bool {
        self.exports.iter().any(|name| name == prototype::FUNCTION)
    }

    fn import(&mut self, module: &str, name: &str) {
        let served = match module {
            WASI if cwasi_wire::egress::needs_egress(name) => {
                "the runtime, if the function's `network` allows a destination".to_owned()
            }
            WASI => "the engine".to_owned(),
            IMPORT_MODULE if import::parameters(name).is_some() => {
                self.abi = Some(cwasi_abi::ABI_VERSION);
                "the runtime".to_owned()
            }
            IMPORT_MODULE => {
                format!("nobody: ABI version {} has no such function", cwasi_abi::ABI_VERSION)
            }
            prototype::IMPORT_MODULE if name == prototype::FUNC_CONNECT => {
                "the runtime, for a function with cwasi.compat=2023".to_owned()
            }
            other => format!("a trusted module that is embedded as `{other}`"),
        };
        self.imports.push(ImportFacts { module: module.to_owned(), name: name.to_owned(), served });
    }
}
