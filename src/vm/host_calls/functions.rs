//! The import module `cwasi`: its functions, and what each of them calls. Runs in a worker.

use std::cell::RefMut;

use cwasi_abi::Errno;
use cwasi_host_functions::{self as host_functions, GuestPtr, Regions};

use super::binding::HostBinding;
use super::{Environment, HostCall};
use crate::linear_memory::VmMemory;

/// The regions of the guest with this memory.
fn regions<M: VmMemory>(binding: &HostBinding<M>, memory: M) -> Option<RefMut<'_, Regions<M>>> {
    binding.regions_of(memory).map(|regions| regions.borrow_mut())
}

/// Binds a function of `host-functions` that returns an errno.
macro_rules! host_function {
    ($name:ident, $params:literal, |$env:ident, $args:pat_param| $body:expr) => {
        #[derive(Debug)]
        pub struct $name;

        impl HostCall<$params> for $name {
            type Output = i32;

            fn call<M: VmMemory>(
                $env: &mut Environment<'_, M>,
                $args: [u32; $params],
            ) -> Result<i32, Errno> {
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
host_function!(ContextAdd, 4, |env, [key, key_len, value, value_len]| {
    let (key, value) = ((GuestPtr(key), key_len), (GuestPtr(value), value_len));
    host_functions::context_add(env.host, &env.memory, key, value)
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
