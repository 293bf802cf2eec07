//! One instance of a module with everything that only it uses.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::CString;
use std::path::Path;
use std::rc::Rc;

use cwasi_abi::export;
use cwasi_host_functions::Host;
use wasmedge_sys::ffi;

use super::handles::{Ast, Code, Executor, LoadFault, ModuleInstance, Store, check};
use super::imports::{self, Slot};
use super::module::WasmEdgeModule;
use crate::vm::engine::{Instance, InstanceSpec, Stop, Trap, VmError};

/// What the engine says when a function that does not exist is called.
const NO_SUCH_EXPORT: &str = "no such export";

/// An instance.
///
/// Fields are dropped in this order: the guest before what it imports, everything before the executor, the
/// module's code last.
#[derive(Debug)]
pub struct WasmEdgeInstance {
    guest: ModuleInstance,
    wasi: ModuleInstance,
    _imports: ModuleInstance,
    _store: Store,
    executor: Executor,
    slot: Box<Slot>,
    _ast: Rc<Ast>,
}

impl WasmEdgeInstance {
    pub(super) fn new(
        module: &WasmEdgeModule,
        spec: &InstanceSpec,
        host: &mut Host,
    ) -> Result<Self, VmError> {
        let executor = Executor::new(&module.engine.configure)?;
        let store = Store::new()?;
        let slot = Box::new(Slot::empty());
        let imports = imports::module(&slot)?;
        let wasi = wasi(spec)?;
        let refused = |code: Code| VmError::Instantiate { reason: code.to_string() };
        executor.register(&store, &wasi).map_err(refused)?;
        executor.register(&store, &imports).map_err(refused)?;
        // A module's start function runs inside; it has no use for the host yet but may log.
        let guest =
            slot.lend(host, || executor.instantiate(&store, &module.ast)).map_err(|fault| {
                match fault {
                    LoadFault::Vm(error) => error,
                    LoadFault::Code(code) => refused(code),
                }
            })?;
        let mut this = Self {
            guest,
            wasi,
            _imports: imports,
            _store: store,
            executor,
            slot,
            _ast: Rc::clone(&module.ast),
        };
        if module.initializes() {
            this.initialize(host)?;
        }
        Ok(this)
    }

    fn initialize(&mut self, host: &mut Host) -> Result<(), VmError> {
        match self.call(export::INITIALIZE, &[], host) {
            Ok(_) => Ok(()),
            Err(Stop::Trapped(trap)) => Err(VmError::Initialize { reason: trap.to_string() }),
            Err(Stop::Exited(code)) => Err(VmError::Initialize {
                reason: format!("`{}` exited with code {code}", export::INITIALIZE),
            }),
        }
    }

    fn invoke(
        &self,
        function: *const ffi::WasmEdge_FunctionInstanceContext,
        params: &[ffi::WasmEdge_Value],
    ) -> Result<Option<i32>, Code> {
        // SAFETY:
        // - reads the length from a live function's type.
        let returns = unsafe {
            ffi::WasmEdge_FunctionTypeGetReturnsLength(
                ffi::WasmEdge_FunctionInstanceGetFunctionType(function),
            )
        };
        // SAFETY:
        // - no arguments.
        let mut result = unsafe { ffi::WasmEdge_ValueGenI32(0) };
        let params_len = u32::try_from(params.len()).unwrap_or(u32::MAX);
        // SAFETY:
        // - executor and function live; the list has `params_len` values; room for the one result asked for.
        // - the engine checks the values against the function's type.
        check(unsafe {
            ffi::WasmEdge_ExecutorInvoke(
                self.executor.raw(),
                function,
                params.as_ptr(),
                params_len,
                &raw mut result,
                1,
            )
        })?;
        // SAFETY:
        // - a value; `Module::check` and the fixed names see to it that it is an `i32`.
        Ok((returns > 0).then(|| unsafe { ffi::WasmEdge_ValueGetI32(result) }))
    }
}

impl Instance for WasmEdgeInstance {
    fn call(&mut self, export: &str, params: &[i32], host: &mut Host) -> Result<Option<i32>, Stop> {
        let trap = |reason: String| Stop::Trapped(Trap { export: export.to_owned(), reason });
        let function = self.guest.function(export);
        if function.is_null() {
            return Err(trap(NO_SUCH_EXPORT.to_owned()));
        }
        let values: Vec<_> = params
            .iter()
            // SAFETY:
            // - makes a value.
            .map(|param| unsafe { ffi::WasmEdge_ValueGenI32(*param) })
            .collect();
        self.slot.lend(host, || self.invoke(function, &values)).map_err(|code| {
            if code.is_exit() {
                return Stop::Exited(self.wasi.exit_code());
            }
            trap(match host.take_trap_message() {
                Some(message) => format!("{code}: {message}"),
                None => code.to_string(),
            })
        })
    }

    fn memory(&self) -> &[u8] {
        // SAFETY:
        // - owned by the live guest; only `&mut self` runs the guest.
        unsafe { imports::memory_bytes(self.guest.memory(export::MEMORY)) }
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as above, and `self` is borrowed uniquely.
        unsafe { imports::memory_bytes_mut(self.guest.memory(export::MEMORY)) }
    }
}

fn wasi(spec: &InstanceSpec) -> Result<ModuleInstance, VmError> {
    let args = c_strings("argument", &spec.args)?;
    let env = c_strings("environment variable", &spec.env)?;
    let mut preopens = Vec::new();
    for path in spec.preopens.iter().filter(|path| path.is_dir()) {
        preopens.push(preopen(path)?);
    }
    ModuleInstance::wasi(&args, &env, &preopens)
}

fn c_strings(what: &str, texts: &[String]) -> Result<Vec<CString>, VmError> {
    texts
        .iter()
        .map(|text| {
            CString::new(text.as_str()).map_err(|_| VmError::Spec {
                what: format!("{what} {text:?}"),
                reason: "it contains a zero byte".into(),
            })
        })
        .collect()
}

/// `guest:host`, the engine's way to name a directory.
fn preopen(path: &Path) -> Result<CString, VmError> {
    let refused = |reason: &str| VmError::Spec {
        what: format!("directory {}", path.display()),
        reason: reason.into(),
    };
    let text = path.to_str().ok_or_else(|| refused("its path is not UTF-8"))?;
    if text.split('/').any(|component| component.starts_with('.')) {
        // `/tmp/.cache` would appear to the guest as `/tmp`.
        return Err(refused(
            "a part of its path begins with a dot, which the engine would show to the guest under another name; mount it elsewhere",
        ));
    }
    if text.contains(':') {
        return Err(refused("its path contains a colon, which the engine takes for a separator"));
    }
    CString::new(format!("{text}:{text}")).map_err(|_| refused("its path contains a zero byte"))
}
