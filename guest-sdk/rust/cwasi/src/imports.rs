//! The host functions (guest ABI version 1).
//!
//! Outside a guest, for example in a handler's unit tests, there is no host, and every function returns
//! `NotAvailable`.
#![expect(unsafe_code, reason = "imports are foreign functions")]

use cwasi_abi::{Errno, Outcome};

use crate::block::{self, Block};

#[cfg(target_family = "wasm")]
mod host {
    #[link(wasm_import_module = "cwasi")]
    unsafe extern "C" {
        pub(super) fn request_dispatcher(
            target: *const u8,
            target_len: usize,
            payload: *const u8,
            payload_len: usize,
            outcome_out: *mut cwasi_abi::Outcome,
        ) -> i32;
        pub(super) fn emit(
            target: *const u8,
            target_len: usize,
            payload: *const u8,
            payload_len: usize,
            outcome_out: *mut cwasi_abi::Outcome,
        ) -> i32;
        pub(super) fn response_read(handle: u32, ptr: *mut u8, len: usize) -> i32;
        pub(super) fn context_get(
            key: *const u8,
            key_len: usize,
            value: *mut u8,
            value_capacity: usize,
            value_len_out: *mut u32,
        ) -> i32;
        pub(super) fn context_set(
            key: *const u8,
            key_len: usize,
            value: *const u8,
            value_len: usize,
        ) -> i32;
        pub(super) fn context_add(
            key: *const u8,
            key_len: usize,
            value: *const u8,
            value_len: usize,
        ) -> i32;
        pub(super) fn log(level: u32, message: *const u8, message_len: usize) -> i32;
        pub(super) fn trap_message(message: *const u8, message_len: usize) -> i32;
        pub(super) fn link_offer(bytes: *const u8, len: usize) -> i32;
        pub(super) fn link_read(index: u32, to: *mut u8, capacity: usize, len_out: *mut u32)
        -> i32;
        pub(super) fn link_return(bytes: *const u8, len: usize) -> i32;
        pub(super) fn link_result(to: *mut u8, capacity: usize, len_out: *mut u32) -> i32;
        pub(super) fn region_share(ptr: *mut u8, len: usize) -> i32;
        pub(super) fn region_seal(ptr: *mut u8, len: usize) -> i32;
        pub(super) fn region_release(ptr: *mut u8, len: usize) -> i32;
    }
}

#[cfg(not(target_family = "wasm"))]
mod host {
    use cwasi_abi::{Errno, Outcome};

    const NO_HOST: i32 = Errno::NotAvailable.code();

    pub(super) unsafe fn request_dispatcher(
        _: *const u8,
        _: usize,
        _: *const u8,
        _: usize,
        _: *mut Outcome,
    ) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn emit(
        _: *const u8,
        _: usize,
        _: *const u8,
        _: usize,
        _: *mut Outcome,
    ) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn response_read(_: u32, _: *mut u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn context_get(
        _: *const u8,
        _: usize,
        _: *mut u8,
        _: usize,
        _: *mut u32,
    ) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn context_set(_: *const u8, _: usize, _: *const u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn context_add(_: *const u8, _: usize, _: *const u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn log(_: u32, _: *const u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn trap_message(_: *const u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn link_offer(_: *const u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn link_read(_: u32, _: *mut u8, _: usize, _: *mut u32) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn link_return(_: *const u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn link_result(_: *mut u8, _: usize, _: *mut u32) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn region_share(_: *mut u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn region_seal(_: *mut u8, _: usize) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn region_release(_: *mut u8, _: usize) -> i32 {
        NO_HOST
    }
}

fn errno(code: i32) -> Errno {
    // A later host may know more codes than this guest.
    Errno::from_code(code).unwrap_or(Errno::Internal)
}

/// Calls `target`; the host keeps the response under the outcome's handle.
pub(crate) fn request_dispatcher(target: &str, payload: &[u8]) -> (Errno, Outcome) {
    let mut outcome = Outcome::default();
    // SAFETY:
    // - all pointers and lengths describe live values; the host writes `outcome` only.
    let code = unsafe {
        host::request_dispatcher(
            target.as_ptr(),
            target.len(),
            payload.as_ptr(),
            payload.len(),
            &raw mut outcome,
        )
    };
    (errno(code), outcome)
}

/// Queues a message for `target`; after an error, the host keeps the text under the outcome's handle.
pub(crate) fn emit(target: &str, payload: &[u8]) -> (Errno, Outcome) {
    let mut outcome = Outcome::default();
    // SAFETY:
    // - all pointers and lengths describe live values; the host writes `outcome` only.
    let code = unsafe {
        host::emit(target.as_ptr(), target.len(), payload.as_ptr(), payload.len(), &raw mut outcome)
    };
    (errno(code), outcome)
}

/// Appends the `length` bytes of `handle` to `buffer`, which has room for them, and frees the handle.
pub(crate) fn response_read(handle: u32, length: usize, buffer: &mut Vec<u8>) -> Errno {
    let room = buffer.spare_capacity_mut();
    assert!(room.len() >= length, "the caller reserved the room");
    // SAFETY:
    // - the host writes at most `length` bytes, which the assertion found room for.
    let errno = errno(unsafe { host::response_read(handle, room.as_mut_ptr().cast(), length) });
    if errno == Errno::Ok {
        // SAFETY:
        // - the host wrote all `length` bytes: that is the length that it announced for this handle.
        unsafe { buffer.set_len(buffer.len() + length) };
    }
    errno
}

/// Reads the `length` bytes of `handle` into a block of their own, where they may be mapped, and frees the handle.
/// `None` if no memory is left.
pub(crate) fn response_block(handle: u32, length: usize) -> Option<Result<Block, Errno>> {
    let layout = block::layout(length)?;
    let read = |start: *mut u8| {
        // SAFETY:
        // - the host writes inside the block only, which no other code refers to.
        match errno(unsafe { host::response_read(handle, start, layout.size()) }) {
            Errno::Ok => Ok(()),
            errno => Err(errno),
        }
    };
    // SAFETY:
    // - the host wrote all `length` bytes: that is the length that it announced for this handle.
    // - `layout` has room for them and one byte at least.
    let block = unsafe { Block::filled(length, layout, read) }?;
    Some(block.map(|mut block| {
        block.goes_on();
        block
    }))
}

/// Frees a handle unread.
pub(crate) fn response_drop(handle: u32) {
    // SAFETY:
    // - no memory is passed.
    let _unknown_handle = unsafe { host::response_read(handle, std::ptr::null_mut(), 0) };
}

/// Writes a context value into `buffer` and returns its length. A longer value is not written.
pub(crate) fn context_get(key: &str, buffer: &mut [u8]) -> (Errno, usize) {
    let mut len = 0_u32;
    // SAFETY:
    // - all pointers and lengths describe live values; the host writes `buffer` and `len` only.
    let code = unsafe {
        host::context_get(key.as_ptr(), key.len(), buffer.as_mut_ptr(), buffer.len(), &raw mut len)
    };
    (errno(code), usize::try_from(len).unwrap_or(usize::MAX))
}

/// Sets a context value.
pub(crate) fn context_set(key: &str, value: &[u8]) -> Errno {
    // SAFETY:
    // - all pointers and lengths describe live values.
    errno(unsafe { host::context_set(key.as_ptr(), key.len(), value.as_ptr(), value.len()) })
}

/// Adds a context value beside others of its key.
pub(crate) fn context_add(key: &str, value: &[u8]) -> Errno {
    // SAFETY:
    // - all pointers and lengths describe live values.
    errno(unsafe { host::context_add(key.as_ptr(), key.len(), value.as_ptr(), value.len()) })
}

/// One log line.
pub(crate) fn log(level: u32, message: &str) {
    // SAFETY:
    // - pointer and length describe a live value.
    let _nobody_to_tell = unsafe { host::log(level, message.as_ptr(), message.len()) };
}

/// Explains the trap that follows.
pub(crate) fn trap_message(message: &str) {
    // SAFETY:
    // - pointer and length describe a live value.
    let _nobody_to_tell = unsafe { host::trap_message(message.as_ptr(), message.len()) };
}

/// Makes whole pages a region; their bytes become zero.
///
/// # Safety
/// The caller owns the `len` bytes at `start`, and no code refers to them.
pub(crate) unsafe fn region_share(start: *mut u8, len: usize) -> Errno {
    // SAFETY:
    // - the host replaces these bytes only.
    errno(unsafe { host::region_share(start, len) })
}

/// Seals the first `len` bytes of a region; the others may become zero. Also seals a mapped payload or response that
/// is to be sent on.
pub(crate) fn region_seal(block: &mut Block, len: usize) -> Errno {
    // SAFETY:
    // - pointer and length lie inside the block, which is borrowed uniquely.
    errno(unsafe { host::region_seal(block.as_mut_ptr(), len) })
}

/// Makes pages that the host backs ordinary memory; their bytes become zero.
///
/// # Safety
/// The caller owns the `len` bytes at `start`, and no code refers to them.
pub(crate) unsafe fn region_release(start: *mut u8, len: usize) -> Errno {
    // SAFETY:
    // - the host replaces these bytes only.
    errno(unsafe { host::region_release(start, len) })
}

/// Adds an argument to the next linked call; `bytes` must not change until it has returned.
pub(crate) fn link_offer(bytes: &[u8]) -> Errno {
    // SAFETY:
    // - pointer and length describe a live value, which the host only reads.
    errno(unsafe { host::link_offer(bytes.as_ptr(), bytes.len()) })
}

/// Sets the running linked call's result; the bytes stay until the next call.
pub(crate) fn link_return(bytes: &[u8]) -> Errno {
    // SAFETY:
    // - pointer and length describe a live value, which the host only reads.
    errno(unsafe { host::link_return(bytes.as_ptr(), bytes.len()) })
}

/// Reads an argument of the running linked call.
pub(crate) fn link_read(index: u32) -> Result<Vec<u8>, Errno> {
    // SAFETY:
    // - `fetch` passes a buffer of that capacity and a place for the length.
    fetch(|to, capacity, len| unsafe { host::link_read(index, to, capacity, len) })
}

/// Reads the last linked call's result.
pub(crate) fn link_result() -> Result<Vec<u8>, Errno> {
    // SAFETY:
    // - `fetch` passes a buffer of that capacity and a place for the length.
    fetch(|to, capacity, len| unsafe { host::link_result(to, capacity, len) })
}

/// Asks for the length, makes room and asks for the bytes.
fn fetch(ask: impl Fn(*mut u8, usize, *mut u32) -> i32) -> Result<Vec<u8>, Errno> {
    let mut len = 0_u32;
    match errno(ask(std::ptr::null_mut(), 0, &raw mut len)) {
        Errno::Ok => return Ok(Vec::new()),
        Errno::BufferTooSmall => {}
        other => return Err(other),
    }
    let wanted = usize::try_from(len).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(wanted).map_err(|_no_memory| Errno::PayloadTooLarge)?;
    match errno(ask(bytes.as_mut_ptr(), wanted, &raw mut len)) {
        Errno::Ok => {
            // SAFETY:
            // - the host wrote all `wanted` bytes: that is the length that it announced, and there is room.
            unsafe { bytes.set_len(wanted) };
            Ok(bytes)
        }
        other => Err(other),
    }
}
