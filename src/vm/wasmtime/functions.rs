//! The functions that modules import: ours and WASI's, bound to one module of a VM. Runs in builder and workers.
#![expect(unsafe_code, reason = "host functions take the lent host")]

use cwasi_abi::{Errno, IMPORT_MODULE, import, prototype};
use cwasi_host_functions::{GuestPtr, func_connect};
use cwasi_vm::host_calls::{self, HostCall, embedded_call, functions};
use cwasi_vm::interface::{ModuleInterface, Signature};
use cwasi_vm::linear_memory::LinearMemory;
use cwasi_vm::trampoline::Number;
use cwasi_vm::wasi_calls::WASI;
use cwasi_wasi::{SOCKET_EXTENSIONS, ValueKind, Wasi, WasiFunction, WasiResult};
use wasmtime::{Caller, Linker};

use super::embedded;
use super::stop::Exit;
use super::vm::{VmData, memory_of};

const PROC_EXIT: &str = "proc_exit";

/// Defines what the module `part` of a VM imports from us and from WASI.
pub(super) fn define(
    linker: &mut Linker<VmData>,
    part: usize,
    interface: &ModuleInterface,
    dispatches: bool,
) -> wasmtime::Result<()> {
    define_host(linker, part, &|name| imports(interface, IMPORT_MODULE, name, None), dispatches)?;
    let wanted = |name: &str, params| imports(interface, WASI, name, Some(params));
    define_wasi(linker, part, &wanted)?;
    define_sockets(linker, part, &wanted)?;
    if imports(interface, WASI, PROC_EXIT, None) {
        linker.func_wrap(WASI, PROC_EXIT, |code: u32| -> wasmtime::Result<()> {
            Err(Exit(code).into())
        })?;
    }
    if imports(interface, prototype::IMPORT_MODULE, prototype::FUNC_CONNECT, None) {
        linker.func_wrap(
            prototype::IMPORT_MODULE,
            prototype::FUNC_CONNECT,
            move |caller: Caller<'_, VmData>, message: u32, len: u32| {
                connect(caller, part, message, len)
            },
        )?;
    }
    Ok(())
}

/// Runs the prototype's `func_connect`. Its ABI has no errors, so the guest traps.
fn connect(
    mut caller: Caller<'_, VmData>,
    part: usize,
    message: u32,
    len: u32,
) -> wasmtime::Result<i32> {
    let memory = memory_of(&mut caller, part);
    // SAFETY:
    // - a guest of this VM has called.
    let connected = unsafe {
        host_calls::act(&caller.data().binding, memory, |env| {
            func_connect(env.host, &mut env.memory, GuestPtr(message), len)
        })
    };
    connected.map_err(|_errno| wasmtime::Error::msg(prototype::FUNC_CONNECT))
}

fn imports(interface: &ModuleInterface, module: &str, name: &str, params: Option<usize>) -> bool {
    interface.imports.iter().any(|import| {
        let function = import.function.as_ref();
        let has_params = |count| function.is_some_and(|it| it.params.len() == count);
        import.module == module && import.name == name && params.is_none_or(has_params)
    })
}

/// True if WASI has a function of this name and type.
pub(super) fn wasi_has(function: &Signature) -> bool {
    let has_type = |known: &WasiFunction| {
        let number = |kind: &ValueKind| match kind {
            ValueKind::I32 => Some(Number::I32),
            ValueKind::I64 => Some(Number::I64),
        };
        known.params.iter().map(number).eq(function.params.iter().copied())
            && function.results == [Some(Number::I32)]
    };
    let mut known = cwasi_wasi::FUNCTIONS.iter().chain(SOCKET_EXTENSIONS);
    function.is(PROC_EXIT, 1, 0)
        || known.any(|known| known.import == function.name && has_type(known))
}

/// Runs a host function of the import module `cwasi`.
fn serve<F: HostCall<PARAMS, Output = i32>, const PARAMS: usize>(
    mut caller: Caller<'_, VmData>,
    part: usize,
    params: [u32; PARAMS],
) -> i32 {
    let memory = memory_of(&mut caller, part);
    // SAFETY:
    // - a guest of this VM has called.
    let output =
        unsafe { host_calls::call::<_, F, PARAMS>(&caller.data().binding, memory, params) };
    output.unwrap_or(Errno::Internal.code())
}

macro_rules! host_functions {
    ($($name:ident => $function:ident($($param:ident),*);)*) => {
        fn define_host(
            linker: &mut Linker<VmData>,
            part: usize,
            wanted: &dyn Fn(&str) -> bool,
            dispatches: bool,
        ) -> wasmtime::Result<()> {
            $(if wanted(import::$name) && !(dispatches && embedded::DISPATCH.contains(&import::$name)) {
                linker.func_wrap(
                    IMPORT_MODULE,
                    import::$name,
                    move |caller: Caller<'_, VmData>, $($param: u32),*| -> i32 {
                        serve::<functions::$function, _>(caller, part, [$($param),*])
                    },
                )?;
            })*
            if dispatches {
                define_dispatch(linker)?;
            }
            Ok(())
        }
    };
}

host_functions! {
    REQUEST_DISPATCHER => RequestDispatcher(a, b, c, d, e);
    DISPATCH_START => DispatchStart(a, b, c, d, e, f);
    DISPATCH_WAIT => DispatchWait(a, b, c, d);
    DISPATCH_FORGET => DispatchForget(a);
    EMIT => Emit(a, b, c, d, e);
    RESPONSE_READ => ResponseRead(a, b, c);
    CONTEXT_GET => ContextGet(a, b, c, d, e);
    CONTEXT_SET => ContextSet(a, b, c, d);
    CONTEXT_ADD => ContextAdd(a, b, c, d);
    LOG => Log(a, b, c);
    TRAP_MESSAGE => TrapMessage(a, b);
    LINK_OFFER => LinkOffer(a, b);
    LINK_READ => LinkRead(a, b, c, d);
    LINK_RETURN => LinkReturn(a, b);
    LINK_RESULT => LinkResult(a, b, c);
    REGION_SHARE => RegionShare(a, b);
    REGION_SEAL => RegionSeal(a, b);
    REGION_RELEASE => RegionRelease(a, b);
    REGION_INFO => RegionInfo(a);
}

/// Defines the functions that can call embedded modules.
fn define_dispatch(linker: &mut Linker<VmData>) -> wasmtime::Result<()> {
    linker.func_wrap(
        IMPORT_MODULE,
        import::REQUEST_DISPATCHER,
        |mut caller: Caller<'_, VmData>, a: u32, b: u32, c: u32, d: u32, e: u32| {
            embedded::dispatch::<embedded_call::Begin, 5>(&mut caller, [a, b, c, d, e])
        },
    )?;
    linker.func_wrap(
        IMPORT_MODULE,
        import::DISPATCH_START,
        |mut caller: Caller<'_, VmData>, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32| {
            embedded::dispatch::<embedded_call::BeginStart, 6>(&mut caller, [a, b, c, d, e, f])
        },
    )?;
    Ok(())
}

/// Runs a function of WASI.
fn serve_wasi(
    mut caller: Caller<'_, VmData>,
    part: usize,
    run: impl FnOnce(&mut Wasi, &mut LinearMemory) -> WasiResult,
) -> i32 {
    let mut memory = memory_of(&mut caller, part);
    match run(&mut caller.data_mut().parts[part].wasi, &mut memory) {
        Ok(()) => 0,
        Err(errno) => i32::from(errno.0),
    }
}

macro_rules! define {
    ($define:ident: $($name:literal => $method:ident($($param:ident: $ty:ident),*);)*) => {
        fn $define(
            linker: &mut Linker<VmData>,
            part: usize,
            wanted: &dyn Fn(&str, usize) -> bool,
        ) -> wasmtime::Result<()> {
            $(if wanted($name, <[&str]>::len(&[$(stringify!($param)),*])) {
                linker.func_wrap(
                    WASI,
                    $name,
                    move |caller: Caller<'_, VmData>, $($param: $ty),*| -> i32 {
                        serve_wasi(caller, part, |wasi, memory| wasi.$method(memory, $($param),*))
                    },
                )?;
            })*
            Ok(())
        }
    };
}

macro_rules! wasi {
    ($($functions:tt)*) => { define! { define_wasi: $($functions)* } };
}

macro_rules! sockets {
    ($($functions:tt)*) => { define! { define_sockets: $($functions)* } };
}

cwasi_wasi::functions!(wasi);
cwasi_wasi::socket_extensions!(sockets);
