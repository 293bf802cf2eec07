//! The imports of ABI version 1, called by hand, and the ways in which a guest can misbehave.
//!
//! Runs inside a guest.

use std::hint::black_box;

use cwasi_abi::{Errno, Outcome};

#[link(wasm_import_module = "cwasi")]
unsafe extern "C" {
    fn request_dispatcher(
        target_ptr: u32,
        target_len: u32,
        payload_ptr: u32,
        payload_len: u32,
        outcome_out: u32,
    ) -> i32;
    #[link_name = "emit"]
    fn emit_import(
        target_ptr: u32,
        target_len: u32,
        payload_ptr: u32,
        payload_len: u32,
        outcome_out: u32,
    ) -> i32;
    fn response_read(handle: u32, ptr: u32, len: u32) -> i32;
    fn context_get(
        key_ptr: u32,
        key_len: u32,
        value_ptr: u32,
        value_capacity: u32,
        value_len_out: u32,
    ) -> i32;
}

/// An offset that lies outside every linear memory of a test.
const WILD: u32 = 0xffff_ff00;
/// Longest context value that a test reads.
const CONTEXT_VALUE_MAX: usize = 256;

fn offset<T>(pointer: *const T) -> u32 {
    u32::try_from(pointer.addr()).expect("guest pointers have 32 bits")
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("guest lengths have 32 bits")
}

/// Calls `target`.
///
/// # Errors
/// The errno and its message.
pub fn call(target: &str, payload: &[u8]) -> Result<Vec<u8>, (Errno, String)> {
    let mut outcome = Outcome::default();
    // SAFETY:
    // - Every pointer comes from a live value of the length given; the host writes `outcome` only.
    let code = unsafe {
        request_dispatcher(
            offset(target.as_ptr()),
            length(target.as_bytes()),
            offset(payload.as_ptr()),
            length(payload),
            offset(&raw mut outcome),
        )
    };
    received(code, outcome)
}

/// Leaves a message.
pub fn emit(target: &str, payload: &[u8]) -> Result<(), (Errno, String)> {
    let mut outcome = Outcome::default();
    // SAFETY:
    // - Every pointer comes from a live value of the length given; the host writes `outcome` only.
    let code = unsafe {
        emit_import(
            offset(target.as_ptr()),
            length(target.as_bytes()),
            offset(payload.as_ptr()),
            length(payload),
            offset(&raw mut outcome),
        )
    };
    received(code, outcome).map(drop)
}

fn received(code: i32, outcome: Outcome) -> Result<Vec<u8>, (Errno, String)> {
    let errno = Errno::from_code(code).unwrap_or(Errno::Internal);
    // Allocates and copies after the call: where a nested call of the engine would break the caller.
    let mut bytes = vec![0; outcome.length as usize];
    if outcome.handle != 0 {
        // SAFETY:
        // - `bytes` is a live allocation of exactly `outcome.length` bytes.
        let code =
            unsafe { response_read(outcome.handle, offset(bytes.as_mut_ptr()), outcome.length) };
        assert_eq!(code, 0, "a handle that was just given can be read");
    }
    if errno == Errno::Ok {
        return Ok(bytes);
    }
    Err((errno, String::from_utf8_lossy(&bytes).into_owned()))
}

/// A value of the invocation's context.
///
/// # Errors
/// The errno.
pub fn context(key: &str) -> Result<String, Errno> {
    let mut value = [0_u8; CONTEXT_VALUE_MAX];
    let mut value_len = 0_u32;
    // SAFETY:
    // - Every pointer comes from a live value of the length given.
    let code = unsafe {
        context_get(
            offset(key.as_ptr()),
            length(key.as_bytes()),
            offset(value.as_mut_ptr()),
            length(&value),
            offset(&raw mut value_len),
        )
    };
    match Errno::from_code(code) {
        Some(Errno::Ok) => Ok(String::from_utf8_lossy(&value[..value_len as usize]).into_owned()),
        other => Err(other.unwrap_or(Errno::Internal)),
    }
}

/// `len` bytes in which every offset has another value than its neighbours, so that a shift shows.
#[must_use]
pub fn pattern(len: usize) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "only the low byte is wanted")]
    (0..len).map(|index| (index.wrapping_mul(31) ^ (index >> 8)) as u8).collect()
}

/// Runs a misbehaviour by name; returns when there is none of that name.
pub fn misbehave(name: &str, argument: &str) {
    match name {
        "trap" => trap(),
        "oob" => out_of_bounds(),
        "loop" => spin(),
        "recurse" => {
            black_box(recurse(black_box(1)));
        }
        "block" => std::thread::sleep(std::time::Duration::from_secs(3600)),
        "sleep" => {
            let ms = argument.parse().expect("a number of milliseconds");
            std::thread::sleep(std::time::Duration::from_millis(ms));
        }
        "exit" => std::process::exit(argument.parse().unwrap_or(0)),
        _ => {}
    }
}

fn trap() -> ! {
    core::arch::wasm32::unreachable()
}

fn out_of_bounds() {
    let wild = std::ptr::without_provenance::<u8>(WILD as usize);
    // SAFETY:
    // - None: the engine turns this read into a trap, which is what the test wants.
    black_box(unsafe { wild.read_volatile() });
}

fn spin() {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

#[expect(unconditional_recursion, reason = "a guest without an end is what the test wants")]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    recurse(black_box(depth + 1)) + frame[3]
}
