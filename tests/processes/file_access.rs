//! Landlock: what is left of the file system for a function without a container.

use std::fs;
use std::io::ErrorKind::PermissionDenied;
use std::path::PathBuf;

use cwasi_sys::file_access::{FileAccess, is_supported};
use cwasi_sys::resolved_path::{Links, ResolvedPath};

use crate::harness::Case;

pub const CASES: &[Case] = &[("landlock_leaves_the_named_directories", restricted)];

fn restricted() {
    assert!(is_supported(), "this test needs a kernel with Landlock");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["read", "write", "other"] {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("file"), name).unwrap();
    }
    // The rules hold for one thread and its children; this one removes the folder.
    let restricted = std::thread::scope(|scope| scope.spawn(|| try_files(&path)).join());
    restricted.unwrap();
}

fn try_files(path: &impl Fn(&str) -> PathBuf) {
    let denied = |result: std::io::Result<()>| result.unwrap_err().kind() == PermissionDenied;
    let open = |name| vec![ResolvedPath::open(&path(name), Links::Refuse).unwrap()];
    let access = FileAccess { readable: open("read"), writable: open("write"), tcp: false };
    assert!(access.restrict().unwrap());
    assert_eq!(fs::read_to_string(path("read/file")).unwrap(), "read");
    fs::write(path("write/new"), "new").unwrap();
    assert_eq!(fs::read_to_string(path("write/new")).unwrap(), "new");
    assert!(denied(fs::write(path("read/file"), "changed")));
    assert!(denied(fs::write(path("read/new"), "new")));
    assert!(denied(fs::read(path("other/file")).map(drop)));
    assert!(denied(fs::read("/proc/self/environ").map(drop)));
    assert!(denied(fs::read("/etc/passwd").map(drop)));
    // A link is as good as the file that it names.
    std::os::unix::fs::symlink(path("other/file"), path("write/link")).unwrap();
    assert!(denied(fs::read(path("write/link")).map(drop)));
}
