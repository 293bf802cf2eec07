//! Native code of one module: what it imports and exports.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use cwasi_abi::{STATE_EXPORT, export};
use wasmedge_sys::ffi;

use super::handles::{Ast, LoadFault, text_of};
use super::signature::Signature;
use super::{PAGE_LEN, Shared};
use crate::vm::engine::VmError;
use crate::vm::gate;

/// First bytes of a shared object.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// Loaded native code.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) ast: Ast,
    pub(super) exports: Vec<Signature>,
    pub(super) imports: Vec<Import>,
    /// Pages that its exported memory starts with; `None` when it exports none.
    memory_pages: Option<u32>,
    /// Memory and exported globals are all that its guests can change (`vm::state`).
    pub(super) exposes_state: bool,
}

/// Something that a module imports.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) module: String,
    pub(super) name: String,
    /// `None` when it is no function.
    pub(super) function: Option<Signature>,
}

impl Code {
    /// Loads what our own compiler made.
    pub(super) fn load(engine: &Shared, artifact: &Path) -> Result<Self, VmError> {
        let bad = |reason: String| VmError::Artifact { path: artifact.to_owned(), reason };
        if !artifact.is_absolute() {
            return Err(bad("the path is not absolute".into()));
        }
        let mut magic = [0; ELF_MAGIC.len()];
        File::open(artifact)
            .and_then(|mut file| file.read_exact(&mut magic))
            .map_err(|error| bad(error.to_string()))?;
        if magic != ELF_MAGIC {
            // A Wasm file would be interpreted, and its section `wasmedge` executed.
            return Err(bad("it is no shared object".into()));
        }
        let path = CString::new(artifact.as_os_str().as_bytes())
            .map_err(|error| bad(error.to_string()))?;
        let ast = Ast::load(&engine.configure, &path).map_err(|fault| match fault {
            LoadFault::Vm(error) => error,
            LoadFault::Code(code) => bad(code.to_string()),
        })?;
        let Exports { functions, memory_pages, state } = exports(&ast);
        let imports = imports(&ast);
        let code = Self { ast, exports: functions, imports, memory_pages, exposes_state: state };
        code.check_memory(engine)?;
        Ok(code)
    }

    pub(super) fn exports_function(&self, name: &str, params: u32, results: u32) -> bool {
        self.exports.iter().any(|function| function.is(name, params, results))
    }

    pub(super) const fn has_memory(&self) -> bool {
        self.memory_pages.is_some()
    }

    pub(super) fn initializes(&self) -> bool {
        self.exports_function(export::INITIALIZE, 0, 0)
    }

    /// True when the coordinator made it ready to embed others.
    pub(super) fn has_home(&self) -> bool {
        self.exports_function(gate::HOME, 0, 0)
    }

    pub(super) fn imports_from(&self, module: &str) -> bool {
        self.imported_from(module).next().is_some()
    }

    /// Names of what it imports from `module`.
    pub(super) fn imported_from(&self, module: &str) -> impl Iterator<Item = &str> {
        let from = move |import: &&Import| import.module == module;
        self.imports.iter().filter(from).map(|import| import.name.as_str())
    }

    /// A memory that starts larger than allowed would be made smaller silently by the engine.
    fn check_memory(&self, engine: &Shared) -> Result<(), VmError> {
        match self.memory_pages {
            Some(pages) if pages > engine.memory_pages_max => Err(VmError::Memory {
                needed: u64::from(pages) * PAGE_LEN,
                limit: u64::from(engine.memory_pages_max) * PAGE_LEN,
            }),
            _ => Ok(()),
        }
    }
}

/// What a module exports.
#[derive(Default)]
struct Exports {
    functions: Vec<Signature>,
    /// Pages of the memory called `memory`.
    memory_pages: Option<u32>,
    /// Its state is there.
    state: bool,
}

fn exports(ast: &Ast) -> Exports {
    let mut found = Exports::default();
    // SAFETY:
    // - a live module.
    let len = unsafe { ffi::WasmEdge_ASTModuleListExportsLength(ast.raw()) };
    let mut list = vec![ptr::null(); len as usize];
    // SAFETY:
    // - room for `len` pointers, which stay valid as long as the module.
    unsafe { ffi::WasmEdge_ASTModuleListExports(ast.raw(), list.as_mut_ptr(), len) };
    for item in list {
        // SAFETY:
        // - `item` belongs to the live module; so do its name and types.
        unsafe {
            let name = text_of(ffi::WasmEdge_ExportTypeGetExternalName(item));
            let function = ffi::WasmEdge_ExportTypeGetFunctionType(ast.raw(), item);
            if !function.is_null() {
                found.functions.push(Signature::new(name, function));
                continue;
            }
            found.state |= name == STATE_EXPORT;
            let memory = ffi::WasmEdge_ExportTypeGetMemoryType(ast.raw(), item);
            if !memory.is_null() && name == export::MEMORY {
                found.memory_pages = Some(ffi::WasmEdge_MemoryTypeGetLimit(memory).Min);
            }
        }
    }
    found
}

fn imports(ast: &Ast) -> Vec<Import> {
    // SAFETY:
    // - a live module.
    let len = unsafe { ffi::WasmEdge_ASTModuleListImportsLength(ast.raw()) };
    let mut list = vec![ptr::null(); len as usize];
    // SAFETY:
    // - room for `len` pointers, which stay valid as long as the module.
    unsafe { ffi::WasmEdge_ASTModuleListImports(ast.raw(), list.as_mut_ptr(), len) };
    let import = |item| {
        // SAFETY:
        // - `item` belongs to the live module; so do its names and types.
        unsafe {
            let module = text_of(ffi::WasmEdge_ImportTypeGetModuleName(item));
            let name = text_of(ffi::WasmEdge_ImportTypeGetExternalName(item));
            let function = ffi::WasmEdge_ImportTypeGetFunctionType(ast.raw(), item);
            let function = (!function.is_null()).then(|| Signature::new(name.clone(), function));
            Import { module, name, function }
        }
    };
    list.into_iter().map(import).collect()
}
