//! All code of a function: its own module, its embedded modules, and the trampolines between them. Runs in builder and
//! workers.

use std::path::Path;
use std::rc::Rc;

use cwasi_abi::IMPORT_MODULE;

use super::EngineShared;
use super::code::NativeCode;
use super::handles::{Ast, LoadFault, ModuleInstance};
use super::wasi::{self, WASI};
use cwasi_sys::populated::LazyPopulated;
use cwasi_vm::engine::{NotRenewed, VmError};
use cwasi_vm::host_calls::binding::{Composition, LinkedImport};
use cwasi_vm::interface::{self, ImportRules, Signature};
use cwasi_vm::trampoline::{self, LinkedFunction};
use cwasi_wire::control::EmbeddedModule;

/// All code of one VM.
#[derive(Debug)]
pub(super) struct Program {
    /// The function's own module.
    pub(super) root: Part,
    /// Its embedded modules, each after its own imports.
    pub(super) embedded: Vec<Part>,
    /// The function's own `cwasi` import module, if it can dispatch to embedded modules.
    pub(super) dispatch: Option<Ast>,
    /// What the host functions know of it.
    pub(super) composition: Rc<Composition>,
}

/// One module's code, and its trampolines to embedded modules.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) code: NativeCode,
    pub(super) links: Vec<LinkTrampoline>,
}

/// A trampoline to one embedded module.
#[derive(Debug)]
pub(super) struct LinkTrampoline {
    /// Index of the embedded module.
    pub(super) callee: usize,
    pub(super) trampoline: Ast,
}

impl Program {
    pub(super) fn load(
        engine: &EngineShared,
        artifact: &Path,
        embedded: &[EmbeddedModule],
    ) -> Result<Self, VmError> {
        let wasi = ModuleInstance::wasi(&[], &[], &[])?;
        let mut loading = ProgramLoader { engine, wasi, parts: Vec::new(), functions: Vec::new() };
        for module in embedded {
            let part = loading.part(&module.name, &module.artifact)?;
            if module.dispatch {
                part.code.interface.check_reactor(&part.name)?;
            }
            loading.parts.push(part);
        }
        let root = loading.part("", artifact)?;
        let callee = |(module, part): (&EmbeddedModule, &Part)| {
            module.dispatch.then(|| trampoline::DispatchCallee {
                name: module.name.clone(),
                frees: part.code.interface.frees(),
                lends_response: part.code.interface.lends_response,
                has_payload_buffer: part.code.interface.has_payload_buffer(),
            })
        };
        let callees: Vec<Option<trampoline::DispatchCallee>> =
            embedded.iter().zip(&loading.parts).map(callee).collect();
        let mut dispatch = None;
        if callees.iter().any(Option::is_some) && root.code.interface.imports_from(IMPORT_MODULE) {
            needs_home(&root.code, artifact)?;
            dispatch = Some(interpreted(engine, &trampoline::dispatch(&callees))?);
        }
        let ProgramLoader { parts, functions, .. } = loading;
        let composition = Composition {
            embedded: parts.iter().map(|part| part.name.clone()).collect(),
            functions,
            memory_max: engine.memory_max,
            populated: LazyPopulated::default(),
        };
        Ok(Self { root, embedded: parts, dispatch, composition: Rc::new(composition) })
    }

    /// The reason why an instance cannot be renewed, if there is one.
    pub(super) fn not_renewed(&self) -> Option<NotRenewed> {
        let code = &self.root.code;
        if !self.embedded.is_empty() {
            return Some(NotRenewed::Embeds);
        }
        let wasi = code.notes_wasi || wasi::is_stateless(code.interface.imported_from(WASI));
        (!code.exposes_state || !wasi).then_some(NotRenewed::State)
    }
}

/// A program under construction.
struct ProgramLoader<'a> {
    engine: &'a EngineShared,
    wasi: ModuleInstance,
    parts: Vec<Part>,
    functions: Vec<LinkedImport>,
}

impl ProgramLoader<'_> {
    fn part(&mut self, name: &str, artifact: &Path) -> Result<Part, VmError> {
        let code = NativeCode::load(self.engine, artifact)?;
        let embedded = self.parts.iter().map(|part| (&*part.name, &part.code.interface));
        let rules = ImportRules {
            embedded: &embedded.collect::<Vec<_>>(),
            wasi: |function: &Signature| !self.wasi.function(&function.name).is_null(),
            is_root: name.is_empty(),
            has_prototype: false,
            has_network: self.engine.network.is_some(),
        };
        rules.check(&code.interface)?;
        let caller = (!name.is_empty()).then_some(self.parts.len());
        let mut links = Vec::new();
        for callee in 0..self.parts.len() {
            let callees = &self.parts[callee].name;
            let functions = interface::linked(&code.interface, callees, self.functions.len());
            if !functions.is_empty() {
                let wasm = trampoline::link(callees, &functions);
                let import =
                    |function: LinkedFunction| LinkedImport { caller, callee, name: function.name };
                self.functions.extend(functions.into_iter().map(import));
                links.push(LinkTrampoline { callee, trampoline: interpreted(self.engine, &wasm)? });
            }
        }
        if !links.is_empty() {
            needs_home(&code, artifact)?;
        }
        Ok(Part { name: name.to_owned(), code, links })
    }
}

fn interpreted(engine: &EngineShared, wasm: &[u8]) -> Result<Ast, VmError> {
    Ast::interpreted(&engine.configure, wasm).map_err(|fault| match fault {
        LoadFault::Vm(error) => error,
        LoadFault::Code(code) => VmError::Instantiate { reason: format!("trampoline: {code}") },
    })
}

fn needs_home(code: &NativeCode, artifact: &Path) -> Result<(), VmError> {
    if code.has_home() {
        return Ok(());
    }
    let reason = format!("it embeds modules but has no `{}`", trampoline::HOME);
    Err(VmError::Artifact { path: artifact.to_owned(), reason })
}
