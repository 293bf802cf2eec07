//! One invocation of a reactor (docs/abi.md): allocate in the guest, bring the payload, `cwasi_handle`, find
//! the answer. Segments are mapped both ways where the guest's pages allow it.
//!
//! The guest is not trusted: every pointer that it returns is checked against its memory.

use cwasi_abi::{HUGE_PAGE, PAYLOAD_ALIGN, REGION_PAGE, ResponseRef, export};
use cwasi_host_functions::Host;

mod parts;
mod place;

pub use place::Ahead;
use place::is_paged;

use super::engine::{Instance, Stop, Trap, VmError, no_memory};
use crate::modes::Payload;
use crate::sys::segment::Segment;

/// Longest error message that is taken from a guest, in bytes.
pub const ERROR_MESSAGE_MAX: usize = 16 * 1024;

/// What a handler is given.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// One payload.
    Whole(&'a Payload),
    /// The parts of a group, in one block (docs/abi.md).
    Parts {
        /// How many there should be.
        expected: u32,
        /// Number and payload of those that are here, ascending.
        parts: &'a [(u32, Payload)],
    },
}

impl<'a> From<&'a Payload> for Input<'a> {
    fn from(payload: &'a Payload) -> Self {
        Self::Whole(payload)
    }
}

/// How an invocation of a reactor ended.
#[derive(Debug)]
pub enum Handled<'a> {
    /// With a response, which lies in the instance's linear memory.
    Answered(&'a [u8]),
    /// With a response that the guest made in a region.
    InPlace(Segment),
    /// With an error of the handler, or because the payload does not fit into the guest's memory.
    Failed(String),
    /// The guest called `proc_exit` instead of answering.
    Exited(u32),
    /// The guest trapped, or returned pointers outside its memory.
    Trapped(Trap),
}

/// What the host holds in an instance from one invocation to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept {
    response_out: Option<Range>,
    /// Where the next payload goes, if it fits. Asked for last.
    place: Option<Range>,
    /// How long a block the last payload needed, in bytes.
    needed: u64,
    crowded: bool,
}

impl Kept {
    /// How long a block the last payload needed, in bytes.
    #[must_use]
    pub const fn needed(&self) -> u64 {
        self.needed
    }

    /// The last payload found no memory, and might have without the place that was asked for ahead of it. Its handler has
    /// not run.
    #[must_use]
    pub const fn is_crowded(&self) -> bool {
        self.crowded
    }
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
    let asked = response_out(instance, kept, host).and_then(|_| {
        if !ahead.is_empty() {
            kept.place = Some(block(instance, ahead.len(), is_paged(ahead.len()), host)?);
        }
        Ok(())
    });
    match asked {
        // Without memory for it now, the request will say so, or need less.
        Ok(()) | Err(Fault::NoMemory { .. }) => Ok(()),
        Err(Fault::Stopped(Stop::Trapped(trap))) => {
            Err(VmError::Initialize { reason: trap.to_string() })
        }
        Err(Fault::Stopped(Stop::Exited(code))) => Err(VmError::Initialize {
            reason: format!("`{}` exited with code {code}", export::ALLOC),
        }),
    }
}

/// Runs `cwasi_handle` on `payload`, in a fresh instance. [`Host::begin`] was called for this invocation.
pub fn handle<'a, I: Instance>(
    instance: &'a mut I,
    payload: &Payload,
    host: &mut Host,
) -> Handled<'a> {
    handle_again(instance, &mut Kept::default(), payload, host)
}

/// [`handle`] in an instance that has answered before, if it did; `kept` is the instance's own.
pub fn handle_again<'a, 'i, I: Instance>(
    instance: &'a mut I,
    kept: &mut Kept,
    input: impl Into<Input<'i>>,
    host: &mut Host,
) -> Handled<'a> {
    match run(instance, kept, input.into(), host) {
        Ok(Returned { status: 0, response }) => answered(instance, response),
        Ok(Returned { response, .. }) => {
            let end = response.end.min(response.start + ERROR_MESSAGE_MAX);
            let text = String::from_utf8_lossy(&instance.memory()[response.start..end]);
            Handled::Failed(if text.is_empty() {
                "the handler failed without a message".to_owned()
            } else {
                text.into_owned()
            })
        }
        Err(Fault::Stopped(Stop::Exited(code))) => Handled::Exited(code),
        Err(Fault::Stopped(Stop::Trapped(trap))) => Handled::Trapped(trap),
        Err(Fault::NoMemory { length }) => {
            kept.crowded = kept.place.is_some();
            let linear_memory = instance.memory().len();
            Handled::Failed(no_memory(length, linear_memory, instance.memory_max()))
        }
    }
}

fn answered<I: Instance>(instance: &mut I, response: Range) -> Handled<'_> {
    match instance.answer(response.span()) {
        Ok(Some(segment)) => Handled::InPlace(segment),
        Ok(None) => Handled::Answered(&instance.memory()[response.start..response.end]),
        Err(error) => Handled::Failed(format!("the response's region cannot be sent: {error}")),
    }
}

/// A range of linear memory that was checked.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    end: usize,
}

impl Range {
    const fn len(self) -> u64 {
        (self.end - self.start) as u64
    }

    /// Its first `len` bytes, or all of it.
    fn first(self, len: u64) -> Self {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Self { start: self.start, end: self.end.min(self.start.saturating_add(len)) }
    }

    /// Offset and length, as guests pass them.
    fn span(self) -> (u32, u32) {
        let part = |at: usize| u32::try_from(at).expect("offsets were checked against 4 GiB");
        (part(self.start), part(self.end - self.start))
    }
}

struct Returned {
    status: i32,
    response: Range,
}

enum Fault {
    Stopped(Stop),
    NoMemory { length: u64 },
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

fn run<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    input: Input<'_>,
    host: &mut Host,
) -> Result<Returned, Fault> {
    let response_out = response_out(instance, kept, host)?;
    let (ptr, len) = match input {
        Input::Whole(payload) => bring(instance, kept, payload, host)?,
        Input::Parts { expected, parts } => parts::bring(instance, kept, expected, parts, host)?,
    };
    let out = offset(response_out.start);
    let status = instance.call(export::HANDLE, &[ptr, len, out], host)?;
    let status = status.ok_or_else(|| trap(export::HANDLE, "no status was returned".to_owned()))?;
    let mut bytes = [0; ResponseRef::SIZE];
    bytes.copy_from_slice(&instance.memory()[response_out.start..response_out.end]);
    let response = ResponseRef::from_bytes(bytes);
    let range = checked(instance.memory(), response.ptr, u64::from(response.len))
        .ok_or_else(|| outside(instance, export::HANDLE, response.ptr, u64::from(response.len)))?;
    Ok(Returned { status, response: range })
}

/// Where the guest tells its response.
fn response_out<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    host: &mut Host,
) -> Result<Range, Fault> {
    let place = match kept.response_out {
        Some(place) => place,
        None => alloc(instance, ResponseRef::SIZE as u64, ResponseRef::ALIGN, host)?,
    };
    kept.response_out = Some(place);
    Ok(place)
}

/// The payload in linear memory: pointer and length, both 0 when it is empty.
fn bring<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    payload: &Payload,
    host: &mut Host,
) -> Result<(i32, i32), Fault> {
    if payload.is_empty() {
        return Ok((0, 0));
    }
    let segment = match payload {
        Payload::Segment(segment) if is_paged(payload.len()) => Some(segment),
        _ => None,
    };
    let block = place(instance, kept, payload.len(), segment.is_some(), host)?;
    let shown = segment.is_some_and(|segment| instance.show(block.span(), segment));
    let range = block.first(payload.len());
    if !shown {
        payload
            .copy_to(&mut instance.memory_mut()[range.start..range.end])
            .map_err(|error| trap(export::ALLOC, format!("the payload cannot be read: {error}")))?;
    }
    Ok((offset(range.start), offset(range.end - range.start)))
}

/// A block for `length` bytes, of whole pages when it is `paged`: the one that was asked for ahead, if it is long enough.
fn place<I: Instance>(
    instance: &mut I,
    kept: &mut Kept,
    length: u64,
    paged: bool,
    host: &mut Host,
) -> Result<Range, Fault> {
    kept.needed = length;
    // The guest owns it from now on.
    if let Some(place) = kept.place.take_if(|place| length <= place.len()) {
        return Ok(place);
    }
    block(instance, length, paged, host)
}

/// A block that was not asked for before.
fn block<I: Instance>(
    instance: &mut I,
    length: u64,
    paged: bool,
    host: &mut Host,
) -> Result<Range, Fault> {
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
) -> Result<Range, Fault> {
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
) -> Result<Range, Fault> {
    let no_memory = || Fault::NoMemory { length };
    let wanted = u32::try_from(length).map_err(|_| no_memory())?;
    let params = [wanted.cast_signed(), offset(align)];
    let ptr = instance.call(export::ALLOC, &params, host)?.unwrap_or(0).cast_unsigned();
    if ptr == 0 {
        return Err(no_memory());
    }
    checked(instance.memory(), ptr, length)
        .ok_or_else(|| outside(instance, export::ALLOC, ptr, length))
}

/// The range when it lies in `memory`; an empty one does, wherever it points.
fn checked(memory: &[u8], ptr: u32, length: u64) -> Option<Range> {
    if length == 0 {
        return Some(Range { start: 0, end: 0 });
    }
    let start = usize::try_from(ptr).ok()?;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    (end <= memory.len()).then_some(Range { start, end })
}

/// An offset of linear memory as the engine passes it.
fn offset(at: usize) -> i32 {
    u32::try_from(at).expect("offsets were checked against a memory of at most 4 GiB").cast_signed()
}

fn trap(export: &str, reason: String) -> Fault {
    Fault::Stopped(Stop::Trapped(Trap { export: export.to_owned(), reason }))
}

fn outside<I: Instance>(instance: &I, export: &str, ptr: u32, length: u64) -> Fault {
    let size = instance.memory().len();
    trap(
        export,
        format!(
            "it returned {length} bytes at {ptr:#x}, outside its linear memory of {size} bytes"
        ),
    )
}

#[cfg(test)]
mod tests;
