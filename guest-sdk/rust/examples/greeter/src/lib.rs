//! A secondary: greets the name in its payload.

#[cwasi::handler]
fn greet(name: &[u8]) -> Result<Vec<u8>, std::str::Utf8Error> {
    let name = str::from_utf8(name)?;
    cwasi::log::init();
    cwasi::log::info!("greeting {name} for {}", cwasi::context().caller);
    Ok(format!("Hello, {name}!").into_bytes())
}
