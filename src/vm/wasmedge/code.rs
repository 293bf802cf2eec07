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

use super::EngineShared;
use super::handles::{Ast, LoadFault, text_of};
use super::signature::signature;
use cwasi_vm::engine::VmError;
use cwasi_vm::interface::{Import, MemoryPages, ModuleInterface};
use cwasi_vm::trampoline;

/// First bytes of a shared object.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

#[derive(Debug)]
pub(super) struct NativeCode {
    pub(super) ast: Ast,
    pub(super) interface: ModuleInterface,
    /// Its guests can change only memory and exported globals (`vm::state`).
    pub(super) exposes_state: bool,
    /// One of these globals records its WASI calls (`vm::wasi_calls`).
    pub(super) notes_wasi: bool,
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
        let Exports { mut interface, state, notes_wasi } = exports(&ast);
        interface.imports = imports(&ast);
        interface.limit_memory(engine.memory_pages_max)?;
        Ok(Self { ast, interface, exposes_state: state, notes_wasi })
    }

    /// True if it exports `cwasi.home`.
    pub(super) fn has_home(&self) -> bool {
        self.interface.exports_function(trampoline::HOME, 0, 0)
    }
}

/// The exports of a module.
#[derive(Default)]
struct Exports {
    /// Without imports.
    interface: ModuleInterface,
    state: bool,
    notes_wasi: bool,
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
                found.interface.exports.push(signature(name, function));
                continue;
            }
            found.state |= name == STATE_EXPORT;
            found.notes_wasi |= name == WASI_CALLED_EXPORT;
            let memory = ffi::WasmEdge_ExportTypeGetMemoryType(ast.raw(), item);
            if !memory.is_null() && name == export::MEMORY {
                let limit = ffi::WasmEdge_MemoryTypeGetLimit(memory);
                let max = if limit.HasMax { limit.Max } else { u32::MAX };
                found.interface.memory = Some(MemoryPages { first: limit.Min, max });
            }
            let global = ffi::WasmEdge_ExportTypeGetGlobalType(ast.raw(), item);
            let is_address = !global.is_null()
                && ffi::WasmEdge_ValTypeIsI32(ffi::WasmEdge_GlobalTypeGetValType(global))
                && ffi::WasmEdge_GlobalTypeGetMutability(global) == ffi::WasmEdge_Mutability_Const;
            found.interface.lends_response |= is_address && name == export::RESPONSE;
            found.interface.has_payload |= is_address && name == export::PAYLOAD;
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
            let function = (!function.is_null()).then(|| signature(name.clone(), function));
            Import { module, name, function }
        }
    };
    list.into_iter().map(import).collect()
}
