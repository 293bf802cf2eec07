//! The function as a native server.

#[cfg(not(target_os = "wasi"))]
fn main() -> std::io::Result<()> {
    function::serve(whatlang_function::answer)
}

#[cfg(target_os = "wasi")]
fn main() {}
