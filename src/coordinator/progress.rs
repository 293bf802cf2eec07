//! Messages for a user who waits for a container to start. Runs in the shim daemon.

/// Receives messages while a container is planned.
pub trait Progress: Sync {
    /// A step begins, waits or ends.
    fn info(&self, text: &str);

    /// Something is allowed, but probably not intended.
    fn warn(&self, text: &str);
}

/// A length in bytes for people.
#[must_use]
pub fn in_words(bytes: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let bytes_f = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", bytes_f / 1e3),
        _ => format!("{:.1} MB", bytes_f / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_unit_that_suits_them() {
        let words = [3, 1_700, 1_800_000, 128 << 20].map(in_words);
        assert_eq!(words, ["3 bytes", "1.7 kB", "1.8 MB", "134.2 MB"]);
    }
}
