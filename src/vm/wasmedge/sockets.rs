//! Binds the socket functions of `vm::sockets` over the engine's own in a WASI. Runs in a worker.
//!
//! A module instance has one function per name: the last one added. Functions that open sockets and move bytes stay
//! the engine's, which keeps the descriptors.
#![expect(unsafe_code, reason = "C API")]

use std::ffi::c_void;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;

use cwasi_host_functions::GuestPtr;
use wasmedge_sys::ffi;

use super::handles::{FunctionType, ModuleInstance, Name};
use super::memory::RawMemory;
use cwasi_vm::engine::VmError;
use cwasi_vm::sockets::{Refusals, Results, Sockets, WasiErrno, WriteLine};
use cwasi_wire::egress::Egress;

/// Settings that all sockets of a function share.
#[derive(Debug)]
pub(super) struct SocketNetwork {
    egress: Egress,
    refusals: Rc<Refusals>,
}

impl SocketNetwork {
    /// Destinations, and the receiver of refusals.
    pub(super) fn new(egress: Egress, log: Option<WriteLine>) -> Result<Self, VmError> {
        let refusals =
            Refusals::new(log).map_err(|_| VmError::Setup { what: "list of refusals" })?;
        Ok(Self { egress, refusals: Rc::new(refusals) })
    }
}

/// A WASI, with limited sockets or without any.
#[derive(Debug)]
pub(super) struct Wasi {
    /// Dropped before the bindings in it.
    instance: ModuleInstance,
    _binding: Option<Box<Binding>>,
}

/// Data of the bound functions.
#[derive(Debug)]
struct Binding {
    /// The WASI, which has the guest's descriptors.
    wasi: *const ffi::WasmEdge_ModuleInstanceContext,
    sockets: Sockets,
}

impl Wasi {
    /// Limits the sockets of `instance`, a WASI, to `network`.
    pub(super) fn new(
        instance: ModuleInstance,
        network: Option<&SocketNetwork>,
    ) -> Result<Self, VmError> {
        let binding = |SocketNetwork { egress, refusals }: &SocketNetwork| {
            let sockets = Sockets::new(egress.clone(), Rc::clone(refusals));
            Box::new(Binding { wasi: instance.raw(), sockets })
        };
        let binding = network.map(binding);
        if let Some(binding) = &binding {
            bind(&instance, binding)?;
        }
        Ok(Self { instance, _binding: binding })
    }
}

impl Deref for Wasi {
    type Target = ModuleInstance;

    fn deref(&self) -> &ModuleInstance {
        &self.instance
    }
}

type SocketFunctionEntry = unsafe extern "C" fn(
    *mut c_void,
    *const ffi::WasmEdge_CallingFrameContext,
    *const ffi::WasmEdge_Value,
    *mut ffi::WasmEdge_Value,
) -> ffi::WasmEdge_Result;

/// One call: `i32` parameters, and an errno of WASI as the result.
type SocketCall<const PARAMS: usize> =
    fn(&Binding, &mut RawMemory, [u32; PARAMS]) -> Result<(), WasiErrno>;

/// Name, number of parameters and implementation of each function.
const FUNCTIONS: [(&str, u32, SocketFunctionEntry); 11] = [
    ("sock_connect", 3, connect),
    ("sock_connect_v2", 3, connect),
    ("sock_bind", 3, bind_socket),
    ("sock_bind_v2", 3, bind_socket),
    ("sock_listen", 2, listen),
    ("sock_listen_v2", 2, listen),
    ("sock_send_to", 7, send_to),
    ("sock_send_to_v2", 7, send_to),
    ("sock_getaddrinfo", 8, get_addr_info),
    ("sock_getsockopt", 5, get_option),
    ("sock_setsockopt", 5, set_option),
];

fn bind(wasi: &ModuleInstance, binding: &Binding) -> Result<(), VmError> {
    let data = ptr::from_ref(binding).cast_mut().cast::<c_void>();
    for (name, params, entry) in FUNCTIONS {
        let ty = FunctionType::of_i32(params, 1)?;
        // SAFETY:
        // - a live type, which is copied.
        // - `entry` reads as many parameters as the type has and writes one result.
        // - `data` is used by calls only, and the binding outlives the WASI.
        let function =
            unsafe { ffi::WasmEdge_FunctionInstanceCreate(ty.raw(), Some(entry), data, 0) };
        if function.is_null() {
            return Err(VmError::Setup { what: "socket function" });
        }
        // SAFETY:
        // - a live module, which owns the function from here on; the name is copied.
        unsafe {
            ffi::WasmEdge_ModuleInstanceAddFunction(wasi.raw(), Name::of(name).raw(), function);
        }
    }
    Ok(())
}

impl Binding {
    /// The host's descriptor of a guest's descriptor, for one call.
    fn socket(&self, fd: u32) -> Result<BorrowedFd<'_>, WasiErrno> {
        let mut native = 0;
        // SAFETY:
        // - a live WASI: a guest that imports it runs; a place for the number.
        let code = unsafe {
            ffi::WasmEdge_ModuleInstanceWASIGetNativeHandler(
                self.wasi,
                fd.cast_signed(),
                &raw mut native,
            )
        };
        // The engine casts an `int`; -1 means that there is none.
        let native = u32::try_from(native & u64::from(u32::MAX)).map_err(|_| WasiErrno::BADF)?;
        let native: RawFd = native.cast_signed();
        if code != 0 || native < 0 {
            return Err(WasiErrno::BADF);
        }
        // SAFETY:
        // - the WASI keeps it open; the guest, which alone could close it, waits for this call's end.
        Ok(unsafe { BorrowedFd::borrow_raw(native) })
    }
}

macro_rules! entry {
    ($name:ident, $params:literal, |$binding:ident, $memory:ident, $args:pat_param| $body:expr) => {
        unsafe extern "C" fn $name(
            data: *mut c_void,
            frame: *const ffi::WasmEdge_CallingFrameContext,
            params: *const ffi::WasmEdge_Value,
            returns: *mut ffi::WasmEdge_Value,
        ) -> ffi::WasmEdge_Result {
            let call: SocketCall<$params> = |$binding, $memory, $args| $body;
            // SAFETY:
            // - as the engine calls it: see `serve`.
            unsafe { serve(data, frame, params, returns, call) }
        }
    };
}

entry!(connect, 3, |binding, memory, [fd, address, port]| {
    binding.sockets.connect(memory, binding.socket(fd)?, (GuestPtr(address), port))
});
entry!(bind_socket, 3, |binding, memory, [fd, address, port]| {
    binding.sockets.bind(memory, binding.socket(fd)?, (GuestPtr(address), port))
});
entry!(listen, 2, |binding, _memory, [_fd, _backlog]| binding.sockets.listen());
entry!(send_to, 7, |binding, memory, [fd, parts, count, address, port, _flags, sent]| {
    let (parts, to) = ((GuestPtr(parts), count), (GuestPtr(address), port));
    binding.sockets.send_to(memory, binding.socket(fd)?, parts, to, GuestPtr(sent))
});
entry!(get_addr_info, 8, |binding, memory, params| {
    let [node, node_len, service, service_len, hints, list, max, len_out] = params;
    let texts = ((GuestPtr(node), node_len), (GuestPtr(service), service_len));
    let results = Results { list: GuestPtr(list), max, len_out: GuestPtr(len_out) };
    binding.sockets.get_addr_info(memory, texts, GuestPtr(hints), results)
});

entry!(get_option, 5, |binding, memory, [fd, level, name, value, len]| {
    let places = (GuestPtr(value), GuestPtr(len));
    binding.sockets.get_option(memory, binding.socket(fd)?, (level, name), places)
});
entry!(set_option, 5, |binding, memory, [fd, level, name, value, len]| {
    let value = (GuestPtr(value), len);
    binding.sockets.set_option(memory, binding.socket(fd)?, (level, name), value)
});

/// Runs one call.
///
/// # Safety
/// The engine calls it: `data` is what was bound, alive while a guest runs; the frame is alive; there are `PARAMS`
/// parameters, all `i32`, and room for one result.
unsafe fn serve<const PARAMS: usize>(
    data: *mut c_void,
    frame: *const ffi::WasmEdge_CallingFrameContext,
    params: *const ffi::WasmEdge_Value,
    returns: *mut ffi::WasmEdge_Value,
    call: SocketCall<PARAMS>,
) -> ffi::WasmEdge_Result {
    // SAFETY:
    // - says the caller.
    let binding = unsafe { &*data.cast::<Binding>() };
    let mut values = [0_u32; PARAMS];
    for (index, value) in values.iter_mut().enumerate() {
        // SAFETY:
        // - says the caller.
        *value = unsafe { ffi::WasmEdge_ValueGetI32(*params.add(index)) }.cast_unsigned();
    }
    // SAFETY:
    // - the frame is alive during this call; its memory, or null, outlives it.
    // - the guest waits for this call's end.
    let mut memory =
        unsafe { RawMemory::new(ffi::WasmEdge_CallingFrameGetMemoryInstance(frame, 0)) };
    // A panic must not unwind through the engine's frames.
    let called = catch_unwind(AssertUnwindSafe(|| call(binding, &mut memory, values)));
    let errno = match called {
        Ok(Ok(())) => WasiErrno(0),
        Ok(Err(errno)) => errno,
        Err(_panic) => WasiErrno::IO,
    };
    // SAFETY:
    // - says the caller.
    unsafe { *returns = ffi::WasmEdge_ValueGenI32(i32::from(errno.0)) };
    ffi::WasmEdge_Result { Code: ffi::WasmEdge_ErrCode_Success }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_wire::egress::SOCKET_EXTENSIONS;

    #[test]
    fn functions_have_the_types_that_modules_may_import() {
        for (name, params, _) in FUNCTIONS {
            let known = SOCKET_EXTENSIONS.iter().find(|(known, _)| *known == name).unwrap();
            assert_eq!(known.1, [params], "{name}");
        }
        let wasi = Wasi::new(ModuleInstance::wasi(&[], &[], &[]).unwrap(), None).unwrap();
        for (name, _) in SOCKET_EXTENSIONS {
            assert!(!wasi.function(name).is_null(), "{name}");
        }
    }
}
