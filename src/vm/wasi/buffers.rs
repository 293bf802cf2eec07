//! A guest's buffers for reads and writes: arrays of pointers and lengths. Runs in a worker.
//!
//! The kernel reads and writes linear memory directly. Eight buffers need no allocation.

use std::io::{IoSlice, IoSliceMut};

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::errno::Errno;
use smallvec::{SmallVec, smallvec};

use crate::layout::u32_of;
use crate::{WasiErrno, WasiResult};

/// Most buffers of one call, as in the kernel.
const PARTS_MAX: u32 = 1024;
/// Length of an entry: pointer and length.
const PART_LEN: u32 = 8;
/// Buffers without an allocation.
const INLINE: usize = 8;

/// Pointers and lengths of buffers that are not empty.
pub(crate) type Parts = SmallVec<[(u32, u32); INLINE]>;
pub(crate) type Slices<'a> = SmallVec<[IoSlice<'a>; INLINE]>;

/// Reads an array of buffers once.
pub(crate) fn parts(memory: &impl GuestMemory, array: u32, count: u32) -> WasiResult<Parts> {
    if count > PARTS_MAX {
        return Err(WasiErrno::INVAL);
    }
    let bytes = memory.slice(GuestPtr(array), count * PART_LEN)?;
    let parts = bytes.chunks_exact(PART_LEN as usize);
    Ok(parts.map(|part| (u32_of(part, 0), u32_of(part, 4))).filter(|part| part.1 > 0).collect())
}

/// The buffers of a write.
pub(crate) fn gather<'a>(
    memory: &'a impl GuestMemory,
    array: u32,
    count: u32,
) -> WasiResult<Slices<'a>> {
    let slice = |(ptr, len)| Ok(IoSlice::new(memory.slice(GuestPtr(ptr), len)?));
    parts(memory, array, count)?.into_iter().map(slice).collect()
}

/// Calls `read` with the buffers of a read. If they overlap, with the first one only: reads may be short.
pub(crate) fn scatter<T>(
    memory: &mut impl GuestMemory,
    array: u32,
    count: u32,
    read: impl FnOnce(&mut [IoSliceMut<'_>]) -> T,
) -> WasiResult<T> {
    let mut parts = parts(memory, array, count)?;
    for (ptr, len) in &parts {
        memory.slice(GuestPtr(*ptr), *len)?;
    }
    let mut order: SmallVec<[usize; INLINE]> = (0..parts.len()).collect();
    order.sort_unstable_by_key(|index| parts[*index].0);
    let end = |(ptr, len): (u32, u32)| u64::from(ptr) + u64::from(len);
    if order.windows(2).any(|pair| end(parts[pair[0]]) > u64::from(parts[pair[1]].0)) {
        parts.truncate(1);
        order = smallvec![0];
    }
    let mut slices: SmallVec<[IoSliceMut<'_>; INLINE]> =
        parts.iter().map(|_| IoSliceMut::new(&mut [])).collect();
    let (mut rest, mut start) = (memory.bytes_mut(), 0);
    for index in order {
        let (ptr, len) = parts[index];
        let (ptr, len) = (ptr as usize, len as usize);
        let (part, behind) = rest
            .get_mut(ptr - start..)
            .and_then(|rest| rest.split_at_mut_checked(len))
            .ok_or(WasiErrno::FAULT)?;
        slices[index] = IoSliceMut::new(part);
        (rest, start) = (behind, ptr + len);
    }
    Ok(read(&mut slices))
}

/// Calls again after a signal.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// An error of rustix as the kernel's number.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Memory;

    fn filled(memory: &mut Memory, parts: &[(u32, u32)]) -> Vec<usize> {
        let words: Vec<u32> = parts.iter().flat_map(|(ptr, len)| [*ptr, *len]).collect();
        memory.words(0, &words);
        let count = u32::try_from(parts.len()).unwrap();
        scatter(memory, 0, count, |slices| {
            for (byte, slice) in (1..).zip(slices.iter_mut()) {
                slice.fill(byte);
            }
            slices.iter().map(|slice| slice.len()).collect()
        })
        .unwrap()
    }

    #[test]
    fn buffers_keep_the_guests_order() {
        let mut memory = Memory::new();
        let lens = filled(&mut memory, &[(500, 2), (300, 3), (400, 0), (303, 1)]);
        assert_eq!(lens, [2, 3, 1], "without empty ones");
        assert_eq!(memory.bytes()[300..304], [2, 2, 2, 3]);
        assert_eq!(memory.bytes()[500..502], [1, 1]);
        let many: Vec<(u32, u32)> = (0..20).rev().map(|index| (1000 + index, 1)).collect();
        assert_eq!(filled(&mut memory, &many), [1; 20]);
        assert_eq!((memory.bytes()[1000], memory.bytes()[1019]), (20, 1));
    }

    #[test]
    fn of_overlapping_buffers_the_first_is_read() {
        let mut memory = Memory::new();
        assert_eq!(filled(&mut memory, &[(304, 4), (300, 5)]), [4]);
        assert_eq!(filled(&mut memory, &[(300, 5), (300, 5)]), [5]);
        assert_eq!(memory.bytes()[305], 1, "as the first call left it");
    }

    #[test]
    fn buffers_outside_memory_are_faults() {
        let mut memory = Memory::new();
        for (ptr, len) in [(4096, 1), (4095, 2), (u32::MAX, u32::MAX), (0, u32::MAX)] {
            memory.words(0, &[100, 4, ptr, len]);
            assert_eq!(scatter(&mut memory, 0, 2, |_| ()), Err(WasiErrno::FAULT));
            assert!(gather(&memory, 0, 2).is_err());
        }
        assert_eq!(parts(&memory, 4092, 1), Err(WasiErrno::FAULT));
        assert_eq!(parts(&memory, 0, 1025), Err(WasiErrno::INVAL));
    }
}
