//! The data of the host functions of one VM on wasmtime, and functions of ours that act on no guest's memory. Runs in a
//! worker.
#![expect(unsafe_code, reason = "host functions take the lent host")]

use cwasi_abi::Errno;
use cwasi_vm::host_calls::binding::HostBinding;
use cwasi_vm::host_calls::{self, Environment, HostCall};
use cwasi_vm::linear_memory::LinearMemory;

/// The data of the host functions of one VM.
pub(super) type Binding = HostBinding<LinearMemory>;

/// Runs a function of ours that does not act on the calling guest's memory.
pub(super) fn serve<F: HostCall<PARAMS>, const PARAMS: usize>(
    binding: &Binding,
    params: [u32; PARAMS],
) -> Option<F::Output> {
    // SAFETY:
    // - a guest of this VM has called, and no other host function runs: a callee's own calls have ended.
    unsafe { host_calls::call::<_, F, PARAMS>(binding, LinearMemory::NONE, params) }
}

/// Acts as the host of the call that a guest has made.
pub(super) fn act<T>(
    binding: &Binding,
    run: impl FnOnce(&mut Environment<'_, LinearMemory>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    // SAFETY:
    // - as in `serve`; what `run` calls in another store does not call this VM.
    unsafe { host_calls::act(binding, LinearMemory::NONE, run) }
}
