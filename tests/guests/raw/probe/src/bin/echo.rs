//! A WASI command as a secondary that answers with its payload.
//!
//! Runs inside a guest, once per request.

use std::io;

fn main() -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::stdout()).map(drop)
}
