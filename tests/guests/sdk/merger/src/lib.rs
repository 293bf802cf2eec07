//! A fan-in: says what it got of each part, in order, and what is missing. Each run shows on stderr.
//!
//! The answer is one line per part, `number length hash`, then `missing …`; or, where the first part begins with
//! `large `, a region of as many bytes as follow.
//!
//! Runs inside a guest, one instance per group.

use std::fmt::Write as _;

use cwasi::{Parts, Region};

#[cwasi::handler]
fn merge(parts: Parts<'_>) -> Result<Region, String> {
    let first = parts.iter().next().map(|part| part.bytes).unwrap_or_default();
    if let Some(len) = first.strip_prefix(b"large ") {
        let len = str::from_utf8(len).ok().and_then(|len| len.parse().ok()).ok_or("no length")?;
        let mut region = Region::with_len(len);
        region.fill(b'm');
        return Ok(region);
    }
    let mut text = String::new();
    for part in parts.iter() {
        let hash = part.bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        writeln!(text, "{} {} {hash:016x}", part.number, part.bytes.len())
            .map_err(|error| error.to_string())?;
    }
    let missing: Vec<_> = parts.missing().map(|number| number.to_string()).collect();
    writeln!(text, "missing {}", missing.join(" ")).map_err(|error| error.to_string())?;
    // On stderr, where a test counts the runs.
    eprintln!("merged {} of {}", parts.len(), parts.expected());
    let mut region = Region::with_len(text.len());
    region.copy_from_slice(text.as_bytes());
    Ok(region)
}
