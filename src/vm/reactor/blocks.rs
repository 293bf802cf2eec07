//! The blocks that a guest is asked for (`cwasi_alloc`): for its payload, and for the place where it tells its response.
//!
//! Who owns what, in one rule (docs/abi.md): a block is the host's until the `cwasi_handle` returns that it was asked for.
//! Then the host gives it back by `cwasi_free`, or, to a module without that, by never using it again.

use cwasi_abi::{HUGE_PAGE, PAYLOAD_ALIGN, REGION_PAGE, ResponseRef, export};
use cwasi_host_functions::Host;

use super::place::is_paged;
use super::{Ahead, Fault, trap};
use crate::vm::engine::{Instance, Stop, VmError};

/// What the host holds in an instance from one invocation to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept {
    response_out: Option<ResponseOut>,
    /// Where the next payload goes, if it fits. Asked for last.
    place: Option<Block>,
    /// The block of the payload that a handler has.
    payload: Option<Block>,
    /// A handler ran in this instance.
    used: bool,
    /// How long a block the last payload needed, in bytes.
    needed: u64,
    /// How long a block the guest had no memory for, in bytes.
    lacking: Option<u64>,
}

impl Kept {
    /// How long a block the last payload needed, in bytes.
    #[must_use]
    pub const fn needed(&self) -> u64 {
        self.needed
    }

    /// A handler ran in this instance.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.used
    }

    /// How long a block the guest had no memory for, though a fresh instance might have, or the same one without the
    /// place that was asked for ahead. The handler has not run.
    #[must_use]
    pub fn crowded_out(&self) -> Option<u64> {
        self.lacking.filter(|_| self.place.is_some() || self.used)
    }

    pub(super) const fn lack(&mut self, length: u64) {
        self.lacking = Some(length);
    }

    pub(super) const fn use_it(&mut self) {
        (self.used, self.lacking) = (true, None);
    }
}

/// A range of linear memory that was checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Range {
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

/// What `cwasi_alloc` answered, and the alignment that it was asked for.
#[derive(Clone, Copy, Debug)]
struct Block {
    range: Range,
    align: u32,
}

/// Where a guest tells its response.
#[derive(Clone, Copy, Debug)]
struct ResponseOut {
    range: Range,
    /// `None`: the guest has a place of its own for it.
    block: Option<Block>,
}

/// Does ahead of an instance's first request what does not depend on it, which also brings the guest's stack and
/// allocator into memory. `ahead` says how long a place the request's payload will probably need.
///
/// # Errors
/// When the guest stopped instead; then the instance is of no use.
pub fn prepare<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    ahead: Ahead,
    host: &mut Host,
) -> Result<(), VmError> {
    reserve(instance, kept, ahead.len(), host).map(|_has_room| ())
}

/// Asks the guest for a place for a payload of `length` bytes, if that is not 0; false when it has no memory for it.
///
/// # Errors
/// As [`prepare`].
pub fn reserve<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    length: u64,
    host: &mut Host,
) -> Result<bool, VmError> {
    let asked = response_out(instance, kept, host).and_then(|_| {
        if length > 0 {
            kept.place = Some(block(instance, length, is_paged(length), host)?);
        }
        Ok(())
    });
    match asked {
        Ok(()) => Ok(true),
        // Without memory for it now, the request will say so, or need less.
        Err(Fault::NoMemory { .. }) => Ok(false),
        Err(Fault::Stopped(stop)) => Err(stopped(export::ALLOC, stop)),
    }
}

/// Gives the guest its blocks back, once its response was taken.
///
/// # Errors
/// As [`prepare`].
pub fn give_back<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    host: &mut Host,
) -> Result<(), VmError> {
    instance.unshow();
    let Kept { payload, response_out, used, needed, .. } = std::mem::take(kept);
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

fn stopped(export: &str, stop: Stop) -> VmError {
    let reason = match stop {
        Stop::Trapped(trap) => trap.to_string(),
        Stop::Exited(code) => format!("`{export}` exited with code {code}"),
    };
    VmError::Initialize { reason }
}

/// Where the guest tells its response.
pub(super) fn response_out<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    host: &mut Host,
) -> Result<Range, Fault> {
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

/// A block for `length` bytes, of whole pages when it is `paged`: the one that was asked for ahead, if it is long enough.
pub(super) fn place<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    length: u64,
    paged: bool,
    host: &mut Host,
) -> Result<Range, Fault> {
    kept.needed = length;
    let ahead = kept.place.take_if(|place| length <= place.range.len());
    let block = match ahead {
        Some(block) => block,
        None => block(instance, length, paged, host)?,
    };
    kept.payload = Some(block);
    Ok(block.range)
}

/// A block that was not asked for before.
fn block<I: Instance>(
    instance: &mut I,
    length: u64,
    paged: bool,
    host: &mut Host,
) -> Result<Block, Fault> {
    if paged {
        alloc_pages(instance, length, host)
    } else {
        alloc(instance, length, PAYLOAD_ALIGN as usize, host)
    }
}

/// Whole pages for `length` bytes, at the start of a huge one if that helps; any block of that length from a guest
/// that has no such place.
fn alloc_pages<I: Instance>(
    instance: &mut I,
    length: u64,
    host: &mut Host,
) -> Result<Block, Fault> {
    let pages = length.next_multiple_of(u64::from(REGION_PAGE));
    let huge = length >= u64::from(HUGE_PAGE) && instance.aligns_huge_pages();
    let tries = [
        huge.then_some((pages, HUGE_PAGE)),
        Some((pages, REGION_PAGE)),
        Some((length, PAYLOAD_ALIGN)),
    ];
    let mut last = Err(Fault::NoMemory { length });
    for (length, align) in tries.into_iter().flatten() {
        last = alloc(instance, length, align as usize, host);
        if !matches!(last, Err(Fault::NoMemory { .. })) {
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
) -> Result<Block, Fault> {
    let no_memory = || Fault::NoMemory { length };
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

/// The range when it lies in `memory`; an empty one does, wherever it points.
pub(super) fn checked(memory: &[u8], ptr: u32, length: u64) -> Option<Range> {
    if length == 0 {
        return Some(Range { start: 0, end: 0 });
    }
    let start = usize::try_from(ptr).ok()?;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    (end <= memory.len()).then_some(Range { start, end })
}

/// An offset of linear memory as the engine passes it.
pub(super) fn offset(at: usize) -> i32 {
    u32::try_from(at).expect("offsets were checked against a memory of at most 4 GiB").cast_signed()
}

pub(super) fn outside<I: Instance>(instance: &I, export: &str, ptr: u32, length: u64) -> Fault {
    let size = instance.memory().len();
    trap(
        export,
        format!(
            "it returned {length} bytes at {ptr:#x}, outside its linear memory of {size} bytes"
        ),
    )
}
