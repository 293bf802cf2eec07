//! Random bytes from the kernel.
#![expect(unsafe_code, reason = "getrandom(2) has no safe wrapper in our libraries")]

/// 16 random bytes.
#[must_use]
pub fn bytes16() -> [u8; 16] {
    let mut bytes = [0_u8; 16];
    // SAFETY:
    // - `bytes` is valid for writes of its 16 bytes for the duration of the call.
    let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(read, 16, "getrandom never returns fewer than 256 requested bytes");
    bytes
}
