//! The function as a native server.

#[cfg(not(target_os = "wasi"))]
fn main() -> std::io::Result<()> {
    function::serve(fuzzysearch::answer)
}

#[cfg(target_os = "wasi")]
fn main() {}
