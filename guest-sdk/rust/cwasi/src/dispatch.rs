//! The host functions for calls in flight. Outside a guest there is no host, as in [`crate::imports`].
#![expect(unsafe_code, reason = "imports are foreign functions")]

use cwasi_abi::{CallOptions, Errno, Outcome, Ready, WAIT_FOR_EVER};

#[cfg(test)]
pub(crate) use host::script;

#[cfg(target_family = "wasm")]
mod host {
    use cwasi_abi::{CallOptions, Ready};

    #[link(wasm_import_module = "cwasi")]
    unsafe extern "C" {
        pub(super) fn dispatch_start(
            target: *const u8,
            target_len: usize,
            payload: *const u8,
            payload_len: usize,
            options: *const CallOptions,
            handle_out: *mut u32,
        ) -> i32;
        pub(super) fn dispatch_wait(
            handles: *const u32,
            count: usize,
            timeout_ms: u32,
            ready_out: *mut Ready,
        ) -> i32;
        pub(super) fn dispatch_forget(handle: u32) -> i32;
    }
}

#[cfg(all(not(target_family = "wasm"), not(test)))]
mod host {
    use cwasi_abi::{CallOptions, Errno, Ready};

    const NO_HOST: i32 = Errno::NotAvailable.code();

    pub(super) unsafe fn dispatch_start(
        _: *const u8,
        _: usize,
        _: *const u8,
        _: usize,
        _: *const CallOptions,
        _: *mut u32,
    ) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn dispatch_wait(_: *const u32, _: usize, _: u32, _: *mut Ready) -> i32 {
        NO_HOST
    }

    pub(super) unsafe fn dispatch_forget(_: u32) -> i32 {
        NO_HOST
    }
}

/// A host that tests write the script of.
#[cfg(all(not(target_family = "wasm"), test))]
mod host {
    use std::cell::RefCell;

    use cwasi_abi::{CallOptions, Errno, Outcome, Ready};

    /// What the host of this thread does, and saw.
    #[derive(Default)]
    pub(crate) struct Script {
        /// Which of the calls that are waited for ends next, counted from the last; 0 when it says nothing.
        pub(crate) from_last: Vec<usize>,
        /// Targets of the calls in flight, by handle.
        pub(crate) open: Vec<(u32, String)>,
        pub(crate) started: u32,
        pub(crate) most_open: usize,
        pub(crate) forgotten: u32,
        /// Key's length, parts and part of every call.
        pub(crate) joins: Vec<(u32, u32, u32)>,
    }

    thread_local! {
        static SCRIPT: RefCell<Script> = RefCell::default();
    }

    /// Reads the script, or changes it.
    pub(crate) fn script<R>(access: impl FnOnce(&mut Script) -> R) -> R {
        SCRIPT.with_borrow_mut(access)
    }

    pub(super) unsafe fn dispatch_start(
        target: *const u8,
        target_len: usize,
        _: *const u8,
        _: usize,
        options: *const CallOptions,
        handle_out: *mut u32,
    ) -> i32 {
        // SAFETY:
        // - the caller passes live values.
        let target = unsafe { std::slice::from_raw_parts(target, target_len) };
        // SAFETY:
        // - as above, or null.
        let options = unsafe { options.as_ref() };
        script(|script| {
            if target == b"full" {
                return Errno::TooManyHandles.code();
            }
            script.joins.extend(options.map(|it| (it.join_key_len, it.parts, it.part)));
            script.started += 1;
            script.open.push((script.started, String::from_utf8_lossy(target).into_owned()));
            script.most_open = script.most_open.max(script.open.len());
            // SAFETY:
            // - the caller passes a live value.
            unsafe { *handle_out = script.started };
            Errno::Ok.code()
        })
    }

    /// A target that is an errno's name ends with it.
    pub(super) unsafe fn dispatch_wait(
        handles: *const u32,
        count: usize,
        _: u32,
        ready_out: *mut Ready,
    ) -> i32 {
        // SAFETY:
        // - the caller passes live values.
        let handles = unsafe { std::slice::from_raw_parts(handles, count) };
        script(|script| {
            let from_last = script.from_last.pop().unwrap_or_default();
            let index = count - 1 - from_last.min(count - 1);
            let known = script.open.iter().position(|(handle, _)| *handle == handles[index]);
            let Some(known) = known else { return Errno::BadHandle.code() };
            let (_, target) = script.open.remove(known);
            let failed = Errno::ALL.into_iter().find(|errno| errno.name() == target);
            let status = failed.map_or(0, |errno| errno.code().unsigned_abs());
            let outcome = Outcome { status, ..Outcome::default() };
            // SAFETY:
            // - the caller passes a live value.
            unsafe {
                *ready_out = Ready { index: u32::try_from(index).unwrap_or(u32::MAX), outcome }
            };
            Errno::Ok.code()
        })
    }

    pub(super) unsafe fn dispatch_forget(handle: u32) -> i32 {
        script(|script| {
            script.open.retain(|(open, _)| *open != handle);
            script.forgotten += 1;
        });
        Errno::Ok.code()
    }
}

fn errno(code: i32) -> Errno {
    // A later host may know more codes than this guest.
    Errno::from_code(code).unwrap_or(Errno::Internal)
}

/// The group of a call that is a part.
pub(crate) struct Join<'a> {
    pub(crate) key: &'a str,
    pub(crate) parts: u32,
    pub(crate) part: u32,
}

/// Starts a call; returns its handle.
pub(crate) fn start(target: &str, payload: &[u8], join: Option<&Join<'_>>) -> Result<u32, Errno> {
    // Linear memory is 32-bit: offsets and lengths fit.
    #[expect(clippy::cast_possible_truncation, reason = "32-bit memory")]
    let options = join.map(|join| CallOptions {
        join_key_ptr: join.key.as_ptr().addr() as u32,
        join_key_len: join.key.len() as u32,
        parts: join.parts,
        part: join.part,
    });
    let mut handle = 0;
    // SAFETY:
    // - all pointers and lengths describe live values, `options` may be null; the host writes `handle` only.
    let code = unsafe {
        host::dispatch_start(
            target.as_ptr(),
            target.len(),
            payload.as_ptr(),
            payload.len(),
            options.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            &raw mut handle,
        )
    };
    match errno(code) {
        Errno::Ok => Ok(handle),
        errno => Err(errno),
    }
}

/// Waits until one of the calls has ended, at most `timeout_ms` milliseconds (`None`: until their deadlines). Returns
/// its index and outcome.
pub(crate) fn wait(handles: &[u32], timeout_ms: Option<u32>) -> Result<(usize, Outcome), Errno> {
    let mut ready = Ready::default();
    let timeout_ms = timeout_ms.unwrap_or(WAIT_FOR_EVER);
    // SAFETY:
    // - all pointers and lengths describe live values; the host writes `ready` only.
    let code =
        unsafe { host::dispatch_wait(handles.as_ptr(), handles.len(), timeout_ms, &raw mut ready) };
    match errno(code) {
        Errno::Ok => Ok((usize::try_from(ready.index).unwrap_or(usize::MAX), ready.outcome)),
        errno => Err(errno),
    }
}

/// Drops a call.
pub(crate) fn forget(handle: u32) {
    // SAFETY:
    // - no memory is passed.
    let _unknown_handle = unsafe { host::dispatch_forget(handle) };
}

/// The errno of an ended call.
pub(crate) fn status(outcome: &Outcome) -> Errno {
    i32::try_from(outcome.status).map_or(Errno::Internal, errno)
}
