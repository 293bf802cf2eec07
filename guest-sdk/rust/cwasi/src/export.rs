//! Exports of `#[cwasi::handler]` for the host. Only the macro uses this module.
//!
//! The module is a reactor: `_initialize` runs once per instance, before anything else. It calls `__wasm_call_ctors`,
//! which also tells the linker not to wrap every export of the `cdylib` in constructors and destructors.
//!
//! It exports no `cwasi_free`: the handler owns the payload's block and frees it. The response's pointer is in a static
//! of the module, and so is a short payload where the host puts it there.
#![expect(unsafe_code, reason = "memory that the host fills")]

use std::alloc::{Layout, alloc as allocate};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic;
use std::ptr::NonNull;

use cwasi_abi::{PAYLOAD_ALIGN, PAYLOAD_BUFFER_LEN, REGION_PAGE, ResponseRef, log_level};

use crate::block::Block;
use crate::handler::{Body, Handler, Payload};
use crate::imports;

/// Memory for the pointer and length of each invocation's response.
#[derive(Debug)]
#[repr(transparent)]
pub struct ResponsePlace(UnsafeCell<ResponseRef>);

// SAFETY:
// - a guest has one thread; only its address is used here.
unsafe impl Sync for ResponsePlace {}

impl ResponsePlace {
    /// An empty place.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new(ResponseRef { ptr: 0, len: 0 }))
    }
}

impl Default for ResponsePlace {
    fn default() -> Self {
        Self::new()
    }
}

/// Memory for a short payload.
#[derive(Debug)]
#[repr(transparent)]
pub struct PayloadBuffer(UnsafeCell<[u8; PAYLOAD_BUFFER_LEN]>);

// SAFETY:
// - a guest has one thread: its running handler reads this, and the host writes between two calls.
unsafe impl Sync for PayloadBuffer {}

impl PayloadBuffer {
    /// A buffer of zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; PAYLOAD_BUFFER_LEN]))
    }

    /// The payload, if the host put it here.
    ///
    /// # Safety
    /// The bytes do not change as long as the result is used.
    unsafe fn payload(&'static self, ptr: u32, len: u32) -> Option<&'static [u8]> {
        let start = self.0.get().cast::<u8>();
        let is_here = pointer(ptr) == start && (1..=PAYLOAD_BUFFER_LEN).contains(&(len as usize));
        // SAFETY:
        // - ours, initialized and long enough; nothing borrows it mutably, and it does not change, says the caller.
        is_here.then(|| unsafe { std::slice::from_raw_parts(start, len as usize) })
    }
}

impl Default for PayloadBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// Status of an invocation that ended with a response.
const ANSWERED: i32 = 0;
/// Status of an invocation that ended with an error.
const FAILED: i32 = 1;

#[cfg(target_family = "wasm")]
unsafe extern "C" {
    fn __wasm_call_ctors();
}

thread_local! {
    /// The response, kept until the next invocation of this instance.
    static RESPONSE: RefCell<Body> = const { RefCell::new(Body::Bytes(Vec::new())) };
    /// The last block that the host asked for: the payload's block when a handler runs.
    static LAST: Cell<Option<(u32, Layout)>> = const { Cell::new(None) };
}

/// Runs the module's constructors, and reports panics to the caller.
pub fn initialize() {
    #[cfg(target_family = "wasm")]
    // SAFETY:
    // - the host calls `_initialize` once per instance, and nothing else does.
    unsafe {
        __wasm_call_ctors();
    }
    panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        imports::trap_message(&text);
        // Not printed: that would wait for a reader of stderr.
        imports::log(log_level::ERROR, &text);
    }));
}

/// Allocates a block for the host; 0 = out of memory.
#[must_use]
pub fn alloc<I, H: Handler<I>>(_: H, len: u32, align: u32) -> u32 {
    let Some(layout) = layout::<I, H>(len, align) else { return 0 };
    if layout.size() == 0 {
        return align;
    }
    // SAFETY:
    // - the layout's size is not 0.
    let block = offset(unsafe { allocate(layout) });
    LAST.set(Some((block, layout)));
    block
}

/// Runs one invocation.
///
/// # Safety
/// `ptr` is `buffer`, or the block that [`alloc`] made last, `len` bytes of it filled by the host (anything when `len`
/// is 0); `response_out` is a place for a [`ResponseRef`]. The payload's bytes belong to this call.
pub unsafe fn handle<I>(
    handler: impl Handler<I>,
    ptr: u32,
    len: u32,
    response_out: u32,
    buffer: &'static PayloadBuffer,
) -> i32 {
    // SAFETY:
    // - the host fills it between two calls only.
    let buffered = unsafe { buffer.payload(ptr, len) };
    let payload = match buffered {
        Some(bytes) => Payload::buffered(bytes),
        // SAFETY:
        // - the last block, says the caller.
        None => unsafe { owned(ptr, len) },
    };
    let (status, response) = match handler.run(payload) {
        Ok(response) => (ANSWERED, response),
        Err(message) => (FAILED, Body::Bytes(message.into_bytes())),
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

/// The payload in the last block of [`alloc`].
///
/// # Safety
/// If `ptr` is that block, the host has filled `len` bytes of it.
unsafe fn owned(ptr: u32, len: u32) -> Payload {
    let (Some((last, layout)), Some(start)) = (LAST.take(), NonNull::new(pointer(ptr))) else {
        return Payload::default();
    };
    if last != ptr || len == 0 {
        return Payload::default();
    }
    // SAFETY:
    // - a block of the global allocator of this layout, the first `len` bytes filled by the host; no other code owns
    //   it.
    let mut block = unsafe { Block::from_raw(start, layout, len as usize) };
    block.goes_on();
    Payload::new(block)
}

/// The layout of a block for the host. For a handler that takes a vector, it is a vector's: the host then copies the
/// payload into it once.
fn layout<I, H: Handler<I>>(len: u32, align: u32) -> Option<Layout> {
    let align = if H::OWNS && align >= REGION_PAGE { PAYLOAD_ALIGN } else { align };
    Layout::from_size_align(usize::try_from(len).ok()?, usize::try_from(align).ok()?).ok()
}

fn pointer(offset: u32) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(offset as usize)
}

/// Offset of a pointer. A handler's own tests on a 64-bit machine do not call it.
fn offset(pointer: *mut u8) -> u32 {
    u32::try_from(pointer.expose_provenance()).expect("pointers of a guest have 32 bits")
}
