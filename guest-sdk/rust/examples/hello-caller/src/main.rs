//! A primary: has `greeter` greet each of its arguments.

fn main() -> Result<(), cwasi::CallError> {
    for name in std::env::args().skip(1) {
        let greeting = cwasi::call("greeter", name.as_bytes())?;
        println!("{}", String::from_utf8_lossy(&greeting));
    }
    Ok(())
}
