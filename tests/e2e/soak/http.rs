//! An HTTP client of a callee's own port: each request is a call with an account, as those of the other callers.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use cwasi_abi::Errno;

use super::fixture::Fixture;

/// Name of its account.
const ACCOUNT: &str = "http";
/// Its first number: beyond those of other callers.
const FIRST: u64 = 1 << 40;
/// Bytes of a payload, at least; the largest one travels as a descriptor.
const SIZES: [usize; 3] = [8, 20_000, 150_000];
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(70);
/// The account's errno for an answer with other bytes.
const WRONG_ANSWER: i32 = 99;
/// Between two requests while nobody listens.
const PAUSE: Duration = Duration::from_millis(20);

/// Sends requests until `end`. Returns the account's name.
pub fn run(fixture: &Fixture, end: Instant) -> Vec<String> {
    let path = fixture.notes().join(ACCOUNT);
    let mut account = OpenOptions::new().create(true).append(true).open(path).unwrap();
    for number in FIRST.. {
        if Instant::now() >= end {
            break;
        }
        one(fixture.http_port(), number, &mut account);
    }
    writeln!(account, "done").unwrap();
    vec![ACCOUNT.to_owned()]
}

fn one(port: u16, number: u64, account: &mut File) {
    // Nothing was sent to a port that nobody has.
    let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
        std::thread::sleep(PAUSE);
        return;
    };
    let size = SIZES[usize::try_from(number).unwrap() % SIZES.len()];
    let mut payload = number.to_le_bytes().to_vec();
    payload.extend((payload.len()..size).map(|at| pattern(number, at)));
    writeln!(account, "s {number}").unwrap();
    let (errno, text) = match exchange(stream, &payload) {
        Ok((200, body)) if body == payload => (Errno::Ok.code(), "ok".to_owned()),
        Ok((200, _)) => (WRONG_ANSWER, "other bytes came back".to_owned()),
        Ok((status, body)) => (errno_of(status), String::from_utf8_lossy(&body).replace('\n', " ")),
        Err(error) => (Errno::Broken.code(), error.to_string()),
    };
    writeln!(account, "e {number} {errno} {text}").unwrap();
}

/// One request on a connection of its own: status and body.
fn exchange(mut stream: TcpStream, payload: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let length = payload.len();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(payload)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Status and whole body of an answer.
fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = str::from_utf8(&answer[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let body = &answer[end + 4..];
    (body.len() == length.parse::<usize>().ok()?).then(|| (status, body.to_vec()))
}

/// What the status says of the call.
const fn errno_of(status: u16) -> i32 {
    match status {
        404 => Errno::NoSuchFunction.code(),
        429 => Errno::Overloaded.code(),
        502 => Errno::Broken.code(),
        503 => Errno::Unreachable.code(),
        504 => Errno::Timeout.code(),
        _ => Errno::Internal.code(),
    }
}

/// As `soak-callee` has it.
fn pattern(number: u64, at: usize) -> u8 {
    let low = usize::try_from(number & u64::from(u32::MAX)).unwrap();
    low.wrapping_mul(31).wrapping_add(at ^ (at >> 8)).to_le_bytes()[0]
}

#[test]
fn a_cut_answer_is_none() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab";
    assert_eq!(parse(whole), Some((200, b"ab".to_vec())));
    assert_eq!(parse(&whole[..whole.len() - 1]), None);
    assert_eq!(parse(&whole[..20]), None);
}
