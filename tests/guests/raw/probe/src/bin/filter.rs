//! A WASI command as a secondary: payload on stdin, response in capitals on stdout. A payload of two words,
//! `!verb argument`, makes it misbehave; `!fail text` exits with 3 after saying `text`.
//!
//! Runs inside a guest, once per request.

use std::io::{self, Read as _, Write as _};
use std::process;

fn main() -> io::Result<()> {
    let mut payload = Vec::new();
    io::stdin().read_to_end(&mut payload)?;
    if let Some(order) = payload.strip_prefix(b"!") {
        let order = String::from_utf8_lossy(order);
        let (verb, argument) = order.split_once(' ').unwrap_or((&order, ""));
        if verb == "fail" {
            eprintln!("{argument}");
            process::exit(3);
        }
        raw_calls::misbehave(verb, argument);
    }
    io::stdout().write_all(&payload.to_ascii_uppercase())
}
