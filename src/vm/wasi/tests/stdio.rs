//! The process's stdin, stdout and stderr: pipes here.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::*;

/// A guest, the writer of its stdin, and the readers of its stdout and stderr.
fn guest() -> (Guest, PipeWriter, PipeReader, PipeReader) {
    let pipe = || std::io::pipe().unwrap();
    let [(stdin, writer), (out, stdout), (err, stderr)] = [pipe(), pipe(), pipe()];
    let stdio = [Some(stdin.into()), Some(stdout.into()), Some(stderr.into())];
    (Guest::with(None, stdio), writer, out, err)
}

fn waits(fd: impl AsFd) -> bool {
    let flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL).unwrap());
    !flags.contains(OFlag::O_NONBLOCK)
}

#[test]
fn bytes_go_through() {
    let (mut guest, mut writer, mut out, mut err) = guest();
    writer.write_all(b"input").unwrap();
    assert_eq!(guest.read(0, 9), Ok(b"input".to_vec()));
    assert_eq!(guest.write(1, b"output"), Ok(6));
    assert_eq!(guest.write(2, b"error"), Ok(5));
    assert_eq!(guest.write(0, b"x"), Err(WasiErrno::BADF));
    assert_eq!(guest.read(1, 1), Err(WasiErrno::BADF));
    assert_eq!(guest.seek(1, 0, 1), Err(WasiErrno::SPIPE));
    assert_eq!(guest.fd_stat(0), Ok((0, 0, READ)));
    assert_eq!(guest.fd_stat(1), Ok((0, 0, WRITE)));
    assert_eq!(guest.stat(2).unwrap().kind, 0);
    drop(writer);
    assert_eq!(guest.read(0, 9), Ok(vec![]));
    // The pipe is the template's.
    guest.close(1).unwrap();
    assert_eq!(guest.write(1, b"x"), Err(WasiErrno::BADF));
    drop(guest);
    let mut texts = [String::new(), String::new()];
    out.read_to_string(&mut texts[0]).unwrap();
    err.read_to_string(&mut texts[1]).unwrap();
    assert_eq!(texts, ["output", "error"]);
}

#[test]
fn links_to_the_streams_of_a_process_are_the_guests_streams() {
    let (mut guest, mut writer, mut out, mut err) = guest();
    for (target, link) in [
        ("/proc/self/fd/0", "in"),
        ("/dev/stdout", "out"),
        ("/proc/self/fd/2", "err"),
        ("/proc/self/fd/7", "other"),
        ("/etc/passwd", "outside"),
    ] {
        std::os::unix::fs::symlink(target, guest.host(link)).unwrap();
    }
    writer.write_all(b"input").unwrap();
    assert_eq!(guest.open("in", 0, READ), Err(WasiErrno::LOOP));
    let stdin = guest.open_at(DATA, FOLLOW, "in", 0, (READ, 0)).unwrap();
    assert_eq!(guest.read(stdin, 9), Ok(b"input".to_vec()));
    // As `fopen(path, "w")` does: create, truncate.
    for (name, text) in [("out", b"output".as_slice()), ("err", b"error")] {
        let stream = guest.open_at(DATA, FOLLOW, name, 1 | 8, (WRITE, 0)).unwrap();
        assert_eq!(guest.write(stream, text), Ok(u32::try_from(text.len()).unwrap()));
        guest.close(stream).unwrap();
    }
    for name in ["other", "outside"] {
        assert_eq!(guest.open_at(DATA, FOLLOW, name, 0, (READ, 0)), Err(WasiErrno::PERM));
    }
    drop(guest);
    let mut texts = [String::new(), String::new()];
    out.read_to_string(&mut texts[0]).unwrap();
    err.read_to_string(&mut texts[1]).unwrap();
    assert_eq!(texts, ["output", "error"]);
}

#[test]
fn the_tail_of_stderr_is_kept_on_request() {
    let (mut guest, _writer, _out, _err) = guest();
    guest.write(2, b"before").unwrap();
    assert_eq!(guest.wasi.stderr_tail(), b"");
    guest.wasi.keep_stderr();
    guest.write(1, b"elsewhere").unwrap();
    guest.memory.put(BYTES, b"said what");
    guest.memory.words(PARTS, &[BYTES, 5, BYTES + 5, 4]);
    guest.wasi.fd_write(&mut guest.memory, 2, PARTS, 2, OUT).unwrap();
    assert_eq!(guest.wasi.stderr_tail(), b"said what");
    guest.write(2, &[b'x'; 3000]).unwrap();
    assert_eq!(guest.wasi.stderr_tail(), [b'x'; crate::TAIL_MAX]);
    guest.wasi.keep_stderr();
    assert_eq!(guest.wasi.stderr_tail(), b"");
}

/// Go sets it at its start. Other processes share these pipes.
#[test]
fn non_blocking_stdio_does_not_change_the_pipes() {
    let (mut guest, mut writer, mut out, _err) = guest();
    for fd in 0..3 {
        guest.wasi.fd_fdstat_set_flags(&mut guest.memory, fd, NONBLOCK).unwrap();
        assert_eq!(guest.fd_stat(fd).unwrap().1, NONBLOCK);
    }
    assert_eq!(guest.read(0, 9), Err(WasiErrno::AGAIN));
    writer.write_all(b"in").unwrap();
    assert_eq!(guest.read(0, 9), Ok(b"in".to_vec()));
    let mut written = 0;
    let full = loop {
        match guest.write(1, &[7; 20000]) {
            Ok(len) => written += len as usize,
            Err(error) => break error,
        }
    };
    assert_eq!(full, WasiErrno::AGAIN);
    assert!(waits(&writer) && waits(&out));
    assert!((0..3).all(|number| waits(guest.wasi.template.stdio(number))));
    let mut bytes = vec![0; written];
    out.read_exact(&mut bytes).unwrap();
    assert_eq!(guest.write(1, b"x"), Ok(1));
    let set = guest.wasi.fd_fdstat_set_flags(&mut guest.memory, 1, 16);
    assert_eq!(set, Err(WasiErrno::INVAL));
}

#[test]
fn a_closed_reader_is_an_error() {
    let (mut guest, _writer, out, _err) = guest();
    drop(out);
    assert_eq!(guest.write(1, b"x"), Err(WasiErrno::PIPE));
}
