//! Sizes, times, names of directories, texts of the template.

use super::*;

#[test]
fn directories_have_their_names() {
    let mut guest = Guest::new();
    let name = |guest: &mut Guest, fd: u32, len: u32| {
        guest.wasi.fd_prestat_dir_name(&mut guest.memory, fd, BYTES, len)?;
        Ok(guest.memory.bytes_at(BYTES, len))
    };
    guest.wasi.fd_prestat_get(&mut guest.memory, FIXED, OUT).unwrap();
    assert_eq!((guest.memory.u32_at(OUT), guest.memory.u32_at(OUT + 4)), (0, 6));
    assert_eq!(name(&mut guest, FIXED, 6), Ok(b"/fixed".to_vec()));
    assert_eq!(name(&mut guest, DATA, 5), Ok(b"/data".to_vec()));
    assert_eq!(name(&mut guest, DATA, 4), Err(WasiErrno::NAMETOOLONG));
    assert_eq!(name(&mut guest, 5, 9), Err(WasiErrno::BADF));
    let opened = guest.open(".", DIRECTORY, READ).unwrap();
    assert_eq!(name(&mut guest, opened, 9), Err(WasiErrno::NOTDIR));
    let stat = guest.wasi.fd_prestat_get(&mut guest.memory, opened, OUT);
    assert_eq!(stat, Err(WasiErrno::BADF), "a C library stops here");
    guest.close(DATA).unwrap();
    assert_eq!(name(&mut guest, DATA, 5), Err(WasiErrno::BADF));
    assert_eq!(name(&mut guest, FIXED, 6), Ok(b"/fixed".to_vec()));
}

/// A C library opens files below a directory with at most the rights that it passes on.
#[test]
fn directories_pass_on_the_right_to_write() {
    let mut guest = Guest::new();
    let opened = guest.open(".", DIRECTORY, READ).unwrap();
    for fd in [DATA, opened] {
        let (kind, flags, own) = guest.fd_stat(fd).unwrap();
        assert_eq!((kind, flags, own & WRITE), (3, 0, 0));
        assert_eq!(guest.memory.u64_at(OUT + 16) & (READ | WRITE), READ | WRITE);
    }
}

#[test]
fn texts_that_cannot_be_passed_are_told() {
    let zero = || vec!["a\0b".to_owned()];
    for (spec, what) in [
        (InstanceSpec { args: zero(), ..InstanceSpec::default() }, "argument"),
        (InstanceSpec { env: zero(), ..InstanceSpec::default() }, "environment variable"),
        (
            InstanceSpec { preopens: vec![Preopen::from("/a\0b")], ..InstanceSpec::default() },
            "directory",
        ),
    ] {
        let error = WasiTemplate::new(&spec, None).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("zero byte"), "{error}");
    }
}

#[test]
fn a_directory_inside_a_root_stays_there() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("etc")).unwrap();
    std::os::unix::fs::symlink("/", root.path().join("link")).unwrap();
    let preopen = Preopen {
        name: ".".into(),
        path: "/link/etc".into(),
        inside: Some(root.path().into()),
        read_only: false,
    };
    let spec = InstanceSpec { preopens: vec![preopen], ..InstanceSpec::default() };
    let mut wasi = Wasi::new(&Rc::new(WasiTemplate::new(&spec, None).unwrap()));
    let mut memory = Memory::new();
    wasi.fd_filestat_get(&mut memory, DATA, 0).unwrap();
    let own = std::os::unix::fs::MetadataExt::ino(&root.path().join("etc").metadata().unwrap());
    assert_eq!(memory.u64_at(8), own);
}

#[test]
fn sizes_change() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    let fd = guest.open("file", 0, WRITE).unwrap();
    guest.wasi.fd_filestat_set_size(&mut guest.memory, fd, 2).unwrap();
    assert_eq!(guest.stat(fd).unwrap().size, 2);
    guest.wasi.fd_filestat_set_size(&mut guest.memory, fd, 9).unwrap();
    assert_eq!(std::fs::read(guest.host("file")).unwrap(), b"te\0\0\0\0\0\0\0");
    let set = guest.wasi.fd_filestat_set_size(&mut guest.memory, fd, u64::MAX);
    assert_eq!(set, Err(WasiErrno::INVAL));
    let reader = guest.open("file", 0, READ).unwrap();
    assert!(guest.wasi.fd_filestat_set_size(&mut guest.memory, reader, 0).is_err());
    let memory = &mut guest.memory;
    assert_eq!(guest.wasi.fd_allocate(memory, fd, 0, 9), Err(WasiErrno::NOTSUP));
    assert_eq!(guest.wasi.fd_sync(memory, fd), Ok(()));
    assert_eq!(guest.wasi.fd_datasync(memory, fd), Ok(()));
    for advice in 0..6 {
        assert_eq!(guest.wasi.fd_advise(memory, fd, 0, 9, advice), Ok(()));
    }
    assert_eq!(guest.wasi.fd_advise(memory, fd, 0, 9, 6), Err(WasiErrno::INVAL));
    assert_eq!(guest.wasi.fd_advise(memory, fd, 0, u64::MAX, 0), Err(WasiErrno::INVAL));
    assert_eq!(guest.wasi.fd_fdstat_set_rights(memory, fd, 0, 0), Err(WasiErrno::NOTSUP));
}

#[test]
fn times_change() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    guest.symlink("file", DATA, "link").unwrap();
    let fd = guest.open("file", 0, READ).unwrap();
    let before = guest.stat(fd).unwrap();
    let set = |guest: &mut Guest, accessed, modified, which| {
        guest.wasi.fd_filestat_set_times(&mut guest.memory, fd, accessed, modified, which)
    };
    set(&mut guest, 1_000_000_007, 9, 1).unwrap();
    let stat = guest.stat(fd).unwrap();
    assert_eq!((stat.accessed, stat.modified), (1_000_000_007, before.modified));
    set(&mut guest, 9, 2_000_000_000, 2 | 4).unwrap();
    let stat = guest.stat(fd).unwrap();
    assert!(stat.accessed >= before.accessed, "now");
    assert_eq!(stat.modified, 2_000_000_000);
    for which in [3, 12, 16] {
        assert_eq!(set(&mut guest, 0, 0, which), Err(WasiErrno::INVAL));
    }
    // Of the link itself, of its file, and of a directory that was opened only for paths.
    for (lookup, path, changed) in [(0, "link", "link"), (FOLLOW, "link", "file"), (0, ".", ".")] {
        let (ptr, len) = guest.path(path);
        let memory = &mut guest.memory;
        guest.wasi.path_filestat_set_times(memory, DATA, lookup, ptr, len, 0, 77, 4).unwrap();
        assert_eq!(guest.stat_at(DATA, 0, changed).unwrap().modified, 77, "{path}");
    }
    guest.wasi.fd_filestat_set_times(&mut guest.memory, DATA, 0, 88, 4).unwrap();
    assert_eq!(guest.stat(DATA).unwrap().modified, 88);
}
