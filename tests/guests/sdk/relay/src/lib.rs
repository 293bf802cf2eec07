//! A branch between a fan-out and a fan-in: makes a part and sends it on.
//!
//! The payload `TARGET KEY PARTS NUMBER SIZE` asks for part NUMBER of PARTS with SIZE bytes of the pattern, for TARGET
//! under KEY; the answer is TARGET's.
//!
//! Runs inside a guest, one instance per request.

use cwasi::{CallOptions, Region};

#[cwasi::handler]
fn relay(payload: &[u8]) -> Result<Vec<u8>, String> {
    let text = str::from_utf8(payload).map_err(|error| error.to_string())?;
    let words: Vec<&str> = text.split(' ').collect();
    let [target, key, parts, number, size] = words[..] else {
        return Err(format!("`{text}` is no TARGET KEY PARTS NUMBER SIZE"));
    };
    let count = |text: &str| text.parse::<u32>().map_err(|error| format!("{text}: {error}"));
    let (parts, number) = (count(parts)?, count(number)?);
    let mut region = Region::with_len(count(size)? as usize);
    for (at, byte) in region.iter_mut().enumerate() {
        *byte = (at.wrapping_mul(31) ^ number as usize).to_le_bytes()[0];
    }
    let call = CallOptions::new().join(key, parts, number).start(target, &region.seal());
    call.wait().map(Vec::from).map_err(|error| error.to_string())
}
