//! Text of others for a terminal: control characters become visible (`\x1b`). So no name, error or log moves the
//! cursor, sets a title or hides what was printed before.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A text of several lines: line feeds and tabs stay.
pub fn text(text: &str) -> Cow<'_, str> {
    replaced(text, |character| character.is_control() && !matches!(character, '\n' | '\t'), escaped)
}

/// A text within one line, such as a cell of a table: a line feed in it would begin a line that is not ours.
pub fn word(text: &str) -> Cow<'_, str> {
    replaced(text, char::is_control, escaped)
}

/// A line of a log: text, whatever its encoding. A carriage return at its end stays, too.
pub fn log_line(line: &[u8]) -> Cow<'_, [u8]> {
    let (line, end) = match line.strip_suffix(b"\r\n") {
        Some(text) => (text, "\r\n"),
        None => (line, ""),
    };
    let is_plain = |byte: &u8| matches!(byte, b'\n' | b'\t' | b' '..=b'~');
    if end.is_empty() && line.iter().all(is_plain) {
        return Cow::Borrowed(line);
    }
    let mut visible = String::with_capacity(line.len() + end.len());
    for chunk in line.utf8_chunks() {
        visible.push_str(&text(chunk.valid()));
        for byte in chunk.invalid() {
            escaped(&mut visible, u32::from(*byte));
        }
    }
    visible.push_str(end);
    Cow::Owned(visible.into_bytes())
}

/// A JSON document: in its strings, `serde_json` leaves the control characters above U+007E as they are.
pub fn json(document: &str) -> Cow<'_, str> {
    replaced(
        document,
        |character| character.is_control() && character > '~',
        |out, code| {
            // A String takes everything.
            let _infallible = write!(out, "\\u{code:04x}");
        },
    )
}

fn escaped(out: &mut String, code: u32) {
    match code {
        0x09 => out.push_str("\\t"),
        0x0a => out.push_str("\\n"),
        0x0d => out.push_str("\\r"),
        code => {
            // A String takes everything.
            let _infallible = write!(out, "\\x{code:02x}");
        }
    }
}

fn replaced(
    text: &str,
    is_hidden: impl Fn(char) -> bool,
    write: impl Fn(&mut String, u32),
) -> Cow<'_, str> {
    if !text.contains(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            write(&mut visible, character.into());
        } else {
            visible.push(character);
        }
    }
    Cow::Owned(visible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_visible_and_all_else_stays() {
        let plain = "Grüße, 世界\tend\n";
        assert!(matches!(text(plain), Cow::Borrowed(same) if same == plain));
        assert_eq!(
            text("a\u{1b}]0;title\u{7}\rb\u{9b}2J\u{7f}\n"),
            "a\\x1b]0;title\\x07\\rb\\x9b2J\\x7f\n"
        );
        assert_eq!(word("a\nb\tc"), "a\\nb\\tc");
    }

    #[test]
    fn a_log_line_has_any_bytes() {
        assert!(matches!(log_line(b"plain\n"), Cow::Borrowed(b"plain\n")));
        assert_eq!(&*log_line("Grüße\r\n".as_bytes()), "Grüße\r\n".as_bytes());
        assert_eq!(&*log_line(b"\x1b[2J\xff\x9b1m a\rb\r\n"), b"\\x1b[2J\\xff\\x9b1m a\\rb\r\n");
    }

    #[test]
    fn a_document_stays_json() {
        let value = serde_json::json!({ "text": "\u{1b}\u{7f}\u{9b}ü" });
        let written = serde_json::to_string(&value).unwrap();
        let visible = json(&written);
        assert!(!visible.chars().any(char::is_control), "{visible}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&visible).unwrap(), value);
    }
}
