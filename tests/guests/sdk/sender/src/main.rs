//! A primary that makes large payloads in regions and reads large responses where they arrive.
//!
//! - `send SIZE ROUNDS TARGET…`: makes SIZE bytes in a region, sends them ROUNDS times to each TARGET, and checks
//!   the answers: length and FNV-1a
//! - `fetch SIZE ROUNDS TARGET`: asks for SIZE bytes and checks each of them
//!
//! Between calls it allocates, which grows memory behind the region.
//!
//! Runs inside a guest.

use std::io::Write as _;
use std::process::exit;

use cwasi::{CallError, Region};

/// Bytes that are appended at a time.
const STEP: usize = 100_000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [verb, size, rounds, targets @ ..] = args.as_slice() else {
        eprintln!("usage: sender send|fetch SIZE ROUNDS TARGET…");
        exit(64);
    };
    let [size, rounds] = [size, rounds].map(|text| text.parse::<usize>().expect("a number"));
    let ended = match verb.as_str() {
        "send" => send(size, rounds, targets),
        _ => fetch(size, rounds, &targets[0]),
    };
    if let Err(error) = ended {
        eprintln!("{error}");
        exit(error.kind().code());
    }
    println!("{size} bytes, {rounds} rounds: as expected");
}

fn send(size: usize, rounds: usize, targets: &[String]) -> Result<(), CallError> {
    let mut region = Region::with_capacity(size);
    let (mut hash, mut step) = (0xcbf2_9ce4_8422_2325_u64, Vec::with_capacity(STEP));
    for start in (0..size).step_by(STEP) {
        step.clear();
        step.extend((start..size.min(start + STEP)).map(pattern));
        for byte in &step {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        region.write_all(&step).expect("there is room for all of it");
    }
    let expected = format!("{size} {hash:016x}");
    let sealed = region.seal();
    let mut grown = Vec::new();
    for _ in 0..rounds {
        for target in targets {
            let answer = cwasi::call_in_place(target, &sealed)?;
            assert_eq!(String::from_utf8_lossy(&answer), expected, "{target} saw other bytes");
            grown.push(vec![1_u8; 300_000]);
        }
    }
    assert!(sealed.iter().enumerate().all(|(at, byte)| *byte == pattern(at)), "it changed here");
    drop(sealed);
    let again = Region::with_len(size);
    assert!(again.iter().all(|byte| *byte == 0), "a new region shows an old one's bytes");
    Ok(())
}

fn fetch(size: usize, rounds: usize, target: &str) -> Result<(), CallError> {
    for _ in 0..rounds {
        let response = cwasi::call_in_place(target, size.to_string().as_bytes())?;
        assert_eq!(response.len(), size);
        let wrong = response.iter().enumerate().find(|(at, byte)| **byte != pattern(*at));
        assert_eq!(wrong, None, "another byte came");
        let copied = Vec::from(response);
        assert_eq!(copied.last().copied(), size.checked_sub(1).map(pattern));
    }
    Ok(())
}

/// As `reader` has it.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 17)).to_le_bytes()[0]
}
