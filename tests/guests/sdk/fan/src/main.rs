//! A primary that has many calls in flight, and checks how each of them ends.
//!
//! - `to-all SIZE TARGET…`: makes SIZE bytes in a region, sends them to every TARGET (`reader`) at a time, and checks
//!   the answers: length and FNV-1a
//! - `many TARGET COUNT SIZE LIMIT`: COUNT payloads of up to SIZE bytes to an echo, at most LIMIT at a time
//! - `ends TARGET COUNT PAYLOAD`: COUNT calls, every tenth of them to an unknown function; prints how many ended how
//! - `answers TARGET COUNT`: COUNT calls; prints the different answers
//! - `leave TARGET COUNT`: COUNT calls that are not waited for, after one that is
//! - `late TARGET DIR (COUNT SIZE)…`: for each pair, starts COUNT calls of a `server` that answer SIZE bytes and less,
//!   makes `DIR/started-N`, computes until there is a `DIR/collect-N`, and checks the answers; N counts from 0
//!
//! Runs inside a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::process::exit;

use cwasi::{CallError, Region, Response};

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
        ["answers", target, count] => answers(target, number(count)),
        ["leave", target, count] => leave(target, number(count)),
        ["late", target, dir, shapes @ ..] => {
            let shapes = shapes.chunks_exact(2).map(|pair| (number(pair[0]), number(pair[1])));
            shapes.enumerate().try_for_each(|(place, shape)| late(target, dir, place, shape))
        }
        _ => {
            eprintln!("usage: fan to-all|many|ends|answers|leave|late …");
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

fn answers(target: &str, count: usize) -> Result<(), CallError> {
    let ends = cwasi::fan_out((0..count).map(|_| (target, b"x"))).in_order();
    let ends: Vec<Response> = ends.into_iter().collect::<Result<_, _>>()?;
    let texts: BTreeSet<_> = ends.iter().map(|end| String::from_utf8_lossy(end)).collect();
    println!("{}", texts.into_iter().collect::<Vec<_>>().join(" "));
    Ok(())
}

fn leave(target: &str, count: usize) -> Result<(), CallError> {
    let answer = cwasi::start(target, b"first").wait()?;
    let left: Vec<_> = (0..count).map(|_| cwasi::start(target, b"left")).collect();
    println!("{} bytes came, {} calls are left", answer.len(), left.len());
    // Not dropped: that would give them up one by one.
    std::mem::forget(left);
    Ok(())
}

fn late(
    target: &str,
    dir: &str,
    place: usize,
    (count, size): (usize, usize),
) -> Result<(), CallError> {
    // Requests are short, so that all of them leave before the first answer is read. No two answers are alike.
    let calls: Vec<_> = (0..count)
        .map(|call| cwasi::start(target, format!("!size {}", size - call).as_bytes()))
        .collect();
    std::fs::write(format!("{dir}/started-{place}"), "").expect("a place for a file");
    compute_until(&format!("{dir}/collect-{place}"));
    for (call, pending) in calls.into_iter().enumerate() {
        let expected: Vec<u8> = (0..size - call).map(|at| pattern(at, 0)).collect();
        assert_eq!(*pending.wait()?, *expected, "another answer for {call}");
    }
    println!("{count} answers of {size} bytes: as expected");
    Ok(())
}

/// Computes, and looks now and then whether the file is there.
fn compute_until(file: &str) {
    const STEPS: usize = 1_000_000;
    let mut value = 1_u64;
    while !std::path::Path::new(file).exists() {
        for _ in 0..STEPS {
            value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0x1405_7b7e);
        }
    }
}

/// As `reader` and `server` have it, for place 0.
fn pattern(at: usize, place: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ (at >> 17) ^ place).to_le_bytes()[0]
}
