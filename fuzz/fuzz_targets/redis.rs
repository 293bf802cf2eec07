//! Redis' answers while chunks are moved (`modes::networked::resp`).
#![no_main]

use cwasi_fuzz::memory::bounded;
use cwasi_networked::resp::{Head, LINE_END, command, head};
use libfuzzer_sys::fuzz_target;

/// Beginnings of an answer that are tried.
const CUTS_MAX: usize = 40;

fuzz_target!(|data: &[u8]| {
    if let Ok(Some((read, len))) = bounded(data, 4, || head(data)) {
        assert!(data[..len].ends_with(LINE_END));
        // Whatever has come of it before, or behind it, changes nothing.
        for cut in (0..len).take(CUTS_MAX) {
            assert_eq!(head(&data[..cut]), Ok(None), "{cut} bytes of {read:?}");
        }
        assert_eq!(head(&data[..len]), Ok(Some((read.clone(), len))));
        if let Head::Integer(number) = read {
            let written = format!(":{number}\r\n");
            assert_eq!(head(written.as_bytes()), Ok(Some((read, written.len()))));
        }
    }
    // Commands have the same form, and hold any bytes.
    let words: Vec<&[u8]> = data.splitn(3, |byte| *byte == b' ').collect();
    let mut bytes = Vec::new();
    command(&mut bytes, &words);
    let mut rest = &bytes[..];
    assert_eq!(next(&mut rest), Head::Array(Some(words.len())));
    for word in words {
        assert_eq!(next(&mut rest), Head::Bytes(Some(word.len())));
        let (read, behind) = rest.split_at(word.len());
        assert_eq!(read, word);
        rest = behind.strip_prefix(LINE_END).expect("an argument has an end");
    }
    assert!(rest.is_empty());
});

fn next(bytes: &mut &[u8]) -> Head {
    let (read, len) = head(bytes).expect("a command is well-formed").expect("and whole");
    *bytes = &bytes[len..];
    read
}
