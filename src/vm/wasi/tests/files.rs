//! Opening, reading, writing and seeking.

use super::*;

#[test]
fn files_are_created_written_and_read() {
    let mut guest = Guest::new();
    assert_eq!(guest.open("new", 0, READ), Err(WasiErrno::NOENT));
    let fd = guest.open("new", CREATE, READ | WRITE).unwrap();
    assert_eq!(fd, 5, "behind the directories");
    assert_eq!(guest.write(fd, b"hello"), Ok(5));
    assert_eq!(std::fs::read_to_string(guest.host("new")).unwrap(), "hello");
    assert_eq!(guest.read(fd, 9), Ok(vec![]), "at the end");
    assert_eq!(guest.seek(fd, 1, 0), Ok(1));
    assert_eq!(guest.read(fd, 2), Ok(b"el".to_vec()));
    assert_eq!(guest.seek(fd, -1, 2), Ok(4));
    assert_eq!(guest.seek(fd, -2, 1), Ok(2));
    assert_eq!(guest.seek(fd, -3, 1), Err(WasiErrno::INVAL));
    assert_eq!(guest.seek(fd, 0, 3), Err(WasiErrno::INVAL));
    guest.wasi.fd_tell(&mut guest.memory, fd, OUT).unwrap();
    assert_eq!(guest.memory.u64_at(OUT), 2);
    guest.close(fd).unwrap();
    assert_eq!(guest.read(fd, 1), Err(WasiErrno::BADF));
    assert_eq!(guest.close(fd), Err(WasiErrno::BADF));
    assert_eq!(guest.open("new", 0, READ), Ok(fd), "the lowest free number");
}

#[test]
fn flags_of_open_say_what_happens_to_a_file() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    assert_eq!(guest.open("file", CREATE | EXCLUSIVE, WRITE), Err(WasiErrno::EXIST));
    assert_eq!(guest.open("file", DIRECTORY, READ), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.open("dir", DIRECTORY | CREATE, READ), Err(WasiErrno::INVAL));
    assert_eq!(guest.open("file", 1 << 4, READ), Err(WasiErrno::INVAL));
    assert_eq!(guest.open_at(DATA, 2, "file", 0, (READ, 0)), Err(WasiErrno::INVAL));
    assert_eq!(guest.open_at(DATA, 0, "file", 0, (READ, 1 << 5)), Err(WasiErrno::INVAL));
    let fd = guest.open("file", TRUNCATE, WRITE).unwrap();
    assert_eq!(guest.stat(fd).unwrap().size, 0);
    assert_eq!(guest.open("file/", 0, READ), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.open("", 0, READ), Err(WasiErrno::NOENT));
    assert_eq!(guest.open("fi\0le", 0, READ), Err(WasiErrno::INVAL));
    assert_eq!(guest.open(&"a".repeat(4096), 0, READ), Err(WasiErrno::NAMETOOLONG));
    assert_eq!(guest.open_at(fd, 0, "file", 0, (READ, 0)), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.open_at(0, 0, "file", 0, (READ, 0)), Err(WasiErrno::BADF));
    guest.memory.put(PATH, b"\xff");
    let opened = guest.wasi.path_open(&mut guest.memory, DATA, 0, PATH, 1, 0, READ, 0, 0, OUT);
    assert_eq!(opened, Err(WasiErrno::ILSEQ));
}

#[test]
fn a_file_is_used_as_it_was_opened() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    let reader = guest.open("file", 0, READ).unwrap();
    let writer = guest.open("file", 0, WRITE).unwrap();
    assert_eq!(guest.write(reader, b"x"), Err(WasiErrno::BADF));
    assert_eq!(guest.read(writer, 1), Err(WasiErrno::BADF));
    assert_eq!(guest.fd_stat(reader).unwrap().2 & (READ | WRITE), READ);
    assert_eq!(guest.fd_stat(writer).unwrap().2 & (READ | WRITE), WRITE);
    assert_eq!(guest.fd_stat(reader).unwrap().0, 4);
}

#[test]
fn appending_ignores_the_position() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    let fd = guest.open_at(DATA, 0, "file", 0, (READ | WRITE, APPEND)).unwrap();
    assert_eq!(guest.fd_stat(fd).unwrap().1, APPEND);
    assert_eq!(guest.write(fd, b"more"), Ok(4));
    assert_eq!(guest.seek(fd, 0, 1), Ok(8));
    guest.wasi.fd_fdstat_set_flags(&mut guest.memory, fd, 0).unwrap();
    assert_eq!(guest.fd_stat(fd).unwrap().1, 0);
    guest.seek(fd, 0, 0).unwrap();
    assert_eq!(guest.write(fd, b"T"), Ok(1));
    guest.wasi.fd_fdstat_set_flags(&mut guest.memory, fd, APPEND | NONBLOCK).unwrap();
    assert_eq!(guest.write(fd, b"!"), Ok(1));
    assert_eq!(std::fs::read_to_string(guest.host("file")).unwrap(), "Textmore!");
    for flags in [2, 8, 16, 1 << 5] {
        let set = guest.wasi.fd_fdstat_set_flags(&mut guest.memory, fd, flags);
        assert_eq!(set, Err(WasiErrno::INVAL), "{flags}");
    }
    // As a C library that reads, changes and sets all flags.
    let fd = guest.open_at(DATA, 0, "file", 0, (WRITE, 16)).unwrap();
    assert_eq!(guest.wasi.fd_fdstat_set_flags(&mut guest.memory, fd, 16 | APPEND), Ok(()));
}

#[test]
fn reads_and_writes_at_an_offset_leave_the_position() {
    let mut guest = Guest::new();
    let fd = guest.open("file", CREATE, READ | WRITE).unwrap();
    guest.memory.put(BYTES, b"abcdef");
    guest.memory.words(PARTS, &[BYTES + 3, 3, BYTES, 2]);
    guest.wasi.fd_pwrite(&mut guest.memory, fd, PARTS, 2, 1, OUT).unwrap();
    assert_eq!(guest.memory.u32_at(OUT), 5);
    assert_eq!(std::fs::read(guest.host("file")).unwrap(), b"\0defab");
    guest.memory.words(PARTS, &[BYTES + 100, 2, BYTES + 90, 9]);
    guest.wasi.fd_pread(&mut guest.memory, fd, PARTS, 2, 2, OUT).unwrap();
    assert_eq!(guest.memory.u32_at(OUT), 4);
    assert_eq!(guest.memory.bytes_at(BYTES + 100, 2), b"ef");
    assert_eq!(guest.memory.bytes_at(BYTES + 90, 2), b"ab");
    assert_eq!(guest.seek(fd, 0, 1), Ok(0));
    let far = guest.wasi.fd_pread(&mut guest.memory, fd, PARTS, 1, u64::MAX, OUT);
    assert_eq!(far, Err(WasiErrno::INVAL));
}

#[test]
fn functions_for_files_refuse_other_descriptors() {
    let mut guest = Guest::new();
    guest.part(1);
    for fd in [DATA, FIXED, 5, u32::MAX] {
        let memory = &mut guest.memory;
        assert_eq!(guest.wasi.fd_read(memory, fd, PARTS, 1, OUT), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_pread(memory, fd, PARTS, 1, 0, OUT), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_write(memory, fd, PARTS, 1, OUT), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_pwrite(memory, fd, PARTS, 1, 0, OUT), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_seek(memory, fd, 0, 1, OUT), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_tell(memory, fd, OUT), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_advise(memory, fd, 0, 0, 4), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_allocate(memory, fd, 0, 1), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_datasync(memory, fd), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_sync(memory, fd), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_fdstat_set_flags(memory, fd, NONBLOCK), Err(WasiErrno::BADF));
        assert_eq!(guest.wasi.fd_filestat_set_size(memory, fd, 0), Err(WasiErrno::BADF));
    }
}

/// Nothing is opened or read for a result that cannot be written.
#[test]
fn results_outside_memory_are_faults_before_anything_happens() {
    let mut guest = Guest::new();
    let outside = u32::try_from(MEMORY_LEN).unwrap() - 3;
    let fd = guest.open("file", CREATE, READ | WRITE).unwrap();
    let (ptr, len) = guest.path("other");
    let memory = &mut guest.memory;
    let opened = guest.wasi.path_open(memory, DATA, 0, ptr, len, CREATE, WRITE, 0, 0, outside);
    assert_eq!(opened, Err(WasiErrno::FAULT));
    assert!(!guest.host("other").exists());
    guest.part(1);
    let written = guest.wasi.fd_write(&mut guest.memory, fd, PARTS, 1, outside);
    assert_eq!(written, Err(WasiErrno::FAULT));
    assert_eq!(guest.stat(fd).unwrap().size, 0);
    guest.memory.words(PARTS, &[outside, 4]);
    let written = guest.wasi.fd_write(&mut guest.memory, fd, PARTS, 1, OUT);
    assert_eq!(written, Err(WasiErrno::FAULT));
    assert_eq!(guest.wasi.fd_read(&mut guest.memory, fd, PARTS, 1, OUT), Err(WasiErrno::FAULT));
    let (ptr, opens) = (outside, u32::MAX);
    let opened = guest.wasi.path_open(&mut guest.memory, DATA, 0, ptr, opens, 0, READ, 0, 0, OUT);
    assert_eq!(opened, Err(WasiErrno::FAULT));
}

#[test]
fn open_descriptors_are_bounded() {
    let mut guest = Guest::new();
    guest.file("file", "");
    let opened = (0..2000).map_while(|_| guest.open("file", 0, READ).ok()).count();
    assert_eq!(opened, crate::descriptors::DESCRIPTORS_MAX - 5);
    assert_eq!(guest.open("new", CREATE, WRITE), Err(WasiErrno::MFILE));
    assert!(!guest.host("new").exists());
    guest.close(700).unwrap();
    assert_eq!(guest.open("file", 0, READ), Ok(700));
}

#[test]
fn a_renumbered_descriptor_replaces_the_other() {
    let mut guest = Guest::new();
    guest.file("a", "a");
    guest.file("b", "b");
    let (a, b) = (guest.open("a", 0, READ).unwrap(), guest.open("b", 0, READ).unwrap());
    let mut renumber = |from, to| guest.wasi.fd_renumber(&mut guest.memory, from, to);
    assert_eq!(renumber(a, 99), Err(WasiErrno::BADF));
    assert_eq!(renumber(99, a), Err(WasiErrno::BADF));
    assert_eq!(renumber(99, 99), Err(WasiErrno::BADF));
    assert_eq!(renumber(a, a), Ok(()));
    assert_eq!(renumber(a, b), Ok(()));
    assert_eq!(guest.read(b, 9), Ok(b"a".to_vec()));
    assert_eq!(guest.read(a, 9), Err(WasiErrno::BADF));
    guest.wasi.fd_renumber(&mut guest.memory, DATA, b).unwrap();
    assert_eq!(guest.open_at(b, 0, "b", 0, (READ, 0)), Ok(DATA));
}
