//! The function as a native server.

#[cfg(not(target_os = "wasi"))]
fn main() -> std::io::Result<()> {
    function::serve(n_body::answer)
}

#[cfg(target_os = "wasi")]
fn main() {}
