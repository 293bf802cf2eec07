//! A primary that has many calls in flight, and checks how each of them ends.
//!
//! - `to-all SIZE TARGET…`: makes SIZE bytes in a region, sends them to every TARGET (`reader`) at a time, and checks
//!   the answers: length and FNV-1a
//! - `many TARGET COUNT SIZE LIMIT`: COUNT payloads of up to SIZE bytes to an echo, at most LIMIT at a time
//! - `ends TARGET COUNT PAYLOAD`: COUNT calls, every tenth of them to an unknown function; prints how many ended how
//! - `leave TARGET COUNT`: COUNT calls that are not waited for, after one that is
//!
//! Runs inside a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::process::exit;

use cwasi::{CallError, Region};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let ended = match args.as_slice() {
        ["to-all", size, targets @ ..] => to_all(number(size), targets),
        ["many", target, count, size, limit] => {
            many(target, number(count), number(size), number(limit))
        }
        ["ends", target, count, payload] => {
            println!("{}", ends(target, number(count), payload));
            Ok(())
        }
        ["leave", target, count] => leave(target, number(count)),
        _ => {
            eprintln!("usage: fan to-all|many|ends|leave …");
            exit(64);
        }
    };
    if let Err(error) = ended {
        eprintln!("{error}");
        exit(error.kind().code());
    }
}

fn to_all(size: usize, targets: &[&str]) -> Result<(), CallError> {
    let mut region = Region::with_len(size);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (at, byte) in region.iter_mut().enumerate() {
        *byte = pattern(at, 0);
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let expected = format!("{size} {hash:016x}");
    let region = region.seal();
    for (target, answer) in targets.iter().zip(cwasi::broadcast(targets, &region).in_order()) {
        assert_eq!(String::from_utf8_lossy(&answer?), expected, "{target} saw other bytes");
    }
    assert!(region.iter().enumerate().all(|(at, byte)| *byte == pattern(at, 0)), "it changed here");
    println!("{size} bytes to {}: as expected", targets.len());
    Ok(())
}

fn many(target: &str, count: usize, size: usize, limit: usize) -> Result<(), CallError> {
    let payload = |place: usize| -> Vec<u8> {
        (0..size * (place % 10 + 1) / 10).map(|at| pattern(at, place)).collect()
    };
    let calls = (0..count).map(|place| (target, payload(place)));
    let mut seen = BTreeSet::new();
    for (place, answer) in cwasi::fan_out(calls).limit(limit).as_completed() {
        assert_eq!(*answer?, *payload(place), "another answer for {place}");
        assert!(seen.insert(place), "{place} ended twice");
    }
    println!("{} calls of up to {size} bytes: as expected", seen.len());
    Ok(())
}

fn ends(target: &str, count: usize, payload: &str) -> String {
    let calls = (0..count).map(|place| (if place % 10 == 9 { "nobody" } else { target }, payload));
    let mut kinds = BTreeMap::new();
    for answer in cwasi::fan_out(calls).in_order() {
        let kind = answer.as_ref().map_or_else(CallError::kind, |_| cwasi::ErrorKind::Ok);
        *kinds.entry(kind.to_string()).or_insert(0) += 1;
    }
    let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    kinds.join(", ")
}

fn leave(target: &str, count: usize) -> Result<(), CallError> {
    let answer = cwasi::start(target, b"first").wait()?;
    let left: Vec<_> = (0..count).map(|_| cwasi::start(target, b"left")).collect();
    println!("{} bytes came, {} calls are left", answer.len(), left.len());
    // Not dropped: that would give them up one by one.
    std::mem::forget(left);
    Ok(())
}

/// As `reader` and `server` have it, for place 0.
fn pattern(at: usize, place: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 17) ^ place).to_le_bytes()[0]
}
