//! The import module `cwasi` and the trampolines' own, in the engine. Runs in a worker.

use cwasi_abi::import;

use super::handles::ModuleInstance;
use super::host_function::{Binding, HostFunction, bind};
use cwasi_vm::engine::VmError;
use cwasi_vm::host_calls::{embedded_call, functions};
use cwasi_vm::trampoline;

const FUNCTIONS: [HostFunction; 19] = [
    HostFunction::new::<5, functions::RequestDispatcher>(import::REQUEST_DISPATCHER),
    HostFunction::new::<6, functions::DispatchStart>(import::DISPATCH_START),
    HostFunction::new::<4, functions::DispatchWait>(import::DISPATCH_WAIT),
    HostFunction::new::<1, functions::DispatchForget>(import::DISPATCH_FORGET),
    HostFunction::new::<5, functions::Emit>(import::EMIT),
    HostFunction::new::<3, functions::ResponseRead>(import::RESPONSE_READ),
    HostFunction::new::<5, functions::ContextGet>(import::CONTEXT_GET),
    HostFunction::new::<4, functions::ContextSet>(import::CONTEXT_SET),
    HostFunction::new::<4, functions::ContextAdd>(import::CONTEXT_ADD),
    HostFunction::new::<3, functions::Log>(import::LOG),
    HostFunction::new::<2, functions::TrapMessage>(import::TRAP_MESSAGE),
    HostFunction::new::<2, functions::LinkOffer>(import::LINK_OFFER),
    HostFunction::new::<4, functions::LinkRead>(import::LINK_READ),
    HostFunction::new::<2, functions::LinkReturn>(import::LINK_RETURN),
    HostFunction::new::<3, functions::LinkResult>(import::LINK_RESULT),
    HostFunction::new::<2, functions::RegionShare>(import::REGION_SHARE),
    HostFunction::new::<2, functions::RegionSeal>(import::REGION_SEAL),
    HostFunction::new::<2, functions::RegionRelease>(import::REGION_RELEASE),
    HostFunction::new::<1, functions::RegionInfo>(import::REGION_INFO),
];

const TRAMPOLINE_FUNCTIONS: [HostFunction; 6] = [
    HostFunction::new::<1, embedded_call::Enter>(trampoline::ENTER),
    HostFunction::new::<0, embedded_call::Leave>(trampoline::LEAVE),
    HostFunction::new::<5, embedded_call::Begin>(trampoline::BEGIN),
    HostFunction::new::<6, embedded_call::BeginStart>(trampoline::BEGIN_START),
    HostFunction::new::<2, embedded_call::Pass>(trampoline::PASS),
    HostFunction::new::<1, embedded_call::EndCall>(trampoline::END),
];

/// The guests' import module. `binding` outlives every call into a guest that uses it.
pub(super) fn module(name: &str, binding: &Binding) -> Result<ModuleInstance, VmError> {
    bind(name, &FUNCTIONS, binding)
}

/// The trampolines' import module, like [`module`].
pub(super) fn trampoline_module(binding: &Binding) -> Result<ModuleInstance, VmError> {
    bind(trampoline::TRAMPOLINE_HOST, &TRAMPOLINE_FUNCTIONS, binding)
}

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
