//! Log lines of the host's processes, each on one line: texts of guests and clients are among their fields, and a line
//! feed in them would begin a line that looks like another record.

use std::io::{self, Write};

/// A writer whose every write is one record, as `tracing_subscriber` makes them.
#[derive(Debug)]
pub struct OneLine<W>(pub W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = record.strip_suffix(b"\n").unwrap_or(record);
        if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return self.0.write_all(record).map(|()| record.len());
        }
        let mut line = Vec::with_capacity(record.len() + 16);
        for byte in text {
            match byte {
                b'\n' => line.extend_from_slice(br"\n"),
                b'\r' => line.extend_from_slice(br"\r"),
                byte => line.push(*byte),
            }
        }
        line.push(b'\n');
        self.0.write_all(&line).map(|()| record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line() {
        let mut log = OneLine(Vec::new());
        for record in ["INFO plain\n", "WARN error=a\nINFO forged\r\n"] {
            log.write_all(record.as_bytes()).unwrap();
        }
        assert_eq!(log.0, b"INFO plain\nWARN error=a\\nINFO forged\\r\n");
    }
}
