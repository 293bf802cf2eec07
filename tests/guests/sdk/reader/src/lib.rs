//! A secondary that reads its payload where it arrived, and makes large answers where they leave.
//!
//! - a decimal number: a region of that many bytes of the pattern
//! - anything else: length and FNV-1a of the bytes; with the argument `length`, the length only
//!
//! Runs inside a guest, one instance per request.

use std::io::Write as _;

use cwasi::Region;

/// Longest payload that is looked at as a number.
const NUMBER_MAX: usize = 16;

#[cwasi::handler]
fn read(payload: &[u8]) -> Result<Region, String> {
    if payload.len() <= NUMBER_MAX
        && let Some(len) = str::from_utf8(payload).ok().and_then(|text| text.parse().ok())
    {
        let mut region = Region::with_len(len);
        for (at, byte) in region.iter_mut().enumerate() {
            *byte = pattern(at);
        }
        return Ok(region);
    }
    let mut text = Region::with_capacity(64);
    if std::env::args().nth(1).is_some_and(|argument| argument == "length") {
        write!(text, "{}", payload.len()).map_err(|full| full.to_string())?;
        return Ok(text);
    }
    let hash = payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    write!(text, "{} {hash:016x}", payload.len()).map_err(|full| full.to_string())?;
    Ok(text)
}

/// As `sender` has it.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 17)).to_le_bytes()[0]
}
