//! Texts of `/proc` about other processes (`shim::{cgroups, session}`, `coordinator::fingerprint`), with a line `--`
//! between them: a process's cgroups, mounts, a cgroup that is asked for.
#![no_main]

use std::path::{Component, Path};

use cwasi_fuzz::memory::bounded;
use cwasi_fuzz::private::{cgroups, features, stat};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut parts = text.splitn(3, "--\n");
    let mut next = || parts.next().unwrap_or_default();
    let (membership, mountinfo, path) = (next(), next(), Path::new(next()));
    let (joined, own, planned) =
        bounded(text.as_bytes(), 2048, || cgroups(membership, mountinfo, path));
    let points: Vec<&str> = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    // What is removed when a container ends is below a mount point, and none itself.
    for directory in joined.iter().chain(&planned) {
        assert!(is_below(directory, &points, false), "{}", directory.display());
    }
    if let Some(directory) = &own {
        assert!(is_below(directory, &points, true), "{}", directory.display());
    }
    // The name of a process may be anything; the numbers behind it count.
    let name = text.lines().next().unwrap_or_default();
    let line = format!("7 ({name}) Z 1 7 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0");
    let read = stat(&line).expect("a process");
    assert_eq!((read.is_zombie, read.session, read.started), (true, 5, 12345));
    let _any = stat(text);
    let features = features(text);
    let mut names: Vec<&str> = features.split(' ').collect();
    names.dedup();
    assert!(names.is_sorted() && names.join(" ") == features);
});

fn is_below(directory: &Path, points: &[&str], or_at: bool) -> bool {
    let is_plain = |path: &Path| path.components().all(|it| it != Component::ParentDir);
    points.iter().any(|point| {
        let rest = directory.strip_prefix(point);
        rest.is_ok_and(|rest| is_plain(rest) && (or_at || rest.components().next().is_some()))
    })
}
