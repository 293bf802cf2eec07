//! Names of files: links, renames, removals.

use super::*;

#[test]
fn symbolic_links_are_followed_when_asked_for() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    guest.symlink("file", DATA, "link").unwrap();
    assert_eq!(guest.readlink(DATA, "link", 99), Ok(b"file".to_vec()));
    assert_eq!(guest.readlink(DATA, "link", 2), Ok(b"fi".to_vec()));
    assert_eq!(guest.readlink(DATA, "file", 99), Err(WasiErrno::INVAL));
    assert_eq!(guest.readlink(DATA, "gone", 99), Err(WasiErrno::NOENT));
    assert_eq!(guest.open("link", 0, READ), Err(WasiErrno::LOOP));
    let fd = guest.open_at(DATA, FOLLOW, "link", 0, (READ, 0)).unwrap();
    assert_eq!(guest.read(fd, 9), Ok(b"text".to_vec()));
    assert_eq!(guest.stat_at(DATA, FOLLOW, "link").unwrap().kind, 4);
    assert_eq!(guest.stat_at(DATA, 0, "link").unwrap().kind, 7);
    guest.symlink("self", DATA, "self").unwrap();
    let opened = guest.open_at(DATA, FOLLOW, "self", 0, (READ, 0));
    assert_eq!(opened, Err(WasiErrno::LOOP));
    assert_eq!(guest.symlink("x", DATA, "link"), Err(WasiErrno::EXIST));
    assert_eq!(guest.symlink("x", DATA, "new/"), Err(WasiErrno::NOENT));
}

#[test]
fn hard_links_are_names_of_the_same_file() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    guest.mkdir(DATA, "dir").unwrap();
    guest.link((DATA, "file"), (DATA, "dir/link")).unwrap();
    let stat = guest.stat_at(DATA, 0, "dir/link").unwrap();
    assert_eq!((stat.links, stat.size), (2, 4));
    assert_eq!(stat, guest.stat_at(DATA, 0, "file").unwrap());
    assert_eq!(guest.link((DATA, "file"), (DATA, "file")), Err(WasiErrno::EXIST));
    assert_eq!(guest.link((DATA, "dir"), (DATA, "other")), Err(WasiErrno::PERM));
    assert_eq!(guest.link((DATA, "dir/"), (DATA, "other")), Err(WasiErrno::PERM));
    assert_eq!(guest.link((DATA, "file/"), (DATA, "other")), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.link((DATA, "file"), (DATA, "other/")), Err(WasiErrno::NOENT));
    let ((ptr, len), (new, new_len)) = (guest.path("file"), guest.other_path("other"));
    let memory = &mut guest.memory;
    let linked = guest.wasi.path_link(memory, DATA, FOLLOW, ptr, len, DATA, new, new_len);
    assert_eq!(linked, Err(WasiErrno::INVAL));
}

#[test]
fn names_change() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    guest.mkdir(DATA, "dir").unwrap();
    guest.mkdir(DATA, "full").unwrap();
    guest.rename((DATA, "file"), (DATA, "full/new")).unwrap();
    assert_eq!(std::fs::read_to_string(guest.host("full/new")).unwrap(), "text");
    assert_eq!(guest.rename((DATA, "file"), (DATA, "x")), Err(WasiErrno::NOENT));
    assert_eq!(guest.rename((DATA, "dir"), (DATA, "full")), Err(WasiErrno::NOTEMPTY));
    assert_eq!(guest.rename((DATA, "dir"), (DATA, "full/new")), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.rename((DATA, "full/new"), (DATA, "dir")), Err(WasiErrno::ISDIR));
    assert_eq!(guest.rename((DATA, "full/new/"), (DATA, "x")), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.rename((DATA, "dir/"), (DATA, "moved/")), Ok(()));
    assert!(guest.host("moved").is_dir());
    assert_eq!(guest.rename((DATA, "moved/.."), (DATA, "x")), Err(WasiErrno::BUSY));
    assert_eq!(guest.rename((DATA, "."), (DATA, "x")), Err(WasiErrno::BUSY));
}

#[test]
fn files_and_directories_are_removed_by_their_own_functions() {
    let mut guest = Guest::new();
    guest.file("file", "");
    guest.mkdir(DATA, "dir").unwrap();
    guest.mkdir(DATA, "dir/sub/").unwrap();
    assert_eq!(guest.mkdir(DATA, "dir"), Err(WasiErrno::EXIST));
    assert_eq!(guest.mkdir(DATA, "dir/.."), Err(WasiErrno::EXIST));
    assert_eq!(guest.mkdir(DATA, ""), Err(WasiErrno::NOENT));
    assert_eq!(guest.mkdir(DATA, "gone/new"), Err(WasiErrno::NOENT));
    assert_eq!(guest.mkdir(DATA, "file/new"), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.rmdir(DATA, "dir"), Err(WasiErrno::NOTEMPTY));
    assert_eq!(guest.rmdir(DATA, "file"), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.rmdir(DATA, "dir/sub/.."), Err(WasiErrno::INVAL));
    assert_eq!(guest.unlink(DATA, "dir"), Err(WasiErrno::ISDIR));
    assert_eq!(guest.unlink(DATA, "file/"), Err(WasiErrno::NOTDIR));
    assert_eq!(guest.unlink(DATA, "gone"), Err(WasiErrno::NOENT));
    assert_eq!(guest.rmdir(DATA, "./dir//sub/"), Ok(()));
    assert_eq!(guest.rmdir(DATA, "dir"), Ok(()));
    assert_eq!(guest.unlink(DATA, "file"), Ok(()));
    assert_eq!(std::fs::read_dir(guest.host(".")).unwrap().count(), 0);
}
