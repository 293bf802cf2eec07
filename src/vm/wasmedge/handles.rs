//! Owned objects of the engine's C API, and their constructors. Runs in builder and workers.
//!
//! Invariant: a wrapper holds a non-null pointer that it alone deletes and no other thread sees (`NonNull` is not
//! `Send`).
#![expect(unsafe_code, reason = "C API")]

use std::ffi::{CStr, CString, c_char};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use wasmedge_sys::ffi;

use cwasi_vm::engine::VmError;

use super::engine_code::{EngineCode, check};

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident, $raw:ty, $delete:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name(NonNull<$raw>);

        impl $name {
            /// The object, for calls that do not keep it longer than `self` lives.
            pub(super) fn raw(&self) -> *mut $raw {
                self.0.as_ptr()
            }

            fn own(pointer: *mut $raw, what: &'static str) -> Result<Self, VmError> {
                NonNull::new(pointer).map(Self).ok_or(VmError::Setup { what })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY:
                // - the pointer came from the matching create call and is deleted here only.
                unsafe { $delete(self.0.as_ptr()) }
            }
        }
    };
}

owned!(Configure, ffi::WasmEdge_ConfigureContext, ffi::WasmEdge_ConfigureDelete);
owned!(Loader, ffi::WasmEdge_LoaderContext, ffi::WasmEdge_LoaderDelete);
owned!(Validator, ffi::WasmEdge_ValidatorContext, ffi::WasmEdge_ValidatorDelete);
owned!(
    /// A parsed module with its native code.
    Ast, ffi::WasmEdge_ASTModuleContext, ffi::WasmEdge_ASTModuleDelete
);
owned!(Executor, ffi::WasmEdge_ExecutorContext, ffi::WasmEdge_ExecutorDelete);
owned!(Store, ffi::WasmEdge_StoreContext, ffi::WasmEdge_StoreDelete);
owned!(
    /// A module instance: a guest's, WASI's or ours.
    ModuleInstance, ffi::WasmEdge_ModuleInstanceContext, ffi::WasmEdge_ModuleInstanceDelete
);
owned!(MemoryType, ffi::WasmEdge_MemoryTypeContext, ffi::WasmEdge_MemoryTypeDelete);
owned!(
    /// A memory that belongs to no instance.
    MemoryInstance, ffi::WasmEdge_MemoryInstanceContext, ffi::WasmEdge_MemoryInstanceDelete
);
owned!(FunctionType, ffi::WasmEdge_FunctionTypeContext, ffi::WasmEdge_FunctionTypeDelete);

impl Configure {
    pub(super) fn new(memory_pages_max: u32) -> Result<Self, VmError> {
        // SAFETY:
        // - no arguments.
        let this = Self::own(unsafe { ffi::WasmEdge_ConfigureCreate() }, "configuration")?;
        // SAFETY:
        // - `this` is a live configuration.
        unsafe { ffi::WasmEdge_ConfigureSetMaxMemoryPage(this.raw(), memory_pages_max) };
        Ok(this)
    }
}

impl Ast {
    /// Loads and validates native code.
    pub(super) fn load(configure: &Configure, path: &CStr) -> Result<Self, LoadFault> {
        // SAFETY:
        // - a live configuration, which the loader copies.
        let loader = unsafe { ffi::WasmEdge_LoaderCreate(configure.raw()) };
        let loader = Loader::own(loader, "loader")?;
        let mut ast = ptr::null_mut();
        // SAFETY:
        // - a live loader, a place for one pointer, a NUL-terminated path.
        let result =
            unsafe { ffi::WasmEdge_LoaderParseFromFile(loader.raw(), &raw mut ast, path.as_ptr()) };
        check(result)?;
        Self::validated(configure, Self::own(ast, "module")?)
    }

    /// Reads and validates a module that the engine will interpret.
    pub(super) fn interpreted(configure: &Configure, wasm: &[u8]) -> Result<Self, LoadFault> {
        // SAFETY:
        // - a live configuration, which the loader copies.
        let loader = unsafe { ffi::WasmEdge_LoaderCreate(configure.raw()) };
        let loader = Loader::own(loader, "loader")?;
        let mut ast = ptr::null_mut();
        let len = u32::try_from(wasm.len()).unwrap_or(u32::MAX);
        // SAFETY:
        // - a live loader, a place for one pointer, `len` bytes, which are copied.
        let result = unsafe {
            ffi::WasmEdge_LoaderParseFromBuffer(loader.raw(), &raw mut ast, wasm.as_ptr(), len)
        };
        check(result)?;
        Self::validated(configure, Self::own(ast, "module")?)
    }

    fn validated(configure: &Configure, ast: Self) -> Result<Self, LoadFault> {
        // SAFETY:
        // - a live configuration, which the validator copies.
        let validator = unsafe { ffi::WasmEdge_ValidatorCreate(configure.raw()) };
        let validator = Validator::own(validator, "validator")?;
        // SAFETY:
        // - both live.
        check(unsafe { ffi::WasmEdge_ValidatorValidate(validator.raw(), ast.raw()) })?;
        Ok(ast)
    }
}

/// Why [`Ast::load`] failed.
pub(super) enum LoadFault {
    Vm(VmError),
    Code(EngineCode),
}

impl From<VmError> for LoadFault {
    fn from(error: VmError) -> Self {
        Self::Vm(error)
    }
}

impl From<EngineCode> for LoadFault {
    fn from(code: EngineCode) -> Self {
        Self::Code(code)
    }
}

impl Executor {
    pub(super) fn new(configure: &Configure) -> Result<Self, VmError> {
        // SAFETY:
        // - a live configuration, which the executor copies; no statistics.
        Self::own(
            unsafe { ffi::WasmEdge_ExecutorCreate(configure.raw(), ptr::null_mut()) },
            "executor",
        )
    }

    /// Makes `import` available to modules that are instantiated with `store`.
    pub(super) fn register(
        &self,
        store: &Store,
        import: &ModuleInstance,
    ) -> Result<(), EngineCode> {
        // SAFETY:
        // - all three live; the instance unlinks itself from the store when it is deleted.
        check(unsafe {
            ffi::WasmEdge_ExecutorRegisterImport(self.raw(), store.raw(), import.raw())
        })
    }

    pub(super) fn instantiate(
        &self,
        store: &Store,
        ast: &Ast,
    ) -> Result<ModuleInstance, LoadFault> {
        let mut made = ptr::null_mut();
        // SAFETY:
        // - executor, store and module live; a place for one pointer.
        let result = unsafe {
            ffi::WasmEdge_ExecutorInstantiate(self.raw(), &raw mut made, store.raw(), ast.raw())
        };
        check(result)?;
        Ok(ModuleInstance::own(made, "instance")?)
    }

    /// [`Self::instantiate`], and makes the instance available in `store` as `name`.
    pub(super) fn instantiate_as(
        &self,
        store: &Store,
        ast: &Ast,
        name: &str,
    ) -> Result<ModuleInstance, LoadFault> {
        let mut made = ptr::null_mut();
        let name = Name::of(name);
        // SAFETY:
        // - executor, store and module live; a place for one pointer; the name is copied.
        let result = unsafe {
            ffi::WasmEdge_ExecutorRegister(
                self.raw(),
                &raw mut made,
                store.raw(),
                ast.raw(),
                name.raw(),
            )
        };
        check(result)?;
        Ok(ModuleInstance::own(made, "instance")?)
    }
}

impl Store {
    pub(super) fn new() -> Result<Self, VmError> {
        // SAFETY:
        // - no arguments.
        Self::own(unsafe { ffi::WasmEdge_StoreCreate() }, "store")
    }
}

impl ModuleInstance {
    /// An empty one of this name.
    pub(super) fn named(name: &str) -> Result<Self, VmError> {
        let name = Name::of(name);
        // SAFETY:
        // - the name is copied.
        Self::own(unsafe { ffi::WasmEdge_ModuleInstanceCreate(name.raw()) }, "import module")
    }

    pub(super) fn wasi(
        args: &[CString],
        env: &[CString],
        preopens: &[CString],
    ) -> Result<Self, VmError> {
        let list = |strings: &[CString]| -> (Vec<*const c_char>, u32) {
            let pointers: Vec<_> = strings.iter().map(|text| text.as_ptr()).collect();
            let len = u32::try_from(pointers.len()).unwrap_or(u32::MAX);
            (pointers, len)
        };
        let (args, env, preopens) = (list(args), list(env), list(preopens));
        // SAFETY:
        // - each list holds as many NUL-terminated strings as its length says; all are copied.
        let wasi = unsafe {
            ffi::WasmEdge_ModuleInstanceCreateWASI(
                args.0.as_ptr(),
                args.1,
                env.0.as_ptr(),
                env.1,
                preopens.0.as_ptr(),
                preopens.1,
            )
        };
        Self::own(wasi, "WASI module")
    }

    /// The code that the guest passed to `proc_exit`; `self` is a WASI module.
    pub(super) fn exit_code(&self) -> u32 {
        // SAFETY:
        // - a live instance.
        unsafe { ffi::WasmEdge_ModuleInstanceWASIGetExitCode(self.raw()) }
    }

    /// An exported function, owned by the instance; null when there is none.
    pub(super) fn function(&self, name: &str) -> *mut ffi::WasmEdge_FunctionInstanceContext {
        let name = Name::of(name);
        // SAFETY:
        // - a live instance; the name is read during the call only.
        unsafe { ffi::WasmEdge_ModuleInstanceFindFunction(self.raw(), name.raw()) }
    }

    /// Puts `function` in the first place of the exported table `table`.
    pub(super) fn set_table(
        &self,
        table: &str,
        function: *const ffi::WasmEdge_FunctionInstanceContext,
    ) -> Result<(), EngineCode> {
        let table = Name::of(table);
        // SAFETY:
        // - a live instance; the name is read during the call only.
        let table = unsafe { ffi::WasmEdge_ModuleInstanceFindTable(self.raw(), table.raw()) };
        // SAFETY:
        // - a table of this live instance (the engine answers null with an error), and a live function.
        check(unsafe {
            let function = ffi::WasmEdge_ValueGenFuncRef(function);
            ffi::WasmEdge_TableInstanceSetData(table, function, 0)
        })
    }

    /// An exported global, owned by the instance; null when there is none.
    pub(super) fn global(&self, name: &str) -> *mut ffi::WasmEdge_GlobalInstanceContext {
        let name = Name::of(name);
        // SAFETY:
        // - a live instance; the name is read during the call only.
        unsafe { ffi::WasmEdge_ModuleInstanceFindGlobal(self.raw(), name.raw()) }
    }

    /// An exported memory, owned by the instance; null when there is none.
    pub(super) fn memory(&self, name: &str) -> *mut ffi::WasmEdge_MemoryInstanceContext {
        let name = Name::of(name);
        // SAFETY:
        // - a live instance; the name is read during the call only.
        unsafe { ffi::WasmEdge_ModuleInstanceFindMemory(self.raw(), name.raw()) }
    }
}

impl MemoryType {
    /// Of `pages`, and at most `max`.
    pub(super) fn new(pages: u32, max: u32) -> Result<Self, VmError> {
        let limit = ffi::WasmEdge_Limit { HasMax: true, Shared: false, Min: pages, Max: max };
        // SAFETY:
        // - takes a value.
        Self::own(unsafe { ffi::WasmEdge_MemoryTypeCreate(limit) }, "memory type")
    }
}

impl MemoryInstance {
    pub(super) fn new(ty: &MemoryType) -> Result<Self, VmError> {
        // SAFETY:
        // - a live type, which is copied.
        Self::own(unsafe { ffi::WasmEdge_MemoryInstanceCreate(ty.raw()) }, "memory")
    }

    pub(super) fn grow(&self, pages: u32) -> Result<(), EngineCode> {
        // SAFETY:
        // - a live memory.
        check(unsafe { ffi::WasmEdge_MemoryInstanceGrowPage(self.raw(), pages) })
    }

    pub(super) fn pages(&self) -> u32 {
        // SAFETY:
        // - a live memory.
        unsafe { ffi::WasmEdge_MemoryInstanceGetPageSize(self.raw()) }
    }
}

impl FunctionType {
    /// `params` times `i32`, returning `results` times `i32`.
    pub(super) fn of_i32(params: u32, results: u32) -> Result<Self, VmError> {
        // SAFETY:
        // - no arguments.
        let i32_type = unsafe { ffi::WasmEdge_ValTypeGenI32() };
        let list = vec![i32_type; params.max(results) as usize];
        // SAFETY:
        // - lists of at least the given lengths, copied.
        let made = unsafe {
            ffi::WasmEdge_FunctionTypeCreate(list.as_ptr(), params, list.as_ptr(), results)
        };
        Self::own(made, "function type")
    }
}

/// A name that the engine reads during one call.
pub(super) struct Name<'a>(ffi::WasmEdge_String, PhantomData<&'a str>);

impl<'a> Name<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        // SAFETY:
        // - `text` outlives the wrapper, which owns nothing.
        Self(unsafe { ffi::WasmEdge_StringWrap(text.as_ptr().cast(), len) }, PhantomData)
    }

    pub(super) const fn raw(&self) -> ffi::WasmEdge_String {
        self.0
    }
}

/// Text of a string that the engine owns.
///
/// # Safety
/// The string is alive.
pub(super) unsafe fn text_of(string: ffi::WasmEdge_String) -> String {
    if string.Buf.is_null() || string.Length == 0 {
        return String::new();
    }
    // SAFETY:
    // - the caller guarantees `Length` bytes at `Buf`.
    let bytes =
        unsafe { std::slice::from_raw_parts(string.Buf.cast::<u8>(), string.Length as usize) };
    String::from_utf8_lossy(bytes).into_owned()
}
