//! A library: its functions run inside the importing function's VM, in a memory of their own.

cwasi::library!();

/// The text in capitals.
#[cwasi::export]
fn capitals(text: &str) -> String {
    text.to_uppercase()
}

/// How often `letter`, a Unicode scalar value, is in the text.
#[cwasi::export]
fn count(text: &str, letter: u32) -> Result<u32, String> {
    let letter = char::from_u32(letter).ok_or_else(|| format!("{letter:#x} is no letter"))?;
    Ok(text.chars().filter(|c| *c == letter).map(|_| 1).sum())
}
