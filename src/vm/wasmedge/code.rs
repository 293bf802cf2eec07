//! Native code of one module, with its imports and exports. Runs in builder and workers.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use cwasi_abi::{STATE_EXPORT, WASI_CALLED_EXPORT, export};
use wasmedge_sys::ffi;

use super::handles::{Ast, LoadFault, text_of};
use super::signature::Signature;
use super::{EngineShared, PAGE_LEN};
use cwasi_vm::engine::VmError;
use cwasi_vm::trampoline;

/// First bytes of a shared object.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// Parameters of `cwasi_free`.
const FREE_PARAMS: u32 = 3;
/// A memory is nearly full when less than this fraction of its maximum is left.
const PART_LEFT: u32 = 8;

#[derive(Debug)]
pub(super) struct NativeCode {
    pub(super) ast: Ast,
    pub(super) exports: Vec<Signature>,
    pub(super) imports: Vec<Import>,
    /// Pages of its exported memory; `None` when it exports none.
    memory: Option<MemoryPages>,
    /// It exports [`export::RESPONSE`].
    lends_response: bool,
    /// It exports [`export::PAYLOAD`].
    has_payload_buffer: bool,
    /// Its guests can change only memory and exported globals (`vm::state`).
    pub(super) exposes_state: bool,
    /// One of these globals records its WASI calls (`vm::wasi_calls`).
    pub(super) notes_wasi: bool,
}

#[derive(Clone, Copy, Debug)]
struct MemoryPages {
    first: u32,
    max: u32,
}

/// An import of a module.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) module: String,
    pub(super) name: String,
    /// `None` for an import that is not a function.
    pub(super) function: Option<Signature>,
}

impl NativeCode {
    /// Loads a file that our own compiler made.
    pub(super) fn load(engine: &EngineShared, artifact: &Path) -> Result<Self, VmError> {
        let bad = |reason: String| VmError::Artifact { path: artifact.to_owned(), reason };
        if !artifact.is_absolute() {
            return Err(bad("the path is not absolute".into()));
        }
        let mut magic = [0; ELF_MAGIC.len()];
        File::open(artifact)
            .and_then(|mut file| file.read_exact(&mut magic))
            .map_err(|error| bad(error.to_string()))?;
        if magic != ELF_MAGIC {
            // The engine would interpret a Wasm file, and execute its section `wasmedge`.
            return Err(bad("it is not a shared object".into()));
        }
        let path = CString::new(artifact.as_os_str().as_bytes())
            .map_err(|error| bad(error.to_string()))?;
        let ast = Ast::load(&engine.configure, &path).map_err(|fault| match fault {
            LoadFault::Vm(error) => error,
            LoadFault::Code(code) => bad(code.to_string()),
        })?;
        let Exports { functions, memory, state, notes_wasi, lends_response, has_payload_buffer } =
            exports(&ast);
        let imports = imports(&ast);
        let memory = memory.map(|MemoryPages { first, max }| MemoryPages {
            first,
            max: max.min(engine.memory_pages_max),
        });
        let code = Self {
            ast,
            exports: functions,
            imports,
            memory,
            lends_response,
            has_payload_buffer,
            exposes_state: state,
            notes_wasi,
        };
        code.check_memory(engine)?;
        Ok(code)
    }

    pub(super) fn exports_function(&self, name: &str, params: u32, results: u32) -> bool {
        self.exports.iter().any(|function| function.is(name, params, results))
    }

    pub(super) const fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// True if it exports [`export::RESPONSE`], an immutable `i32`.
    pub(super) const fn lends_response(&self) -> bool {
        self.lends_response
    }

    /// True if it exports [`export::PAYLOAD`] and [`export::RESPONSE`], immutable `i32`s.
    pub(super) const fn has_payload_buffer(&self) -> bool {
        self.has_payload_buffer && self.lends_response
    }

    /// True if it exports `cwasi_free`.
    pub(super) fn frees(&self) -> bool {
        self.exports_function(export::FREE, FREE_PARAMS, 0)
    }

    /// True if the module has no `cwasi_free`, and its memory of `pages` pages is nearly full.
    pub(super) fn is_nearly_full(&self, pages: u32) -> bool {
        let Some(MemoryPages { max, .. }) = self.memory else { return false };
        let allocates = self.exports.iter().any(|function| function.name == export::ALLOC);
        allocates && !self.frees() && pages > max - max / PART_LEFT
    }

    pub(super) fn initializes(&self) -> bool {
        self.exports_function(export::INITIALIZE, 0, 0)
    }

    /// True if it exports `cwasi.home`.
    pub(super) fn has_home(&self) -> bool {
        self.exports_function(trampoline::HOME, 0, 0)
    }

    pub(super) fn imports_from(&self, module: &str) -> bool {
        self.imported_from(module).next().is_some()
    }

    /// Names of its imports from `module`.
    pub(super) fn imported_from(&self, module: &str) -> impl Iterator<Item = &str> {
        let from = move |import: &&Import| import.module == module;
        self.imports.iter().filter(from).map(|import| import.name.as_str())
    }

    /// The engine would silently shrink a memory that starts larger than allowed.
    fn check_memory(&self, engine: &EngineShared) -> Result<(), VmError> {
        match self.memory {
            Some(MemoryPages { first, .. }) if first > engine.memory_pages_max => {
                Err(VmError::Memory {
                    needed: u64::from(first) * PAGE_LEN,
                    limit: u64::from(engine.memory_pages_max) * PAGE_LEN,
                })
            }
            _ => Ok(()),
        }
    }
}

/// The exports of a module.
#[derive(Default)]
struct Exports {
    functions: Vec<Signature>,
    memory: Option<MemoryPages>,
    state: bool,
    notes_wasi: bool,
    lends_response: bool,
    has_payload_buffer: bool,
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
            found.notes_wasi |= name == WASI_CALLED_EXPORT;
            let memory = ffi::WasmEdge_ExportTypeGetMemoryType(ast.raw(), item);
            if !memory.is_null() && name == export::MEMORY {
                let limit = ffi::WasmEdge_MemoryTypeGetLimit(memory);
                let max = if limit.HasMax { limit.Max } else { u32::MAX };
                found.memory = Some(MemoryPages { first: limit.Min, max });
            }
            let global = ffi::WasmEdge_ExportTypeGetGlobalType(ast.raw(), item);
            let is_address = !global.is_null()
                && ffi::WasmEdge_ValTypeIsI32(ffi::WasmEdge_GlobalTypeGetValType(global))
                && ffi::WasmEdge_GlobalTypeGetMutability(global) == ffi::WasmEdge_Mutability_Const;
            found.lends_response |= is_address && name == export::RESPONSE;
            found.has_payload_buffer |= is_address && name == export::PAYLOAD;
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
