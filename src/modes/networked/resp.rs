//! Redis' wire protocol (RESP 2), as much of it as moving chunks needs. Pure data, no I/O.
//!
//! The other commands go through the `redis` crate. Chunks do not, because it copies every argument and every
//! answer several times.

/// Longest line before the bytes of an answer; only errors have long ones.
const LINE_MAX: usize = 4096;

/// Bytes that are no answer of Redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an answer of Redis: {what}")]
pub struct Malformed {
    /// What is wrong with them.
    what: &'static str,
}

/// How an answer begins; what follows are so many bytes and a line's end, or so many answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// `+OK`.
    Simple,
    Error(String),
    Integer(i64),
    /// Bytes that follow; `None` = there is no such value.
    Bytes(Option<usize>),
    /// Answers that follow; `None` = the time was up.
    Array(Option<usize>),
}

pub const LINE_END: &[u8] = b"\r\n";

pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    count(out, b'*', words.len());
    words.iter().for_each(|word| argument(out, word));
}

/// Appends the beginning of a command of `words` and more, up to the bytes of an argument of `next` bytes, which
/// the caller adds, with a [`LINE_END`], and the `after` arguments that come then ([`argument`]).
pub fn command_until(out: &mut Vec<u8>, words: &[&[u8]], next: usize, after: usize) {
    count(out, b'*', words.len() + 1 + after);
    words.iter().for_each(|word| argument(out, word));
    count(out, b'$', next);
}

pub fn argument(out: &mut Vec<u8>, word: &[u8]) {
    count(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(LINE_END);
}

fn count(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.extend_from_slice(LINE_END);
}

/// The answer's head at the beginning of `bytes`, and its length; `None` when more bytes have to come first.
///
/// # Errors
/// When it is none.
pub fn head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
    let Some(end) = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\r') else {
        return match bytes.len() {
            ..LINE_MAX => Ok(None),
            _ => Err(Malformed { what: "a line without an end" }),
        };
    };
    match bytes.get(end + 1) {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(Malformed { what: "half a line's end" }),
    }
    let line = &bytes[..end];
    let (kind, rest) = line.split_first().ok_or(Malformed { what: "an empty line" })?;
    let head = match kind {
        b'+' => Head::Simple,
        b'-' => Head::Error(String::from_utf8_lossy(rest).into_owned()),
        b':' => Head::Integer(number(rest)?),
        b'$' => Head::Bytes(length(rest)?),
        b'*' => Head::Array(length(rest)?),
        _ => return Err(Malformed { what: "an unknown kind" }),
    };
    Ok(Some((head, end + LINE_END.len())))
}

fn number(digits: &[u8]) -> Result<i64, Malformed> {
    let wrong = Malformed { what: "a number that is none" };
    str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(wrong)
}

fn length(digits: &[u8]) -> Result<Option<usize>, Malformed> {
    match number(digits)? {
        -1 => Ok(None),
        length => {
            usize::try_from(length).map(Some).map_err(|_| Malformed { what: "a negative length" })
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn commands_are_encoded() {
        let mut out = Vec::new();
        command(&mut out, &[b"GETDEL", b"k"]);
        assert_eq!(out, b"*2\r\n$6\r\nGETDEL\r\n$1\r\nk\r\n");
        out.clear();
        command_until(&mut out, &[b"SET", b"k"], 3, 2);
        out.extend_from_slice(b"abc\r\n");
        argument(&mut out, b"PX");
        argument(&mut out, b"77");
        assert_eq!(out, b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabc\r\n$2\r\nPX\r\n$2\r\n77\r\n");
    }

    #[test]
    fn heads_are_decoded() {
        let heads: [(&[u8], Head); 7] = [
            (b"+OK\r\n", Head::Simple),
            (b"-OOM no\r\n", Head::Error("OOM no".into())),
            (b":-3\r\n", Head::Integer(-3)),
            (b"$12\r\nx", Head::Bytes(Some(12))),
            (b"$-1\r\n", Head::Bytes(None)),
            (b"*2\r\n", Head::Array(Some(2))),
            (b"*-1\r\n", Head::Array(None)),
        ];
        for (bytes, expected) in heads {
            let (head, len) = head(bytes).unwrap().unwrap();
            assert_eq!(head, expected);
            assert_eq!(&bytes[len - 2..len], LINE_END);
            for cut in 0..len {
                assert_eq!(super::head(&bytes[..cut]), Ok(None), "{cut} bytes of {expected:?}");
            }
        }
    }

    #[test]
    fn malformed_answers_are_refused() {
        let wrong: [&[u8]; 6] =
            [b"\r\n", b"?1\r\n", b"$-2\r\n", b":x\r\n", b"+OK\rx", &[b'x'; LINE_MAX]];
        for bytes in wrong {
            assert!(head(bytes).is_err(), "{bytes:?}");
        }
    }
}
