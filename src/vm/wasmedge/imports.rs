//! The import module `cwasi` and the trampolines' own: their functions, and what each of them calls. Runs in a worker.

use std::cell::RefMut;

use cwasi_abi::{Errno, import};
use cwasi_host_functions::{self as host_functions, GuestPtr, Regions};

use super::handles::ModuleInstance;
use super::host_binding::HostBinding;
use super::host_function::{Bound, Environment, HostFunction, bind};
use super::memory::RawMemory;
use super::trampoline_functions::{Begin, BeginStart, EndCall, Enter, Leave, Pass};
use cwasi_vm::engine::VmError;
use cwasi_vm::trampoline;

const FUNCTIONS: [HostFunction; 18] = [
    HostFunction::new::<5, RequestDispatcher>(import::REQUEST_DISPATCHER),
    HostFunction::new::<6, DispatchStart>(import::DISPATCH_START),
    HostFunction::new::<4, DispatchWait>(import::DISPATCH_WAIT),
    HostFunction::new::<1, DispatchForget>(import::DISPATCH_FORGET),
    HostFunction::new::<5, Emit>(import::EMIT),
    HostFunction::new::<3, ResponseRead>(import::RESPONSE_READ),
    HostFunction::new::<5, ContextGet>(import::CONTEXT_GET),
    HostFunction::new::<4, ContextSet>(import::CONTEXT_SET),
    HostFunction::new::<3, Log>(import::LOG),
    HostFunction::new::<2, TrapMessage>(import::TRAP_MESSAGE),
    HostFunction::new::<2, LinkOffer>(import::LINK_OFFER),
    HostFunction::new::<4, LinkRead>(import::LINK_READ),
    HostFunction::new::<2, LinkReturn>(import::LINK_RETURN),
    HostFunction::new::<3, LinkResult>(import::LINK_RESULT),
    HostFunction::new::<2, RegionShare>(import::REGION_SHARE),
    HostFunction::new::<2, RegionSeal>(import::REGION_SEAL),
    HostFunction::new::<2, RegionRelease>(import::REGION_RELEASE),
    HostFunction::new::<1, RegionInfo>(import::REGION_INFO),
];

const TRAMPOLINE_FUNCTIONS: [HostFunction; 6] = [
    HostFunction::new::<1, Enter>(trampoline::ENTER),
    HostFunction::new::<0, Leave>(trampoline::LEAVE),
    HostFunction::new::<5, Begin>(trampoline::BEGIN),
    HostFunction::new::<6, BeginStart>(trampoline::BEGIN_START),
    HostFunction::new::<2, Pass>(trampoline::PASS),
    HostFunction::new::<1, EndCall>(trampoline::END),
];

/// The guests' import module. `binding` outlives every call into a guest that uses it.
pub(super) fn module(name: &str, binding: &HostBinding) -> Result<ModuleInstance, VmError> {
    bind(name, &FUNCTIONS, binding)
}

/// The trampolines' import module, like [`module`].
pub(super) fn trampoline_module(binding: &HostBinding) -> Result<ModuleInstance, VmError> {
    bind(trampoline::TRAMPOLINE_HOST, &TRAMPOLINE_FUNCTIONS, binding)
}

/// The regions of the guest with this memory.
fn regions(binding: &HostBinding, memory: RawMemory) -> Option<RefMut<'_, Regions<RawMemory>>> {
    binding.regions_of(memory).map(|regions| regions.borrow_mut())
}

/// Binds a function of `host-functions` that returns an errno.
macro_rules! host_function {
    ($name:ident, $params:literal, |$env:ident, $args:pat_param| $body:expr) => {
        struct $name;

        impl Bound<$params> for $name {
            type Output = i32;

            fn call($env: &mut Environment<'_>, $args: [u32; $params]) -> Result<i32, Errno> {
                $body.map(|()| Errno::Ok.code())
            }
        }
    };
}

host_function!(RequestDispatcher, 5, |env, [target, target_len, payload, payload_len, outcome]| {
    let target = (GuestPtr(target), target_len);
    let payload = (GuestPtr(payload), payload_len);
    let outcome = GuestPtr(outcome);
    let regions = regions(env.binding, env.memory);
    let regions = regions.as_deref();
    host_functions::request_dispatcher(env.host, &mut env.memory, regions, target, payload, outcome)
});
host_function!(DispatchStart, 6, |env, params| {
    let regions = regions(env.binding, env.memory);
    let regions = regions.as_deref();
    host_functions::dispatch_start(env.host, &mut env.memory, regions, params.into())
});
host_function!(DispatchWait, 4, |env, [handles, count, timeout_ms, ready_out]| {
    let handles = (GuestPtr(handles), count);
    let ready_out = GuestPtr(ready_out);
    host_functions::dispatch_wait(env.host, &mut env.memory, handles, timeout_ms, ready_out)
});
host_function!(DispatchForget, 1, |env, [handle]| {
    host_functions::dispatch_forget(env.host, handle)
});
host_function!(Emit, 5, |env, [target, target_len, payload, payload_len, outcome]| {
    let target = (GuestPtr(target), target_len);
    let payload = (GuestPtr(payload), payload_len);
    host_functions::emit(env.host, &mut env.memory, target, payload, GuestPtr(outcome))
});
host_function!(ResponseRead, 3, |env, [handle, ptr, len]| {
    let mut regions = regions(env.binding, env.memory);
    let room = (GuestPtr(ptr), len);
    host_functions::response_read(env.host, &mut env.memory, regions.as_deref_mut(), handle, room)
});
host_function!(RegionShare, 2, |env, [ptr, len]| {
    let mut regions = regions(env.binding, env.memory);
    let regions = regions.as_deref_mut();
    host_functions::region_share(env.host, &mut env.memory, regions, GuestPtr(ptr), len)
});
host_function!(RegionSeal, 2, |env, [ptr, len]| {
    let mut regions = regions(env.binding, env.memory);
    let regions = regions.as_deref_mut();
    host_functions::region_seal(env.host, &mut env.memory, regions, GuestPtr(ptr), len)
});
host_function!(RegionRelease, 2, |env, [ptr, len]| {
    let mut regions = regions(env.binding, env.memory);
    let regions = regions.as_deref_mut();
    host_functions::region_release(env.host, &mut env.memory, regions, GuestPtr(ptr), len)
});
host_function!(RegionInfo, 1, |env, [out]| {
    let mut regions = regions(env.binding, env.memory);
    host_functions::region_info(&mut env.memory, regions.as_deref_mut(), GuestPtr(out))
});
host_function!(ContextGet, 5, |env, [key, key_len, value, capacity, len_out]| {
    let key = (GuestPtr(key), key_len);
    let value = (GuestPtr(value), capacity);
    host_functions::context_get(env.host, &mut env.memory, key, value, GuestPtr(len_out))
});
host_function!(ContextSet, 4, |env, [key, key_len, value, value_len]| {
    let (key, value) = ((GuestPtr(key), key_len), (GuestPtr(value), value_len));
    host_functions::context_set(env.host, &env.memory, key, value)
});
host_function!(Log, 3, |env, [level, ptr, len]| {
    host_functions::log(env.host, &env.memory, level, GuestPtr(ptr), len)
});
host_function!(TrapMessage, 2, |env, [ptr, len]| {
    host_functions::trap_message(env.host, &env.memory, GuestPtr(ptr), len)
});
host_function!(LinkOffer, 2, |env, [ptr, len]| {
    let links = &mut env.binding.links.borrow_mut();
    host_functions::link_offer(links, &env.memory, env.memory, GuestPtr(ptr), len)
});
host_function!(LinkRead, 4, |env, [index, ptr, capacity, len_out]| {
    let (own, target) = (env.memory, (GuestPtr(ptr), capacity));
    let links = env.binding.links.borrow();
    host_functions::link_read(&links, &mut env.memory, &own, index, target, GuestPtr(len_out))
});
host_function!(LinkReturn, 2, |env, [ptr, len]| {
    let links = &mut env.binding.links.borrow_mut();
    host_functions::link_return(links, &env.memory, env.memory, GuestPtr(ptr), len)
});
host_function!(LinkResult, 3, |env, [ptr, capacity, len_out]| {
    let (own, target) = (env.memory, (GuestPtr(ptr), capacity));
    let links = env.binding.links.borrow();
    host_functions::link_result(&links, &mut env.memory, &own, target, GuestPtr(len_out))
});

#[cfg(test)]
mod tests {
    use super::*;

    /// Trampolines rely on it (`vm::trampoline::dispatch`): types are matched by their index in this order.
    #[test]
    fn functions_are_the_abis_in_its_order() {
        let bound = FUNCTIONS.map(|function| (function.name, function.params));
        assert_eq!(bound, import::SIGNATURES);
        assert!(FUNCTIONS.iter().all(|function| function.results == 1));
    }
}
