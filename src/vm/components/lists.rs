//! Lists of bytes that cross between a component and the host with one copy. Runs in a worker.
//!
//! wasmtime's own types for `list<u8>` copy from and into memory of the host. Those of this file read a segment into
//! the component's memory, and copy what a component returns into a segment. A segment is read, never mapped: its
//! sender may still write to it.
#![expect(unsafe_code, reason = "implements the canonical ABI's traits")]

use std::borrow::Cow;
use std::cell::RefCell;
use std::mem::MaybeUninit;

use cwasi_modes::Payload;
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::segment::{Segment, SegmentError};
use wasmtime::ValRaw;
use wasmtime::component::__internal::{
    CanonicalAbiInfo, InstanceType, InterfaceType, LiftContext, LowerContext,
};
use wasmtime::component::{ComponentType, Lift, Lower, WasmList};

thread_local! {
    /// From which [`keep`] takes segments.
    static POOL: RefCell<Option<SegmentPool>> = const { RefCell::new(None) };
}

/// Has [`keep`] take segments from `pool`, which is the worker's.
pub(super) fn use_pool(pool: Option<SegmentPool>) {
    POOL.set(pool);
}

/// Copies bytes of a component, as [`Payload::copy_of`] does.
///
/// # Errors
/// When memory or descriptors run out.
pub(super) fn keep(bytes: &[u8]) -> Result<Payload, SegmentError> {
    POOL.with_borrow(|pool| Payload::copy_of(bytes, pool.as_ref()))
}

/// A `list<u8>` for a component.
#[derive(Debug)]
pub(super) enum PassedList<'a> {
    Bytes(Cow<'a, [u8]>),
    /// `len` bytes of it, from `offset` on.
    Segment {
        segment: Segment,
        offset: u64,
        len: usize,
    },
}

impl<'a> PassedList<'a> {
    /// All bytes of `payload`.
    pub(super) fn of(payload: &'a Payload) -> Self {
        match payload {
            Payload::Inline(bytes) => Self::Bytes(Cow::Borrowed(bytes)),
            Payload::Segment(segment) => Self::Segment {
                segment: segment.clone(),
                offset: 0,
                // A longer one fits into no component; allocating so much fails.
                len: usize::try_from(segment.len()).unwrap_or(usize::MAX),
            },
        }
    }

    /// The bytes, in memory of the host.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub(super) fn into_bytes(self) -> Result<Vec<u8>, SegmentError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.into_owned()),
            Self::Segment { segment, offset, len } => {
                let mut bytes = vec![0; len];
                segment.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
        }
    }

    /// Allocates in the component and copies: pointer and length there.
    fn copy<T>(&self, cx: &mut LowerContext<'_, T>) -> wasmtime::Result<(usize, usize)> {
        let len = match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Segment { len, .. } => *len,
        };
        let start = cx.realloc(0, 0, 1, len)?;
        let outside = || wasmtime::Error::msg("the allocation lies outside of the memory");
        let end = start.checked_add(len).ok_or_else(outside)?;
        let target = cx.as_slice_mut().get_mut(start..end).ok_or_else(outside)?;
        match self {
            Self::Bytes(bytes) => target.copy_from_slice(bytes),
            Self::Segment { segment, offset, .. } => segment.read_exact_at(target, *offset)?,
        }
        Ok((start, len))
    }
}

// SAFETY:
// - type, size and alignment are those of `[u8]`, of which wasmtime says the same.
unsafe impl ComponentType for PassedList<'_> {
    type Lower = <[u8] as ComponentType>::Lower;

    const ABI: CanonicalAbiInfo = <[u8] as ComponentType>::ABI;

    fn typecheck(ty: &InterfaceType, types: &InstanceType<'_>) -> wasmtime::Result<()> {
        <[u8] as ComponentType>::typecheck(ty, types)
    }
}

// SAFETY:
// - a list is lowered to its pointer and its length, as `[u8]` is; both values are written before `Ok`.
unsafe impl Lower for PassedList<'_> {
    fn linear_lower_to_flat<T>(
        &self,
        cx: &mut LowerContext<'_, T>,
        _ty: InterfaceType,
        dst: &mut MaybeUninit<Self::Lower>,
    ) -> wasmtime::Result<()> {
        let (start, len) = self.copy(cx)?;
        dst.write([start, len].map(|word| ValRaw::u64(word as u64)));
        Ok(())
    }

    fn linear_lower_to_memory<T>(
        &self,
        cx: &mut LowerContext<'_, T>,
        _ty: InterfaceType,
        offset: usize,
    ) -> wasmtime::Result<()> {
        let (start, len) = self.copy(cx)?;
        *cx.get(offset) = u32::try_from(start)?.to_le_bytes();
        *cx.get(offset + size_of::<u32>()) = u32::try_from(len)?.to_le_bytes();
        Ok(())
    }
}

/// A `list<u8>` that a component has returned, copied before the component frees it.
#[derive(Debug)]
pub(super) struct ReturnedList(pub(super) Payload);

impl ReturnedList {
    /// Copies a list, whose length wasmtime has checked.
    fn copy(cx: &LiftContext<'_>, start: u32, list: &WasmList<u8>) -> wasmtime::Result<Self> {
        let outside = || wasmtime::Error::msg("the list lies outside of the memory");
        let from_start = cx.memory().get(usize::try_from(start)?..).ok_or_else(outside)?;
        Ok(Self(keep(from_start.get(..list.len()).ok_or_else(outside)?)?))
    }
}

// SAFETY:
// - type, size and alignment are those of `[u8]`, of which wasmtime says the same.
unsafe impl ComponentType for ReturnedList {
    type Lower = <[u8] as ComponentType>::Lower;

    const ABI: CanonicalAbiInfo = <[u8] as ComponentType>::ABI;

    fn typecheck(ty: &InterfaceType, types: &InstanceType<'_>) -> wasmtime::Result<()> {
        <[u8] as ComponentType>::typecheck(ty, types)
    }
}

// SAFETY:
// - wasmtime's own type checks pointer and length; slices check the pointer again.
unsafe impl Lift for ReturnedList {
    fn linear_lift_from_flat(
        cx: &mut LiftContext<'_>,
        ty: InterfaceType,
        src: &Self::Lower,
    ) -> wasmtime::Result<Self> {
        let list = WasmList::linear_lift_from_flat(cx, ty, src)?;
        Self::copy(cx, src[0].get_u32(), &list)
    }

    fn linear_lift_from_memory(
        cx: &mut LiftContext<'_>,
        ty: InterfaceType,
        bytes: &[u8],
    ) -> wasmtime::Result<Self> {
        let list = WasmList::linear_lift_from_memory(cx, ty, bytes)?;
        let start = bytes.first_chunk().copied().unwrap_or_default();
        Self::copy(cx, u32::from_le_bytes(start), &list)
    }
}
