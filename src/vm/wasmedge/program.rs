//! All code of a function: its own module, its embedded modules, and the trampolines between them. Runs in builder and
//! workers.

use std::path::Path;
use std::rc::Rc;

use cwasi_abi::{IMPORT_MODULE, export, import};

use super::EngineShared;
use super::code::{Import, NativeCode};
use super::handles::{Ast, LoadFault, ModuleInstance};
use super::signature::Signature;
use super::wasi::{self, WASI};
use cwasi_sys::populated::LazyPopulated;
use cwasi_vm::engine::{NotRenewed, VmError};
use cwasi_vm::host_calls::binding::{Composition, LinkedImport};
use cwasi_vm::trampoline::{self, LinkedFunction};
use cwasi_wire::control::{EmbeddedModule, Entry};
use cwasi_wire::egress::{SOCKET_EXTENSIONS, SOCKET_FUNCTIONS, is_socket_function};

/// Parameters of `cwasi_alloc`.
const ALLOC_PARAMS: u32 = 2;
/// Parameters of `cwasi_handle`.
const HANDLE_PARAMS: u32 = 3;

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
                check_reactor(&part.code, &part.name)?;
            }
            loading.parts.push(part);
        }
        let root = loading.part("", artifact)?;
        let callee = |(module, part): (&EmbeddedModule, &Part)| {
            module.dispatch.then(|| trampoline::DispatchCallee {
                name: module.name.clone(),
                frees: part.code.frees(),
                lends_response: part.code.lends_response(),
                has_payload_buffer: part.code.has_payload_buffer(),
            })
        };
        let callees: Vec<Option<trampoline::DispatchCallee>> =
            embedded.iter().zip(&loading.parts).map(callee).collect();
        let mut dispatch = None;
        if callees.iter().any(Option::is_some) && root.code.imports_from(IMPORT_MODULE) {
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
        let wasi = code.notes_wasi || wasi::is_stateless(code.imported_from(WASI));
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
        self.check_imports(&code, name.is_empty())?;
        let caller = (!name.is_empty()).then_some(self.parts.len());
        let mut links = Vec::new();
        for callee in 0..self.parts.len() {
            let functions = self.linked(&code, caller, callee);
            if !functions.is_empty() {
                let wasm = trampoline::link(&self.parts[callee].name, &functions);
                links.push(LinkTrampoline { callee, trampoline: interpreted(self.engine, &wasm)? });
            }
        }
        if !links.is_empty() {
            needs_home(&code, artifact)?;
        }
        Ok(Part { name: name.to_owned(), code, links })
    }

    /// The imports of `code` from an embedded module; numbers the functions.
    fn linked(
        &mut self,
        code: &NativeCode,
        caller: Option<usize>,
        callee: usize,
    ) -> Vec<LinkedFunction> {
        let mut found: Vec<LinkedFunction> = Vec::new();
        for import in code.imports.iter().filter(|i| i.module == self.parts[callee].name) {
            let types = import.function.as_ref().and_then(|function| function.numbers());
            let Some((params, results)) = types else { continue };
            if found.iter().any(|function| function.name == import.name) {
                continue;
            }
            let number = u32::try_from(self.functions.len()).unwrap_or(u32::MAX);
            self.functions.push(LinkedImport { caller, callee, name: import.name.clone() });
            found.push(LinkedFunction { number, name: import.name.clone(), params, results });
        }
        found
    }

    /// Checks that all imports are WASI's, ours or an embedded module's. The error lists all others.
    fn check_imports(&self, code: &NativeCode, is_root: bool) -> Result<(), VmError> {
        let wrong: Vec<String> = code
            .imports
            .iter()
            .filter_map(|import| {
                let reason = self.check_import(import, is_root).err()?;
                Some(format!("`{}.{}` ({reason})", import.module, import.name))
            })
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(VmError::Imports { imports: wrong }) }
    }

    fn check_import(
        &self,
        Import { module, name, function }: &Import,
        is_root: bool,
    ) -> Result<(), String> {
        let Some(function) = function else {
            return Err("only functions can be imported".into());
        };
        match module.as_str() {
            WASI if is_socket_function(name) => self.check_socket(name, function, is_root),
            WASI if self.wasi.function(name).is_null() => Err("not part of WASI preview 1".into()),
            WASI => Ok(()),
            IMPORT_MODULE => match import::parameters(name) {
                None => Err("no such host function in this version".into()),
                Some(params) if function.is(name, params, 1) => Ok(()),
                Some(params) => {
                    Err(format!("its type must be {params} i32 parameters and one i32 result"))
                }
            },
            embedded => {
                let part = self.parts.iter().find(|part| part.name == embedded);
                let part = part.ok_or("unknown module")?;
                match part.code.exports.iter().find(|export| export.name == *name) {
                    None => Err(format!("`{embedded}` does not export it")),
                    Some(export) if export != function => {
                        Err(format!("imported as {function}, exported as {export}"))
                    }
                    Some(export) if export.numbers().is_none() => {
                        Err("only numbers can be passed between modules".into())
                    }
                    Some(_) => Ok(()),
                }
            }
        }
    }

    fn check_socket(&self, name: &str, function: &Signature, is_root: bool) -> Result<(), String> {
        let is_in = |table: &[(&str, &[u32])]| {
            table.iter().any(|(known, params)| {
                *known == name && params.iter().any(|count| function.is(name, *count, 1))
            })
        };
        if is_in(&SOCKET_FUNCTIONS) {
            Ok(())
        } else if !is_in(&SOCKET_EXTENSIONS) {
            Err("no socket function of the engine has this name and type".into())
        } else if !is_root {
            Err("embedded modules get no sockets".into())
        } else if self.engine.network.is_none() {
            Err("sockets need destinations: the annotation cwasi.network".into())
        } else {
            Ok(())
        }
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

/// Checks that dispatch can call a module.
pub(super) fn check_reactor(code: &NativeCode, name: &str) -> Result<(), VmError> {
    let exported: Vec<String> =
        code.exports.iter().map(|function| format!("`{}`", function.name)).collect();
    let of = if name.is_empty() { String::new() } else { format!(" in embedded {name}") };
    let missing = |what: String| VmError::entry(what + &of, &Entry::Reactor, &exported);
    for (name, params) in [(export::ALLOC, ALLOC_PARAMS), (export::HANDLE, HANDLE_PARAMS)] {
        if !code.exports_function(name, params, 1) {
            return Err(missing(format!(
                "a function `{name}` with {params} i32 parameters and one i32 result"
            )));
        }
    }
    if code.exports.iter().any(|function| function.name == export::FREE) && !code.frees() {
        return Err(missing(format!(
            "`{}` with three i32 parameters and no result, but another function of that name",
            export::FREE
        )));
    }
    if code.has_memory() {
        Ok(())
    } else {
        Err(missing(format!("its linear memory as `{}`", export::MEMORY)))
    }
}
