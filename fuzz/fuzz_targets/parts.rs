//! The block of parts that a handler gets, as the guest SDK reads it (`cwasi_abi::PartsBlock`).
#![no_main]

use cwasi_abi::{PARTS_MAX, PartEntry, PartsBlock, parts_head, parts_header_len};
use cwasi_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(block) = bounded(data, 0, || PartsBlock::decode(data)) else { return };
    assert!(block.expected() <= PARTS_MAX && block.len() <= block.expected() as usize);
    assert_eq!(block.missing().count() + block.len(), block.expected() as usize);
    let all = data.as_ptr_range();
    let header = parts_header_len(block.len());
    let mut last = None;
    let mut bytes = parts_head(block.expected(), block.len() as u32).to_vec();
    let mut end = header;
    for (number, part) in block.iter() {
        let range = part.as_ptr_range();
        assert!(part.is_empty() || (all.start <= range.start && range.end <= all.end));
        assert!(part.is_empty() || range.start as usize - all.start as usize >= header);
        assert!(number < block.expected() && last < Some(number));
        last = Some(number);
        // Parts may share bytes here, and do not when they are written one after the other.
        let (offset, len) = (end as u32, part.len() as u32);
        bytes.extend(PartEntry { offset, len, number, reserved: 0 }.to_bytes());
        end += part.len();
    }
    block.iter().for_each(|(_, part)| bytes.extend_from_slice(part));
    let again = PartsBlock::decode(&bytes).expect("what was written is a block");
    assert!(again.iter().eq(block.iter()) && again.missing().eq(block.missing()));
});
