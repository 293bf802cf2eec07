//! Divides what is read of a log into lines. Each byte is read once, and a line without end is divided, too.

use std::io;

/// Longest line in bytes: the rest of a longer one is the next line.
const LINE_MAX: usize = 1 << 20;

/// The unfinished line of a log.
#[derive(Debug, Default)]
pub struct LogLines {
    rest: Vec<u8>,
    /// The unfinished line continues a longer one.
    continues: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its bytes, with its line feed if it has one.
    pub bytes: &'a [u8],
    /// It continues the line before it, which was too long.
    pub continues: bool,
    /// The next line continues it.
    pub is_cut: bool,
}

impl LogLines {
    /// Hands the lines that `bytes` end to `each`.
    pub fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(Line<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            let has_end = part.ends_with(b"\n");
            if has_end || self.rest.len() >= LINE_MAX {
                each(Line { bytes: &self.rest, continues: self.continues, is_cut: !has_end })?;
                self.rest.clear();
                self.continues = !has_end;
            }
        }
        Ok(())
    }

    /// Hands the unfinished line to `each`, if there is one.
    pub fn finish(&mut self, each: impl FnOnce(Line<'_>) -> io::Result<()>) -> io::Result<()> {
        let Self { rest, continues } = std::mem::take(self);
        if rest.is_empty() { Ok(()) } else { each(Line { bytes: &rest, continues, is_cut: false }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_divided() {
        let (mut lines, mut found) = (LogLines::default(), Vec::new());
        let mut each = |line: Line<'_>| {
            found.push((line.bytes.len(), line.continues, line.is_cut));
            Ok(())
        };
        lines.push(b"one\ntw", &mut each).unwrap();
        lines.push(b"o\n", &mut each).unwrap();
        for _ in 0..=LINE_MAX / 1024 {
            lines.push(&[b'a'; 1024], &mut each).unwrap();
        }
        lines.push(b"end\nlast", &mut each).unwrap();
        lines.finish(&mut each).unwrap();
        lines.finish(each).unwrap();
        let short = (4, false, false);
        assert_eq!(found, [short, short, (LINE_MAX, false, true), (1028, true, false), short]);
    }
}
