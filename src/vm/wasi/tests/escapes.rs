//! Paths and links that lead out of a directory, and directories that may not change.

use std::os::unix::fs::symlink;

use super::*;

/// Calls every function that takes a path with `path`.
fn all(guest: &mut Guest, fd: u32, path: &str) -> Vec<WasiResult> {
    let (ptr, len) = guest.path(path);
    let times = guest.wasi.path_filestat_set_times(&mut guest.memory, fd, 1, ptr, len, 0, 0, 2);
    vec![
        guest.open_at(fd, FOLLOW, path, 0, (READ, 0)).map(drop),
        guest.open_at(fd, FOLLOW, path, CREATE, (WRITE, 0)).map(drop),
        guest.stat_at(fd, FOLLOW, path).map(drop),
        guest.readlink(fd, path, 9).map(drop),
        times,
        guest.mkdir(fd, path),
        guest.rmdir(fd, path),
        guest.unlink(fd, path),
        guest.symlink("target", fd, path),
        guest.link((fd, path), (DATA, "stolen")),
        guest.link((DATA, "own"), (fd, path)),
        guest.rename((fd, path), (DATA, "stolen")),
        guest.rename((DATA, "own"), (fd, path)),
    ]
}

#[test]
fn paths_do_not_lead_out() {
    let mut guest = Guest::new();
    guest.file("own", "own");
    symlink("../outside", guest.host("relative")).unwrap();
    symlink(guest.root.path().join("outside"), guest.host("absolute")).unwrap();
    symlink("/proc/self/root", guest.host("magic")).unwrap();
    std::fs::create_dir(guest.host("sub")).unwrap();
    let absolute = format!("{}/outside/secret", guest.root.path().display());
    for path in [
        "../outside/secret",
        "sub/../../outside/secret",
        "./../data/own",
        "relative/secret",
        "relative/../own",
        "absolute/secret",
        "magic/etc",
        "../outside/new",
        "sub/../../new",
        "relative/new",
        &absolute,
        "/",
        "/data/own",
        "../..",
        "..",
        "sub/../..",
    ] {
        for (index, outcome) in all(&mut guest, DATA, path).into_iter().enumerate() {
            assert_eq!(outcome, Err(WasiErrno::PERM), "{path} {index}");
        }
    }
    let outside = std::fs::read_dir(guest.root.path().join("outside")).unwrap().count();
    assert_eq!(outside, 1);
    let secret = std::fs::read_to_string(guest.root.path().join("outside/secret"));
    assert_eq!(secret.unwrap(), "secret");
    assert!(guest.host("own").exists() && !guest.host("stolen").exists());
}

/// A link at a path's end, which some functions act on themselves.
#[test]
fn links_at_the_end_do_not_lead_out() {
    let mut guest = Guest::new();
    guest.file("own", "own");
    std::fs::create_dir(guest.host("sub")).unwrap();
    symlink("../outside/secret", guest.host("link")).unwrap();
    symlink("../outside", guest.host("dir")).unwrap();
    symlink("../outside/new", guest.host("dangling")).unwrap();
    for path in ["link", "dir", "dangling", "dir/"] {
        // With a slash at its end the kernel follows no link to create a file.
        let errno = if path.ends_with('/') { WasiErrno::ISDIR } else { WasiErrno::PERM };
        let opened = guest.open_at(DATA, FOLLOW, path, CREATE, (WRITE, 0));
        assert_eq!(opened, Err(errno), "{path}");
        assert_eq!(guest.stat_at(DATA, FOLLOW, path), Err(WasiErrno::PERM));
        let (ptr, len) = guest.path(path);
        let memory = &mut guest.memory;
        let set = guest.wasi.path_filestat_set_times(memory, DATA, FOLLOW, ptr, len, 0, 0, 2);
        assert_eq!(set, Err(WasiErrno::PERM));
    }
    for path in ["link", "dir", "dangling"] {
        assert_eq!(guest.open(path, 0, READ), Err(WasiErrno::LOOP));
        assert_eq!(guest.stat_at(DATA, 0, path).unwrap().kind, 7);
        assert_eq!(guest.mkdir(DATA, path), Err(WasiErrno::EXIST));
        assert_eq!(guest.mkdir(DATA, &format!("{path}/")), Err(WasiErrno::EXIST));
        assert_eq!(guest.rmdir(DATA, path), Err(WasiErrno::NOTDIR));
        let slash = format!("{path}/");
        assert_eq!(guest.rmdir(DATA, &slash), Err(WasiErrno::NOTDIR));
        assert_eq!(guest.unlink(DATA, &slash), Err(WasiErrno::NOTDIR));
        assert_eq!(guest.rename((DATA, &slash), (DATA, "moved")), Err(WasiErrno::NOTDIR));
        assert_eq!(guest.rename((DATA, "sub"), (DATA, &slash)), Err(WasiErrno::NOTDIR));
        assert_eq!(guest.symlink("target", DATA, &slash), Err(WasiErrno::EXIST));
        assert_eq!(guest.link((DATA, "own"), (DATA, &slash)), Err(WasiErrno::EXIST));
    }
    // The kernel follows this one, but not out of the directory.
    assert_eq!(guest.readlink(DATA, "dir/", 9), Err(WasiErrno::PERM));
    assert_eq!(guest.link((DATA, "dir/"), (DATA, "stolen")), Err(WasiErrno::PERM));
    assert_eq!(guest.link((DATA, "link"), (DATA, "same")), Ok(()));
    assert_eq!(guest.stat_at(DATA, 0, "same").unwrap().kind, 7, "the link, not the secret");
    assert_eq!(guest.unlink(DATA, "link"), Ok(()));
    assert!(guest.root.path().join("outside/secret").exists());
    assert!(!guest.root.path().join("outside/new").exists());
}

#[test]
fn an_opened_directory_bounds_its_paths_too() {
    let mut guest = Guest::new();
    guest.file("own", "own");
    std::fs::create_dir(guest.host("sub")).unwrap();
    let sub = guest.open("sub", DIRECTORY, READ).unwrap();
    for path in ["../own", "..", "/data/own"] {
        for outcome in all(&mut guest, sub, path) {
            assert_eq!(outcome, Err(WasiErrno::PERM), "{path}");
        }
    }
    assert!(guest.host("own").exists());
}

#[test]
fn links_to_absolute_targets_are_not_made() {
    let mut guest = Guest::new();
    assert_eq!(guest.symlink("/etc", DATA, "link"), Err(WasiErrno::PERM));
    assert!(guest.host("link").symlink_metadata().is_err());
}

#[test]
fn a_read_only_directory_refuses_every_change() {
    let mut guest = Guest::new();
    guest.file("own", "own");
    let sub = guest.open_at(FIXED, 0, "sub", DIRECTORY, (READ, 0)).unwrap();
    for (fd, path) in [(FIXED, "new"), (FIXED, "file"), (sub, "new"), (FIXED, "sub/new")] {
        let (ptr, len) = guest.path(path);
        let memory = &mut guest.memory;
        let times = guest.wasi.path_filestat_set_times(memory, fd, 0, ptr, len, 0, 0, 2);
        for outcome in [
            times,
            guest.open_at(fd, 0, path, CREATE, (READ, 0)).map(drop),
            guest.open_at(fd, 0, path, 0, (WRITE, 0)).map(drop),
            guest.open_at(fd, 0, path, TRUNCATE, (READ, 0)).map(drop),
            guest.mkdir(fd, path),
            guest.rmdir(fd, path),
            guest.unlink(fd, path),
            guest.symlink("target", fd, path),
            guest.link((fd, path), (DATA, "stolen")),
            guest.link((DATA, "own"), (fd, path)),
            guest.rename((fd, path), (DATA, "stolen")),
            guest.rename((DATA, "own"), (fd, path)),
        ] {
            assert_eq!(outcome, Err(WasiErrno::ROFS), "{path}");
        }
    }
    let file = guest.open_at(FIXED, 0, "file", 0, (READ, 0)).unwrap();
    assert_eq!(guest.read(file, 9), Ok(b"fixed".to_vec()));
    assert_eq!(guest.write(file, b"x"), Err(WasiErrno::BADF));
    let memory = &mut guest.memory;
    assert!(guest.wasi.fd_filestat_set_size(memory, file, 0).is_err());
    for fd in [file, sub, FIXED] {
        let set = guest.wasi.fd_filestat_set_times(memory, fd, 0, 0, 2);
        assert_eq!(set, Err(WasiErrno::ROFS));
    }
    assert_eq!(std::fs::read_dir(guest.root.path().join("fixed")).unwrap().count(), 2);
}
