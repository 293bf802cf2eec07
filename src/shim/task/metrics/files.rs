//! Reads the files of a cgroup.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

/// A number in a file of its own; `None` for "max".
pub(super) fn number(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// A number, or the largest one for "max" and for a limit that is not there.
pub(super) fn limit(text: Option<String>) -> u64 {
    number(text).unwrap_or(u64::MAX)
}

/// Lines of a name and a number.
pub(super) struct Keyed(HashMap<String, u64>);

impl Keyed {
    pub(super) fn new(text: Option<String>) -> Self {
        let text = text.unwrap_or_default();
        let pair = |line: &str| {
            let (key, value) = line.split_once(' ')?;
            Some((key.to_owned(), value.trim().parse().ok()?))
        };
        Self(text.lines().filter_map(pair).collect())
    }

    /// 0 when the kernel does not report it.
    pub(super) fn get(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }
}

/// The use of huge pages, for each page size that a directory has files of: `hugetlb.2MB.usage_in_bytes` with cgroup
/// v1, `hugetlb.2MB.current` with v2.
pub(super) fn huge_pages<T>(
    directories: &[PathBuf],
    usage: &str,
    entry: impl Fn(&str, &dyn Fn(&str) -> u64) -> T,
) -> Vec<T> {
    let mut all = Vec::new();
    for directory in directories {
        let names = fs::read_dir(directory).into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            let size = name.strip_prefix("hugetlb.").and_then(|rest| rest.strip_suffix(usage));
            let Some(size) = size.filter(|size| !size.ends_with(".rsvd")) else { continue };
            let value = |file: &str| {
                let path = directory.join(format!("hugetlb.{size}.{file}"));
                limit(fs::read_to_string(path).ok())
            };
            all.push(entry(size, &value));
        }
    }
    all
}
