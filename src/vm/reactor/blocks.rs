//! Blocks of `cwasi_alloc`: for a guest's payload and for its response's pointer. Runs in a worker.
//!
//! Invariant (docs/abi.md): the host owns a block until the `cwasi_handle` that it was allocated for returns. Then
//! the host returns it with `cwasi_free`, or, to a module without that, by never using it again.

use cwasi_abi::{HUGE_PAGE, PAYLOAD_ALIGN, REGION_PAGE, ResponseRef, export};
use cwasi_host_functions::Host;

use super::preallocation::is_paged;
use super::{HandlerFault, Preallocation, trap};
use crate::engine::{GuestStop, Instance, VmError};

/// The host's blocks in an instance, from one invocation to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct InstanceBlocks {
    response_out: Option<ResponseOut>,
    /// For the next payload, if it fits. Allocated last.
    preallocated: Option<Block>,
    /// The payload of a running handler.
    payload: Option<Block>,
    /// True after a handler ran in this instance.
    used: bool,
    /// Length in bytes of the last payload's block.
    needed: u64,
    /// Length in bytes of a block for which the guest had no memory.
    unallocated: Option<u64>,
}

impl InstanceBlocks {
    /// Length in bytes of the last payload's block.
    #[must_use]
    pub const fn needed(&self) -> u64 {
        self.needed
    }

    /// True after a handler ran in this instance.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.used
    }

    /// Length in bytes of a block for which the guest had no memory. A new instance, or this one without the
    /// preallocated block, may have it. The handler has not run.
    #[must_use]
    pub fn needs_fresh_instance(&self) -> Option<u64> {
        self.unallocated.filter(|_| self.preallocated.is_some() || self.used)
    }

    pub(super) const fn allocation_failed(&mut self, length: u64) {
        self.unallocated = Some(length);
    }

    pub(super) const fn use_it(&mut self) {
        (self.used, self.unallocated) = (true, None);
    }
}

/// A checked range of linear memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedRange {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl CheckedRange {
    const fn len(self) -> u64 {
        (self.end - self.start) as u64
    }

    /// Its first `len` bytes, or all of it.
    pub(super) fn first(self, len: u64) -> Self {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Self { start: self.start, end: self.end.min(self.start.saturating_add(len)) }
    }

    /// Offset and length, as guests pass them.
    pub(super) fn span(self) -> (u32, u32) {
        let part = |at: usize| u32::try_from(at).expect("offsets were checked against 4 GiB");
        (part(self.start), part(self.end - self.start))
    }
}

/// Result and alignment of a `cwasi_alloc` call.
#[derive(Clone, Copy, Debug)]
struct Block {
    range: CheckedRange,
    align: u32,
}

/// The memory into which a guest writes the reference to its response.
#[derive(Clone, Copy, Debug)]
struct ResponseOut {
    range: CheckedRange,
    /// `None`: the guest provides it.
    block: Option<Block>,
}

/// Prepares an instance before its first request, which also loads the guest's stack and allocator into memory.
/// `ahead` is the expected length of the payload's block.
///
/// # Errors
/// When the guest stopped; the instance is then useless.
pub fn prepare<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    ahead: Preallocation,
    host: &mut Host,
) -> Result<(), VmError> {
    reserve(instance, kept, ahead.len(), host).map(|_has_room| ())
}

/// Allocates a block for a payload of `length` bytes, if that is not 0. Returns false when the guest has no memory for
/// it.
///
/// # Errors
/// As [`prepare`].
pub fn reserve<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    length: u64,
    host: &mut Host,
) -> Result<bool, VmError> {
    if instance.payload_handler().is_some() {
        return Ok(true);
    }
    let asked = response_out(instance, kept, host).and_then(|_| {
        if length > 0 {
            kept.preallocated = Some(block(instance, length, is_paged(length), host)?);
        }
        Ok(())
    });
    match asked {
        Ok(()) => Ok(true),
        // The request will report missing memory, or need less.
        Err(HandlerFault::NoMemory { .. }) => Ok(false),
        Err(HandlerFault::Stopped(stop)) => Err(stopped(export::ALLOC, stop)),
    }
}

/// Returns the guest's blocks, after its response was taken.
///
/// # Errors
/// As [`prepare`].
pub fn give_back<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    host: &mut Host,
) -> Result<(), VmError> {
    instance.unmap();
    let InstanceBlocks { payload, response_out, used, needed, .. } = std::mem::take(kept);
    (kept.used, kept.needed) = (used, needed);
    if !instance.exports(export::FREE) {
        return Ok(());
    }
    for Block { range, align } in
        [payload, response_out.and_then(|out| out.block)].into_iter().flatten()
    {
        let (ptr, len) = range.span();
        let params = [ptr, len, align].map(u32::cast_signed);
        instance.call(export::FREE, &params, host).map_err(|stop| stopped(export::FREE, stop))?;
    }
    Ok(())
}

fn stopped(export: &str, stop: GuestStop) -> VmError {
    let reason = match stop {
        GuestStop::Trapped(trap) => trap.to_string(),
        GuestStop::Exited(code) => format!("`{export}` exited with code {code}"),
    };
    VmError::Initialize { reason }
}

/// The block for the response's pointer.
pub(super) fn response_out<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    host: &mut Host,
) -> Result<CheckedRange, HandlerFault> {
    if let Some(out) = kept.response_out {
        return Ok(out.range);
    }
    let length = ResponseRef::SIZE as u64;
    let out = match instance.address(export::RESPONSE) {
        Some(ptr) => {
            let range = checked(instance.memory(), ptr, length)
                .ok_or_else(|| outside(instance, export::RESPONSE, ptr, length))?;
            ResponseOut { range, block: None }
        }
        None => {
            let block = alloc(instance, length, ResponseRef::ALIGN, host)?;
            ResponseOut { range: block.range, block: Some(block) }
        }
    };
    kept.response_out = Some(out);
    Ok(out.range)
}

/// A block for `length` bytes, of whole pages if it is `paged`: the preallocated one if it is long enough.
pub(super) fn payload_block<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    length: u64,
    paged: bool,
    host: &mut Host,
) -> Result<CheckedRange, HandlerFault> {
    kept.needed = length;
    let ahead = kept.preallocated.take_if(|block| length <= block.range.len());
    let block = match ahead {
        Some(block) => block,
        None => block(instance, length, paged, host)?,
    };
    kept.payload = Some(block);
    Ok(block.range)
}

fn block<I: Instance>(
    instance: &mut I,
    length: u64,
    paged: bool,
    host: &mut Host,
) -> Result<Block, HandlerFault> {
    if paged {
        alloc_pages(instance, length, host)
    } else {
        alloc(instance, length, PAYLOAD_ALIGN as usize, host)
    }
}

/// Whole pages for `length` bytes, aligned for huge pages if that helps; otherwise any block of that length.
fn alloc_pages<I: Instance>(
    instance: &mut I,
    length: u64,
    host: &mut Host,
) -> Result<Block, HandlerFault> {
    let pages = length.next_multiple_of(u64::from(REGION_PAGE));
    let huge = length >= u64::from(HUGE_PAGE) && instance.aligns_huge_pages();
    let tries = [
        huge.then_some((pages, HUGE_PAGE)),
        Some((pages, REGION_PAGE)),
        Some((length, PAYLOAD_ALIGN)),
    ];
    let mut last = Err(HandlerFault::NoMemory { length });
    for (length, align) in tries.into_iter().flatten() {
        last = alloc(instance, length, align as usize, host);
        if !matches!(last, Err(HandlerFault::NoMemory { .. })) {
            break;
        }
    }
    last
}

fn alloc<I: Instance>(
    instance: &mut I,
    length: u64,
    align: usize,
    host: &mut Host,
) -> Result<Block, HandlerFault> {
    let no_memory = || HandlerFault::NoMemory { length };
    let wanted = u32::try_from(length).map_err(|_| no_memory())?;
    let align = u32::try_from(align).expect("at most a huge page");
    let params = [wanted, align].map(u32::cast_signed);
    let ptr = instance.call(export::ALLOC, &params, host)?.unwrap_or(0).cast_unsigned();
    if ptr == 0 {
        return Err(no_memory());
    }
    let range = checked(instance.memory(), ptr, length)
        .ok_or_else(|| outside(instance, export::ALLOC, ptr, length))?;
    Ok(Block { range, align })
}

/// The range if it lies in `memory`; an empty range is always valid.
pub(super) fn checked(memory: &[u8], ptr: u32, length: u64) -> Option<CheckedRange> {
    if length == 0 {
        return Some(CheckedRange { start: 0, end: 0 });
    }
    let start = usize::try_from(ptr).ok()?;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    (end <= memory.len()).then_some(CheckedRange { start, end })
}

/// An offset of linear memory as the engine passes it.
pub(super) fn offset(at: usize) -> i32 {
    u32::try_from(at).expect("offsets were checked against a memory of at most 4 GiB").cast_signed()
}

pub(super) fn outside<I: Instance>(
    instance: &I,
    export: &str,
    ptr: u32,
    length: u64,
) -> HandlerFault {
    let size = instance.memory().len();
    trap(
        export,
        format!(
            "it returned {length} bytes at {ptr:#x}, outside its linear memory of {size} bytes"
        ),
    )
}
