//! What `#[cwasi::handler]` exports to the host. Not for use by hand.
//!
//! The module is a reactor: `_initialize` runs once per instance, before anything else. It calls
//! `__wasm_call_ctors`, which also tells the linker not to wrap every export of the `cdylib` in
//! constructors and destructors of its own.
#![expect(unsafe_code, reason = "memory that the host fills")]

use std::alloc::{Layout, alloc as allocate, dealloc};
use std::cell::RefCell;
use std::panic;

use cwasi_abi::{PAYLOAD_ALIGN, ResponseRef};

use crate::handler::Handler;
use crate::imports;

/// Status of an invocation that ended with a response.
const ANSWERED: i32 = 0;
/// Status of an invocation that ended with an error.
const FAILED: i32 = 1;

#[cfg(target_family = "wasm")]
unsafe extern "C" {
    fn __wasm_call_ctors();
}

thread_local! {
    /// The response, where the host finds it until the next invocation of this instance.
    static RESPONSE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs the module's constructors and tells panics to the caller.
pub fn initialize() {
    #[cfg(target_family = "wasm")]
    // SAFETY:
    // - the host calls `_initialize` once per instance, and nothing else does.
    unsafe {
        __wasm_call_ctors();
    }
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        imports::trap_message(&info.to_string());
        print(info);
    }));
}

/// A block for the host; 0 when there is no memory left.
#[must_use]
pub fn alloc(len: u32, align: u32) -> u32 {
    let Some(layout) = layout(len, align) else { return 0 };
    if layout.size() == 0 {
        return align;
    }
    // SAFETY:
    // - the layout's size is not 0.
    let block = unsafe { allocate(layout) };
    offset(block)
}

/// Frees a block.
///
/// # Safety
/// `ptr` came from [`alloc`] with the same `len` and `align` and is not used any more.
pub unsafe fn free(ptr: u32, len: u32, align: u32) {
    let Some(layout) = layout(len, align) else { return };
    if layout.size() > 0 {
        // SAFETY:
        // - the caller guarantees a block of that layout.
        unsafe { dealloc(pointer(ptr), layout) }
    }
}

/// One invocation.
///
/// # Safety
/// `ptr` is a block of `len` bytes that [`alloc`] made with the alignment [`PAYLOAD_ALIGN`] (anything when
/// `len` is 0); `response_out` one for a [`ResponseRef`]. The payload's block belongs to this call.
pub unsafe fn handle<I>(handler: impl Handler<I>, ptr: u32, len: u32, response_out: u32) -> i32 {
    let payload = if len == 0 {
        Vec::new()
    } else {
        let len = len as usize;
        const { assert!(PAYLOAD_ALIGN == 1, "a Vec<u8> frees its block with alignment 1") };
        // SAFETY:
        // - a block of the global allocator of exactly `len` bytes with a `u8`'s alignment, filled by the
        //   host; nobody else owns it.
        unsafe { Vec::from_raw_parts(pointer(ptr), len, len) }
    };
    let (status, response) = match handler.run(payload) {
        Ok(response) => (ANSWERED, response),
        Err(message) => (FAILED, message.into_bytes()),
    };
    let place = ResponseRef {
        ptr: offset(response.as_ptr().cast_mut()),
        len: u32::try_from(response.len()).expect("linear memory has at most 2^32 bytes"),
    };
    RESPONSE.replace(response);
    // SAFETY:
    // - the caller guarantees an aligned place.
    unsafe { pointer(response_out).cast::<ResponseRef>().write(place) };
    status
}

fn layout(len: u32, align: u32) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(len).ok()?, usize::try_from(align).ok()?).ok()
}

fn pointer(offset: u32) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(offset as usize)
}

/// Offset of a pointer; a handler's own tests on a 64-bit machine never get here.
fn offset(pointer: *mut u8) -> u32 {
    u32::try_from(pointer.expose_provenance()).expect("pointers of a guest have 32 bits")
}
