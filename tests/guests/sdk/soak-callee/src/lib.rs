//! A secondary of the fault suite: notes the number of each call that it runs as a file in `/soak/executed`, and answers
//! the payload. The file is there before anything else is done, so it stays when this worker is killed. (Appending to
//! one file would lose notes: the engine seeks to the end and writes, and other workers do so too.)
//!
//! The payload begins with the call's number (8 bytes, little-endian); the others are made from it.
//!
//! Runs inside a guest, as a secondary.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::time::Duration;

/// Bytes of a call's number.
const NUMBER_LEN: usize = 8;
/// Every so many calls take a moment, so that others are under way and in queues.
const SLOW_EVERY: u64 = 8;
const SLOW: Duration = Duration::from_millis(4);

#[cwasi::handler]
fn run(payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let number = payload.first_chunk::<NUMBER_LEN>().ok_or("a payload without a number")?;
    let number = u64::from_le_bytes(*number);
    note(number).map_err(|error| format!("a note in /soak/executed: {error}"))?;
    let rest = payload.iter().enumerate().skip(NUMBER_LEN);
    if let Some((at, _)) = rest.into_iter().find(|(at, byte)| **byte != pattern(number, *at)) {
        return Err(format!("byte {at} of call {number} is another one"));
    }
    if number % SLOW_EVERY == 0 {
        std::thread::sleep(SLOW);
    }
    Ok(payload)
}

/// A file named by the number, or by the number and a dot when it ran before.
fn note(number: u64) -> std::io::Result<()> {
    let create = |name: String| OpenOptions::new().write(true).create_new(true).open(name);
    match create(format!("/soak/executed/{number}")) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            create(format!("/soak/executed/{number}.")).map(drop)
        }
        created => created.map(drop),
    }
}

/// As `soak-caller` has it.
fn pattern(number: u64, at: usize) -> u8 {
    (number as usize).wrapping_mul(31).wrapping_add(at ^ (at >> 8)).to_le_bytes()[0]
}
