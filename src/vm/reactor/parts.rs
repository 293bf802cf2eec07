//! Builds the block of parts for the handler of a fan-in (layout: `cwasi_abi`, `docs/abi.md`). Runs in a worker.
//!
//! It is one block of the guest, of whole pages if a part is large: a large part is mapped at a page of its own,
//! small ones are copied behind the entries.

use cwasi_abi::{
    HUGE_PAGE, INLINE_MAX, PartEntry, REGION_PAGE, export, parts_head, parts_header_len,
};
use cwasi_host_functions::Host;

use super::blocks::{CheckedRange, offset, payload_block};
use super::{HandlerFault, InstanceBlocks, trap};
use crate::engine::Instance;
use cwasi_modes::Payload;
use cwasi_sys::segment::Segment;

/// Alignment of copied parts in bytes: enough for every number.
const COPIED_ALIGN: u64 = 16;

/// Layout of the block.
#[derive(Debug, PartialEq, Eq)]
struct PartLayout {
    entries: Vec<PartEntry>,
    /// Indices of the mapped parts.
    mapped: Vec<usize>,
    /// Length of the block in bytes; whole pages if a part is mapped.
    len: u64,
}

impl PartLayout {
    /// Computes the ranges of `parts`; `None` if they fit into no linear memory. Large parts are aligned for huge
    /// pages if `huge` says that it helps.
    fn of(parts: &[(u32, &Payload)], huge: bool) -> Option<Self> {
        let is_large = |payload: &Payload| {
            matches!(payload, Payload::Segment(_)) && payload.len() > INLINE_MAX as u64
        };
        let mut entries = vec![PartEntry::default(); parts.len()];
        let mut end = parts_header_len(parts.len()) as u64;
        let mut put = |index: usize, align: u64| {
            let (number, payload) = parts[index];
            let at = end.next_multiple_of(align);
            end = at.checked_add(payload.len())?;
            u32::try_from(end).ok()?;
            entries[index] = PartEntry {
                offset: u32::try_from(at).ok()?,
                len: u32::try_from(payload.len()).ok()?,
                number,
                reserved: 0,
            };
            Some(())
        };
        let (mapped, copied): (Vec<usize>, Vec<usize>) =
            (0..parts.len()).partition(|index| is_large(parts[*index].1));
        for index in copied {
            put(index, COPIED_ALIGN)?;
        }
        for index in &mapped {
            let fills = huge && parts[*index].1.len() >= u64::from(HUGE_PAGE);
            put(*index, u64::from(if fills { HUGE_PAGE } else { REGION_PAGE }))?;
        }
        if !mapped.is_empty() {
            end = end.next_multiple_of(u64::from(REGION_PAGE));
        }
        Some(Self { entries, mapped, len: end })
    }
}

/// Maps or copies the parts into linear memory: pointer and length of their block.
pub(super) fn pass<I: Instance>(
    instance: &mut I,
    kept: &mut InstanceBlocks,
    expected: u32,
    parts: &[(u32, &Payload)],
    host: &mut Host,
) -> Result<(i32, i32), HandlerFault> {
    let huge = instance.aligns_huge_pages();
    let all = || parts.iter().fold(0, |sum: u64, (_, payload)| sum.saturating_add(payload.len()));
    let plan =
        PartLayout::of(parts, huge).ok_or_else(|| HandlerFault::NoMemory { length: all() })?;
    let block =
        payload_block(instance, kept, plan.len, !plan.mapped.is_empty(), host)?.first(plan.len);
    let segments: Vec<(u32, &Segment)> = plan
        .mapped
        .iter()
        .filter_map(|index| match parts[*index].1 {
            Payload::Segment(segment) => Some((plan.entries[*index].offset, segment)),
            Payload::Inline(_) => None,
        })
        .collect();
    let mapped = match segments.is_empty() {
        true => 0,
        false => instance.map_parts(block.span(), &segments),
    };
    let mapped = &plan.mapped[..mapped.min(plan.mapped.len())];
    let memory = &mut instance.memory_mut()[block.start..block.end];
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    memory[..16].copy_from_slice(&parts_head(expected, count));
    for (index, entry) in plan.entries.iter().enumerate() {
        let at = parts_header_len(index);
        memory[at..at + 16].copy_from_slice(&entry.to_bytes());
        if mapped.contains(&index) {
            continue;
        }
        let start = entry.offset as usize;
        parts[index]
            .1
            .copy_to(&mut memory[start..start + entry.len as usize])
            .map_err(|error| trap(export::ALLOC, format!("a part cannot be read: {error}")))?;
    }
    let CheckedRange { start, .. } = block;
    Ok((offset(start), offset(block.end - start)))
}

#[cfg(test)]
mod tests {
    use cwasi_abi::PartsBlock;
    use proptest::prelude::*;

    use super::*;

    fn payload(len: usize, segment: bool, seed: u8) -> Payload {
        let bytes = vec![seed; len];
        if segment {
            Payload::Segment(Segment::copy_of(&bytes).unwrap())
        } else {
            Payload::Inline(bytes)
        }
    }

    fn lent(parts: &[(u32, Payload)]) -> Vec<(u32, &Payload)> {
        parts.iter().map(|(number, payload)| (*number, payload)).collect()
    }

    fn parts() -> impl Strategy<Value = Vec<(u32, Payload)>> {
        let len = prop_oneof![Just(0_usize), 1..100_usize, 65_530..70_000_usize];
        let part = (len, any::<bool>());
        prop::collection::btree_map(0..30_u32, part, 0..12).prop_map(|parts| {
            let whole = |(number, (len, segment)): (u32, (usize, bool))| {
                (number, payload(len, segment, u8::try_from(number).unwrap()))
            };
            parts.into_iter().map(whole).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn offsets_are_apart_inside_and_aligned(parts in parts(), huge: bool) {
            let plan = PartLayout::of(&lent(&parts), huge).unwrap();
            let header = 0..parts_header_len(parts.len()) as u64;
            let mut taken = Vec::from([header]);
            for (index, entry) in plan.entries.iter().enumerate() {
                let range = u64::from(entry.offset)..u64::from(entry.offset) + u64::from(entry.len);
                // A mapped part has its last page to itself.
                let range = if plan.mapped.contains(&index) {
                    prop_assert_eq!(entry.offset % REGION_PAGE, 0);
                    range.start..range.end.next_multiple_of(u64::from(REGION_PAGE))
                } else {
                    range
                };
                prop_assert!(range.end <= plan.len);
                prop_assert!(taken.iter().all(|one| one.end <= range.start || range.end <= one.start));
                taken.push(range);
            }
        }

        #[test]
        fn layouts_are_decoded(parts in parts()) {
            let plan = PartLayout::of(&lent(&parts), false).unwrap();
            let mut block = vec![0xee; usize::try_from(plan.len).unwrap()];
            block[..16].copy_from_slice(&parts_head(30, u32::try_from(parts.len()).unwrap()));
            for (index, entry) in plan.entries.iter().enumerate() {
                let at = parts_header_len(index);
                block[at..at + 16].copy_from_slice(&entry.to_bytes());
                let start = entry.offset as usize;
                parts[index].1.copy_to(&mut block[start..start + entry.len as usize]).unwrap();
            }
            let decoded: Vec<_> = PartsBlock::decode(&block).unwrap().iter().map(|(number, bytes)| (number, bytes.to_vec())).collect();
            let sent: Vec<_> = parts.into_iter().map(|(number, payload)| (number, payload.into_vec().unwrap())).collect();
            prop_assert!(decoded == sent);
        }
    }

    #[test]
    fn parts_of_huge_pages_begin_at_huge_pages_when_it_helps() {
        let parts = [(0, payload(3 << 20, true, 1)), (1, payload(5, false, 2))];
        assert_eq!(PartLayout::of(&lent(&parts), true).unwrap().entries[0].offset, HUGE_PAGE);
        assert_eq!(PartLayout::of(&lent(&parts), false).unwrap().entries[0].offset, REGION_PAGE);
    }
}
