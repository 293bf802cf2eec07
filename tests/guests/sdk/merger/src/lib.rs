//! A fan-in: says what it got of each part, in order, and what is missing. Each run is noted in `/log/merged`, where
//! there is such a directory.
//!
//! The answer is one line per part, `number length hash`, then `missing …`; or, where the first part begins with
//! `large `, a region of as many bytes as follow.
//!
//! Runs inside a guest, one instance per group.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use cwasi::{Parts, Region};

/// Where a test counts the runs.
const NOTES: &str = "/log";

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
    note(&parts)?;
    let mut region = Region::with_len(text.len());
    region.copy_from_slice(text.as_bytes());
    Ok(region)
}

fn note(parts: &Parts<'_>) -> Result<(), String> {
    if !Path::new(NOTES).exists() {
        return Ok(());
    }
    let file = File::options().create(true).append(true).open(Path::new(NOTES).join("merged"));
    file.and_then(|mut file| writeln!(file, "{} of {}", parts.len(), parts.expected()))
        .map_err(|error| error.to_string())
}
