//! A primary whose calls come together in one handler (`merger`), and checks what that saw.
//!
//! - `direct TARGET KEY PARTS SIZE`: sends the parts itself; every second one is 40 bytes, the others have SIZE
//! - `relays TARGET KEY PARTS SIZE RELAY…`: lets every RELAY in turn send a part of SIZE bytes
//! - `some TARGET KEY PARTS NUMBER…`: sends these parts only; prints how each call ended
//!
//! Runs inside a guest.

use std::fmt::Write as _;
use std::process::exit;

use cwasi::{CallError, CallOptions, Region, Response};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u32>().expect("a number");
    let ended = match args.as_slice() {
        ["direct", target, key, parts, size] => direct(target, key, number(parts), number(size)),
        ["relays", target, key, parts, size, relays @ ..] => {
            relayed(target, key, number(parts), number(size), relays)
        }
        ["some", target, key, parts, numbers @ ..] => {
            let numbers: Vec<_> = numbers.iter().map(|text| number(text)).collect();
            some(target, key, number(parts), &numbers);
            Ok(())
        }
        _ => {
            eprintln!("usage: gather direct|relays|some …");
            exit(64);
        }
    };
    if let Err(error) = ended {
        eprintln!("{error}");
        exit(error.kind().code());
    }
}

fn direct(target: &str, key: &str, parts: u32, size: u32) -> Result<(), CallError> {
    let size_of = |part: u32| if part.is_multiple_of(2) { size } else { 40 };
    // Last first: the handler sees them in order all the same.
    let calls: Vec<_> = (0..parts)
        .rev()
        .map(|part| {
            let payload = made(part, size_of(part)).seal();
            CallOptions::new().join(key, parts, part).start(target, &payload)
        })
        .collect();
    let expected = expected(parts, size_of);
    for answer in cwasi::join_all(calls) {
        same(&answer?, &expected);
    }
    println!("{parts} parts: as expected");
    Ok(())
}

fn relayed(
    target: &str,
    key: &str,
    parts: u32,
    size: u32,
    relays: &[&str],
) -> Result<(), CallError> {
    let orders = (0..parts).map(|part| {
        let relay = relays[part as usize % relays.len()];
        (relay, format!("{target} {key} {parts} {part} {size}"))
    });
    let expected = expected(parts, |_| size);
    for answer in cwasi::fan_out(orders).in_order() {
        same(&answer?, &expected);
    }
    println!("{parts} parts by {} relays: as expected", relays.len());
    Ok(())
}

fn some(target: &str, key: &str, parts: u32, numbers: &[u32]) {
    let start = |part: &u32| {
        CallOptions::new().join(key, parts, *part).start(target, &made(*part, 10).seal())
    };
    let calls: Vec<_> = numbers.iter().map(start).collect();
    for (part, end) in numbers.iter().zip(cwasi::join_all(calls)) {
        match end {
            Ok(answer) => println!("{part}: {}", String::from_utf8_lossy(&answer).trim_end()),
            Err(error) => println!("{part}: {error}"),
        }
    }
}

fn made(part: u32, size: u32) -> Region {
    let mut region = Region::with_len(size as usize);
    for (at, byte) in region.iter_mut().enumerate() {
        *byte = pattern(at, part);
    }
    region
}

fn same(answer: &Response, expected: &str) {
    assert_eq!(String::from_utf8_lossy(answer), expected, "the handler saw other parts");
}

/// What `merger` says about these parts.
fn expected(parts: u32, size_of: impl Fn(u32) -> u32) -> String {
    let mut text = String::new();
    for part in 0..parts {
        let size = size_of(part);
        let hash = (0..size as usize).fold(0xcbf2_9ce4_8422_2325_u64, |hash, at| {
            (hash ^ u64::from(pattern(at, part))).wrapping_mul(0x0100_0000_01b3)
        });
        writeln!(text, "{part} {size} {hash:016x}").expect("writing to a string does not fail");
    }
    text + "missing \n"
}

/// As `relay` has it.
fn pattern(at: usize, part: u32) -> u8 {
    (at.wrapping_mul(31) ^ part as usize).to_le_bytes()[0]
}
