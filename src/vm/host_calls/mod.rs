//! The host functions of one VM, for any engine. Runs in a worker, while the guest waits.
//!
//! - [`binding`]: the data that the functions of one VM act on.
//! - [`functions`]: the import module `cwasi`.
//! - [`embedded`], [`embedded_call`]: calls of embedded functions, whose bytes go from memory to memory.
//!
//! Invariant: nothing here calls the engine, except to find and measure linear memories.

pub mod binding;
pub mod embedded;
pub mod embedded_call;
pub mod functions;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cwasi_abi::Errno;
use cwasi_host_functions::Host;

use crate::linear_memory::VmMemory;
use binding::HostBinding;

/// The arguments of one call of a host function.
#[derive(Debug)]
pub struct Environment<'a, M: VmMemory> {
    pub host: &'a mut Host,
    pub binding: &'a HostBinding<M>,
    /// The calling guest's memory; empty without [`HostCall::MEMORY`].
    pub memory: M,
}

/// A host function of `i32`s.
pub trait HostCall<const PARAMS: usize> {
    /// False: a trampoline calls it, which has no memory.
    const MEMORY: bool = true;
    type Output: Output;

    /// # Errors
    /// What the guest learns.
    fn call<M: VmMemory>(
        env: &mut Environment<'_, M>,
        params: [u32; PARAMS],
    ) -> Result<Self::Output, Errno>;
}

/// What a host function returns: `i32`s.
pub trait Output: Sized {
    const COUNT: u32;

    /// The output for an error; `None` for a trap of the guest.
    fn failed(errno: Errno) -> Option<Self>;

    /// [`Self::COUNT`] values.
    fn values(self) -> impl IntoIterator<Item = i32>;
}

impl Output for () {
    const COUNT: u32 = 0;

    fn failed(_: Errno) -> Option<Self> {
        None
    }

    fn values(self) -> impl IntoIterator<Item = i32> {
        []
    }
}

impl Output for i32 {
    const COUNT: u32 = 1;

    fn failed(errno: Errno) -> Option<Self> {
        Some(errno.code())
    }

    fn values(self) -> impl IntoIterator<Item = i32> {
        [self]
    }
}

/// Runs one call of a guest; `None` for a trap.
///
/// # Safety
/// A guest of the binding's VM has called, and waits: host functions do not nest.
#[expect(unsafe_code, reason = "takes the borrow that `lend` put there")]
pub unsafe fn call<M: VmMemory, F: HostCall<PARAMS>, const PARAMS: usize>(
    binding: &HostBinding<M>,
    memory: M,
    params: [u32; PARAMS],
) -> Option<F::Output> {
    // SAFETY:
    // - the caller's.
    let called = unsafe { act(binding, memory, |env| F::call(env, params)) };
    called.map_or_else(F::Output::failed, Some)
}

/// Acts as the host of a call that a guest has made. A panic is an errno, because it must not unwind through the engine's
/// frames.
///
/// # Safety
/// As [`call`].
#[expect(unsafe_code, reason = "takes the borrow that `lend` put there")]
pub unsafe fn act<M: VmMemory, T>(
    binding: &HostBinding<M>,
    memory: M,
    run: impl FnOnce(&mut Environment<'_, M>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let acted = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY:
        // - host functions do not nest, so this is the only reference.
        let host = unsafe { binding.host() }.ok_or(Errno::Internal)?;
        run(&mut Environment { host, binding, memory })
    }));
    acted.unwrap_or(Err(Errno::Internal))
}
