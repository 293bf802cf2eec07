//! Linear memory for host functions. Runs in a worker.
//!
//! Invariant: every access goes through a checked range.

use cwasi_abi::Errno;

/// An offset in linear memory from a guest, not validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPtr(pub u32);

/// The linear memory of the guest that called the host function.
///
/// The guest waits while the host function runs and linear memories are never shared between threads
/// (the threads proposal is off), so plain slices are sound. They end with the host function.
pub trait GuestMemory {
    /// The whole memory.
    fn bytes(&self) -> &[u8];

    /// The whole memory, for writing.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// `len` bytes at `ptr`.
    ///
    /// # Errors
    /// [`Errno::BadPointer`] if a byte lies outside. With `len` 0 every `ptr` is valid: empty slices have made-up
    /// addresses in some languages.
    fn slice(&self, ptr: GuestPtr, len: u32) -> Result<&[u8], Errno> {
        part(self.bytes(), ptr, len)
    }

    /// `len` bytes at `ptr`, for writing.
    ///
    /// # Errors
    /// As [`Self::slice`].
    fn slice_mut(&mut self, ptr: GuestPtr, len: u32) -> Result<&mut [u8], Errno> {
        let (start, end) = range(ptr, len)?;
        self.bytes_mut().get_mut(start..end).ok_or(Errno::BadPointer)
    }

    /// Copies `bytes` to `ptr`.
    ///
    /// # Errors
    /// As [`Self::slice`].
    fn write(&mut self, ptr: GuestPtr, bytes: &[u8]) -> Result<(), Errno> {
        let len = u32::try_from(bytes.len()).map_err(|_| Errno::BadPointer)?;
        self.slice_mut(ptr, len)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// [`GuestMemory::slice`] of the memory with these bytes.
pub(crate) fn part(bytes: &[u8], ptr: GuestPtr, len: u32) -> Result<&[u8], Errno> {
    let (start, end) = range(ptr, len)?;
    bytes.get(start..end).ok_or(Errno::BadPointer)
}

/// Start and end of a range; the end may be 2^32, one past the largest memory's last byte.
fn range(ptr: GuestPtr, len: u32) -> Result<(usize, usize), Errno> {
    if len == 0 {
        return Ok((0, 0));
    }
    let start = usize::try_from(ptr.0).map_err(|_| Errno::BadPointer)?;
    let len = usize::try_from(len).map_err(|_| Errno::BadPointer)?;
    let end = start.checked_add(len).ok_or(Errno::BadPointer)?;
    Ok((start, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fake::FakeMemory;

    #[test]
    fn edges_of_memory() {
        let memory = FakeMemory::of(64);
        for (ptr, len, valid) in [
            (0, 0, true),
            (0, 64, true),
            (63, 1, true),
            (64, 0, true),
            (65, 0, true),
            (64, 1, false),
            (0, 65, false),
            (1, 64, false),
            (u32::MAX, 0, true),
            (u32::MAX, 1, false),
            (u32::MAX, u32::MAX, false),
            (1, u32::MAX, false),
            (60, u32::MAX - 59, false),
        ] {
            assert_eq!(memory.slice(GuestPtr(ptr), len).is_ok(), valid, "ptr {ptr} len {len}");
        }
    }

    proptest! {
        #[test]
        fn a_range_is_valid_exactly_when_it_fits(size in 0_u32..200, ptr: u32, len: u32, small: bool) {
            let (ptr, len) = if small { (ptr % 256, len % 256) } else { (ptr, len) };
            let mut memory = FakeMemory::of(size as usize);
            let fits = len == 0 || u64::from(ptr) + u64::from(len) <= u64::from(size);
            prop_assert_eq!(memory.slice(GuestPtr(ptr), len).is_ok(), fits);
            prop_assert_eq!(memory.slice_mut(GuestPtr(ptr), len).is_ok(), fits);
        }
    }
}
