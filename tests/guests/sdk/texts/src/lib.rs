//! A library that uses a library, keeps state, and misbehaves when asked to.
//!
//! Runs inside a guest, embedded.

use std::cell::Cell;

cwasi::library!();

cwasi::import! {
    mod letters {
        fn capitals(text: &str) -> String;
        fn count(text: &str, letter: u32) -> Result<u32, String>;
    }
}

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The text in capitals, backwards; calls the other library twice and uses what came back after both.
#[cwasi::export]
fn backwards(text: &str) -> String {
    CALLS.set(CALLS.get() + 1);
    let capitals = letters::capitals(text);
    let again = letters::capitals(&capitals);
    assert_eq!(capitals, again, "capitals stay capitals");
    capitals.chars().rev().collect()
}

/// Both texts joined by as many dashes; fails for none.
#[cwasi::export]
fn join(left: &str, dashes: u32, right: &[u8]) -> Result<Vec<u8>, String> {
    CALLS.set(CALLS.get() + 1);
    if dashes == 0 {
        return Err("no dashes, no joint".into());
    }
    let mut joined = left.as_bytes().to_vec();
    joined.resize(joined.len() + dashes as usize, b'-');
    joined.extend_from_slice(right);
    Ok(joined)
}

/// How often this instance was called.
#[cwasi::export]
fn calls() -> u32 {
    CALLS.get()
}

/// Takes memory, one MiB after the other, until there is none or `limit` is reached.
#[cwasi::export]
fn hog(limit: u32) -> u32 {
    let mut held: Vec<Vec<u8>> = Vec::new();
    while (held.len() as u32) < limit {
        let mut bite = Vec::new();
        if bite.try_reserve_exact(1 << 20).is_err() {
            break;
        }
        bite.resize(1 << 20, 1_u8);
        held.push(bite);
    }
    held.len() as u32
}

/// `panic`, `exit` or `loop`.
#[cwasi::export]
fn misbehave(how: &str) {
    match how {
        "panic" => panic!("texts cannot go on"),
        "exit" => std::process::exit(7),
        _ => loop {
            std::hint::black_box(how);
        },
    }
}
