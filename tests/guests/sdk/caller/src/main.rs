//! A primary that calls `TARGET` `COUNT` times with `SIZE` bytes and checks what comes back.
//!
//! Usage: `caller TARGET COUNT SIZE EXPECT`, where `EXPECT` is `echo`, `reverse`, `checksum` or `any`;
//! `caller TARGET idempotent PAYLOAD` makes one call that may be repeated, and prints its response.
//! Prints one line at the end; a failed call prints its error on stderr and exits with the errno.
//!
//! After each call it allocates, copies and grows memory: where an engine that was entered twice would
//! have lost its way (docs/abi.md).
//!
//! Runs inside a guest.

use std::process::exit;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (target, count, size, expect) = match args.as_slice() {
        [_, target, count, size, expect] => (target, count, size, expect),
        [_, target, verb, payload] if verb == "idempotent" => return idempotent(target, payload),
        _ => {
            eprintln!("usage: caller TARGET COUNT SIZE echo|reverse|checksum|any");
            exit(64);
        }
    };
    let [count, size] = [count, size].map(|text| text.parse::<usize>().expect("a number"));
    let payload = pattern(size);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for round in 0..count {
        let response = match cwasi::call(target, &payload) {
            Ok(response) => response,
            Err(error) => fail(&error),
        };
        churn(&mut kept, &response);
        if !matches(expect, &payload, &response) {
            eprintln!("round {round}: {} bytes came back, not the expected ones", response.len());
            exit(65);
        }
    }
    println!("{count} calls with {size} bytes: as expected");
}

fn idempotent(target: &str, payload: &str) {
    match cwasi::call_idempotent(target, payload.as_bytes()) {
        Ok(response) => println!("{}", String::from_utf8_lossy(&response)),
        Err(error) => fail(&error),
    }
}

fn fail(error: &cwasi::CallError) -> ! {
    eprintln!("{error}");
    exit(error.kind().code());
}

/// Allocates, copies, moves and frees.
fn churn(kept: &mut Vec<Vec<u8>>, response: &[u8]) {
    kept.push(response.iter().rev().copied().collect());
    let mut twice = response.to_vec();
    twice.extend_from_within(..);
    twice.copy_within(.., 0);
    kept.push(twice);
    if kept.len() > 8 {
        kept.drain(..4);
    }
}

fn matches(expect: &str, payload: &[u8], response: &[u8]) -> bool {
    match expect {
        "echo" => response == payload,
        "reverse" => response.iter().rev().eq(payload),
        "checksum" => response == checksum(payload).as_bytes(),
        _ => true,
    }
}

/// Length and FNV-1a of the bytes.
fn checksum(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} {hash:016x}", bytes.len())
}

/// Bytes without a short period.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}
