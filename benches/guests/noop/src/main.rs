//! A primary that ends at once, to measure the start of a container. Runs inside a guest.

fn main() {}
