//! A primary that ends at once: what is left is the start of a container.
//!
//! Runs inside a guest.

fn main() {}
