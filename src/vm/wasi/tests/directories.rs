//! Entries of directories.

use std::collections::BTreeMap;

use super::*;

/// An entry: name, cookie of the next one, inode, type.
type Entry = (String, u64, u64, u8);

/// The whole entries that fit into `room` bytes from `cookie` on, and the number of bytes.
fn entries(guest: &mut Guest, fd: u32, room: u32, cookie: u64) -> (Vec<Entry>, u32) {
    guest.wasi.fd_readdir(&mut guest.memory, fd, BYTES, room, cookie, OUT).unwrap();
    let len = guest.memory.u32_at(OUT);
    let bytes = guest.memory.bytes_at(BYTES, len);
    let (mut rest, mut entries) = (&bytes[..], Vec::new());
    while rest.len() >= 24 {
        let (next, inode, name_len) = (u64_of(rest, 0), u64_of(rest, 8), u32_of(rest, 16) as usize);
        let Some(name) = rest.get(24..24 + name_len) else { break };
        entries.push((String::from_utf8(name.to_vec()).unwrap(), next, inode, rest[20]));
        rest = &rest[24 + name_len..];
    }
    (entries, len)
}

/// Reads as a C library does: again from the last whole entry on until the buffer is not full.
fn all(guest: &mut Guest, fd: u32, room: u32) -> Vec<Entry> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let (some, len) = entries(guest, fd, room, cookie);
        assert!(len < room || !some.is_empty(), "no whole entry");
        cookie = some.last().map_or(cookie, |last| last.1);
        all.extend(some);
        if len < room {
            return all;
        }
    }
}

#[test]
fn an_empty_directory_has_itself_and_its_parent() {
    let mut guest = Guest::new();
    let own = guest.stat(DATA).unwrap().inode;
    let mut found = all(&mut guest, DATA, 4096);
    found.sort();
    let found: Vec<_> =
        found.iter().map(|(name, _, inode, kind)| (&**name, *inode, *kind)).collect();
    assert_eq!(found, [(".", own, 3), ("..", own, 3)]);
}

#[test]
fn entries_come_with_any_buffer_and_from_any_cookie() {
    let mut guest = Guest::new();
    guest.mkdir(DATA, "sub").unwrap();
    let sub = guest.open("sub", DIRECTORY, READ).unwrap();
    let count = 300;
    for index in 0..count {
        guest.file(&format!("sub/file-{index}"), "");
    }
    guest.mkdir(DATA, "sub/dir").unwrap();
    guest.symlink("dir", DATA, "sub/link").unwrap();
    let found = all(&mut guest, sub, 40000);
    assert_eq!(found.len(), count + 4);
    let by_name: BTreeMap<_, _> =
        found.iter().map(|(name, _, inode, kind)| (&**name, (*inode, *kind))).collect();
    assert_eq!(by_name.len(), found.len());
    assert_eq!((by_name["dir"].1, by_name["link"].1, by_name["file-7"].1), (3, 7, 4));
    assert_eq!(by_name["file-7"].0, guest.stat_at(sub, 0, "file-7").unwrap().inode);
    for room in [64, 100, 1000] {
        assert_eq!(all(&mut guest, sub, room), found, "{room}");
    }
    for index in [0, 1, 100, found.len() - 1] {
        let (rest, _) = entries(&mut guest, sub, 40000, found[index].1);
        assert_eq!(rest, found[index + 1..], "{index}");
    }
    let last = found[found.len() - 1].1;
    for behind in [last, last + 1, u64::MAX] {
        assert_eq!(entries(&mut guest, sub, 999, behind), (vec![], 0), "{behind}");
    }
    assert_eq!(entries(&mut guest, sub, 0, 0), (vec![], 0));
    assert_eq!(entries(&mut guest, sub, 10, 0), (vec![], 10), "cut off");
}

#[test]
fn what_is_no_directory_or_no_memory_is_refused() {
    let mut guest = Guest::new();
    let fd = guest.open("file", CREATE, READ).unwrap();
    let memory = &mut guest.memory;
    for other in [0, fd, 99] {
        let read = guest.wasi.fd_readdir(memory, other, BYTES, 99, 0, OUT);
        assert_eq!(read, Err(WasiErrno::BADF));
    }
    let read = guest.wasi.fd_readdir(memory, DATA, BYTES, u32::MAX, 0, OUT);
    assert_eq!(read, Err(WasiErrno::FAULT));
}
