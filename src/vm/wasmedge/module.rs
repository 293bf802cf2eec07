//! A loaded module: native code, what it imports and exports.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::rc::Rc;

use cwasi_abi::{IMPORT_MODULE, export};
use cwasi_host_functions::Host;
use wasmedge_sys::ffi;

use super::handles::{Ast, LoadFault, ModuleInstance, text_of};
use super::imports;
use super::instance::WasmEdgeInstance;
use super::{PAGE_LEN, Shared};
use crate::vm::engine::{InstanceSpec, Module, VmError};
use crate::wire::control::Entry;

/// Module name of WASI preview 1.
const WASI: &str = "wasi_snapshot_preview1";
/// First bytes of a shared object.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// Parameters of `cwasi_alloc`.
const ALLOC_PARAMS: u32 = 2;
/// Parameters of `cwasi_handle`.
const HANDLE_PARAMS: u32 = 3;

/// A loaded module.
#[derive(Debug)]
pub struct WasmEdgeModule {
    pub(super) engine: Rc<Shared>,
    pub(super) ast: Rc<Ast>,
    functions: Vec<Signature>,
    has_memory: bool,
}

/// A function that a module imports or exports.
#[derive(Debug)]
struct Signature {
    name: String,
    params: u32,
    returns: u32,
    only_i32: bool,
}

impl Signature {
    fn is(&self, name: &str, params: u32, returns: u32) -> bool {
        self.name == name && self.params == params && self.returns == returns && self.only_i32
    }
}

impl WasmEdgeModule {
    pub(super) fn load(engine: Rc<Shared>, artifact: &Path) -> Result<Self, VmError> {
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
        let exports = exports(&ast);
        check_memory(&engine, &exports)?;
        check_imports(&ast)?;
        let has_memory = exports.memory_pages.is_some();
        Ok(Self { engine, ast: Rc::new(ast), functions: exports.functions, has_memory })
    }

    fn exports_function(&self, name: &str, params: u32, returns: u32) -> bool {
        self.functions.iter().any(|function| function.is(name, params, returns))
    }

    pub(super) fn initializes(&self) -> bool {
        self.exports_function(export::INITIALIZE, 0, 0)
    }
}

impl Module for WasmEdgeModule {
    type Instance = WasmEdgeInstance;

    fn check(&self, entry: &Entry) -> Result<(), VmError> {
        let exported: Vec<String> =
            self.functions.iter().map(|function| format!("`{}`", function.name)).collect();
        let missing = |what: String| VmError::entry(what, entry, &exported);
        match entry {
            Entry::Command { export } => {
                if !self.exports_function(export, 0, 0) {
                    return Err(missing(format!(
                        "a function `{export}` without parameters and results"
                    )));
                }
            }
            Entry::Reactor => {
                for (name, params) in
                    [(export::ALLOC, ALLOC_PARAMS), (export::HANDLE, HANDLE_PARAMS)]
                {
                    if !self.exports_function(name, params, 1) {
                        return Err(missing(format!(
                            "a function `{name}` with {params} i32 parameters and one i32 result"
                        )));
                    }
                }
                if !self.has_memory {
                    return Err(missing(format!("its linear memory as `{}`", export::MEMORY)));
                }
            }
        }
        Ok(())
    }

    fn instantiate(
        &self,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<WasmEdgeInstance, VmError> {
        WasmEdgeInstance::new(self, spec, host)
    }
}

/// A memory that starts larger than allowed would be made smaller silently by the engine.
fn check_memory(engine: &Shared, exports: &Exports) -> Result<(), VmError> {
    match exports.memory_pages {
        Some(pages) if pages > engine.memory_pages_max => Err(VmError::Memory {
            needed: u64::from(pages) * PAGE_LEN,
            limit: u64::from(engine.memory_pages_max) * PAGE_LEN,
        }),
        _ => Ok(()),
    }
}

struct Exports {
    functions: Vec<Signature>,
    memory_pages: Option<u32>,
}

fn exports(ast: &Ast) -> Exports {
    let mut found = Exports { functions: Vec::new(), memory_pages: None };
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
                found.functions.push(signature(name, function));
                continue;
            }
            let memory = ffi::WasmEdge_ExportTypeGetMemoryType(ast.raw(), item);
            if !memory.is_null() && name == export::MEMORY {
                found.memory_pages = Some(ffi::WasmEdge_MemoryTypeGetLimit(memory).Min);
            }
        }
    }
    found
}

/// Everything that a module imports must be WASI's or ours, told all at once.
fn check_imports(ast: &Ast) -> Result<(), VmError> {
    // SAFETY:
    // - a live module.
    let len = unsafe { ffi::WasmEdge_ASTModuleListImportsLength(ast.raw()) };
    let mut list = vec![ptr::null(); len as usize];
    // SAFETY:
    // - room for `len` pointers, which stay valid as long as the module.
    unsafe { ffi::WasmEdge_ASTModuleListImports(ast.raw(), list.as_mut_ptr(), len) };
    if list.is_empty() {
        return Ok(());
    }
    let wasi = ModuleInstance::wasi(&[], &[], &[])?;
    let mut wrong = Vec::new();
    for item in list {
        // SAFETY:
        // - `item` belongs to the live module; so do its names and types.
        let (module, name, function) = unsafe {
            (
                text_of(ffi::WasmEdge_ImportTypeGetModuleName(item)),
                text_of(ffi::WasmEdge_ImportTypeGetExternalName(item)),
                ffi::WasmEdge_ImportTypeGetFunctionType(ast.raw(), item),
            )
        };
        let signature = (!function.is_null()).then(|| {
            // SAFETY:
            // - not null, and belongs to the live module.
            unsafe { signature(name.clone(), function) }
        });
        if let Err(reason) = check_import(&module, &name, signature.as_ref(), &wasi) {
            wrong.push(format!("`{module}.{name}` ({reason})"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(VmError::Imports { imports: wrong }) }
}

fn check_import(
    module: &str,
    name: &str,
    function: Option<&Signature>,
    wasi: &ModuleInstance,
) -> Result<(), String> {
    let Some(function) = function else {
        return Err("only functions can be imported".into());
    };
    match module {
        WASI if wasi.function(name).is_null() => Err("not part of WASI preview 1".into()),
        WASI => Ok(()),
        IMPORT_MODULE => match imports::params_of(name) {
            None => Err("no such host function in this version".into()),
            Some(params) if function.is(name, params, 1) => Ok(()),
            Some(params) => {
                Err(format!("its type must be {params} i32 parameters and one i32 result"))
            }
        },
        _ => Err("unknown module".into()),
    }
}

/// # Safety
/// `ty` is alive.
unsafe fn signature(name: String, ty: *const ffi::WasmEdge_FunctionTypeContext) -> Signature {
    // SAFETY:
    // - alive, says the caller; each list has room for the length that the engine gave.
    unsafe {
        let params = ffi::WasmEdge_FunctionTypeGetParametersLength(ty);
        let returns = ffi::WasmEdge_FunctionTypeGetReturnsLength(ty);
        let i32_type = ffi::WasmEdge_ValTypeGenI32();
        let mut types = vec![i32_type; params as usize + returns as usize];
        ffi::WasmEdge_FunctionTypeGetParameters(ty, types.as_mut_ptr(), params);
        let (_, tail) = types.split_at_mut(params as usize);
        ffi::WasmEdge_FunctionTypeGetReturns(ty, tail.as_mut_ptr(), returns);
        let only_i32 = types.iter().all(|ty| ffi::WasmEdge_ValTypeIsI32(*ty));
        Signature { name, params, returns, only_i32 }
    }
}
