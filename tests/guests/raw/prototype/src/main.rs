//! A function with the ABI of the paper's prototype (2023), as its authors' functions have it: `main` and
//! `cwasi_function` in one module, which is caller and callee.
//!
//! - As a command with the arguments TARGET and PAYLOAD: calls TARGET, prints its answer.
//! - With TARGET, SIZE and COUNT: calls TARGET so often, each time with so many bytes.
//! - As a callee: the number of bytes of its payload, after what that asks for. `!next` in it calls `next.wasm` first,
//!   `!trap`, `!exit` and `!outside` misbehave.

use std::env::args;

/// What the prototype passes as the last argument.
const LAST_ARGUMENT: &str = "15";

#[link(wasm_import_module = "cwasi_export")]
unsafe extern "C" {
    /// Overwrites the message with the answer, and returns the answer's length.
    fn func_connect(message: i32, len: i32) -> i32;
}

fn main() {
    let args: Vec<String> = args().collect();
    match args.as_slice() {
        [_, target, payload] => println!("{}", connect(&message(target, payload))),
        [_, target, size, count] => {
            let [size, count] = [size, count].map(|number| number.parse().unwrap_or(0));
            let message = message(target, &"x".repeat(size));
            for _ in 0..count {
                println!("{}", connect(&message));
            }
        }
        _ => {
            eprintln!("usage: prototype TARGET PAYLOAD, or prototype TARGET SIZE COUNT");
            std::process::exit(2);
        }
    }
}

/// The entry of a callee.
#[unsafe(no_mangle)]
pub extern "C" fn cwasi_function() -> i32 {
    let args: Vec<String> = args().collect();
    let [_, message, last] = args.as_slice() else { return -1 };
    if last != LAST_ARGUMENT {
        return -2;
    }
    if message.contains("!next") {
        eprintln!("next: {}", connect(&self::message("next.wasm", "from the middle")));
    }
    if message.contains("!trap") {
        core::arch::wasm32::unreachable();
    }
    if message.contains("!exit") {
        std::process::exit(3);
    }
    if message.contains("!outside") {
        // SAFETY:
        // - the host refuses it.
        unsafe { func_connect(-8, 64) };
    }
    println!("got {} bytes", message.len());
    i32::try_from(message.len()).unwrap_or(i32::MAX)
}

fn message(target: &str, payload: &str) -> String {
    format!(
        r#"{{"source_channel":"prototype.wasm","target_channel":"{target}","payload":"{payload}"}}"#
    )
}

/// Sends a message; returns the answer, which may be longer.
fn connect(message: &str) -> String {
    const ROOM: usize = 4096;
    let mut buffer = message.as_bytes().to_vec();
    buffer.resize(message.len() + ROOM, 0);
    let (at, len) = (buffer.as_mut_ptr() as i32, message.len() as i32);
    // SAFETY:
    // - the answers of these tests fit into the buffer.
    let answered = unsafe { func_connect(at, len) };
    buffer.truncate(usize::try_from(answered).unwrap_or(0));
    String::from_utf8_lossy(&buffer).into_owned()
}
