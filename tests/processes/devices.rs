//! Device filters on a real cgroup v2: also where the host runs its containers with cgroup v1.

use std::path::{Path, PathBuf};
use std::process::Command;

use cwasi_sandbox::device_program::{DeviceKind, DeviceRule, FilterProgram, READ, WRITE};
use cwasi_sys::device_filter::DeviceFilter;

use crate::harness::Case;

pub const CASES: &[Case] = &[("a_cgroup_opens_the_devices_that_its_rules_allow", opens)];

/// A cgroup of its own, empty at its end.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let point = fields.next()?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(point))
        });
        let root = root.expect("cgroup v2 is mounted, alone or beside cgroup v1");
        let path = root.join(format!("cwasi-test-devices-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).unwrap();
    }
}

/// Which of "read" and "write" a process of the cgroup can open the device for.
fn can(cgroup: &Path, device: &str) -> String {
    let script = format!(
        "echo $$ > {}/cgroup.procs; (: < {device}) && printf r; (: > {device}) && printf w",
        cgroup.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn opens() {
    let cgroup = Cgroup::new();
    let rule = |allow, minor, access| {
        let (kind, major) = (DeviceKind::Char, Some(1));
        DeviceRule { allow, kind, major, minor, access }
    };
    assert_eq!(can(&cgroup.0, "/dev/full"), "rw", "nothing is forbidden yet");
    let rules = [rule(true, Some(5), READ), rule(true, Some(3), READ | WRITE)];
    DeviceFilter::load(FilterProgram::new(false, &rules).bytes())
        .unwrap()
        .attach(&cgroup.0)
        .unwrap();
    assert_eq!(can(&cgroup.0, "/dev/null"), "rw");
    assert_eq!(can(&cgroup.0, "/dev/zero"), "r");
    assert_eq!(can(&cgroup.0, "/dev/full"), "");
    // A second one takes something away, and gives nothing back.
    let rules = [rule(false, Some(5), READ)];
    DeviceFilter::load(FilterProgram::new(true, &rules).bytes())
        .unwrap()
        .attach(&cgroup.0)
        .unwrap();
    assert_eq!(can(&cgroup.0, "/dev/zero"), "");
    assert_eq!(can(&cgroup.0, "/dev/full"), "");
    assert_eq!(can(&cgroup.0, "/dev/null"), "rw");
}
