//! Spans of ended groups and callers, in a directory of files. Runs in shim daemons, launchers and callers of the host.
//!
//! Invariant: the directory is bounded. The namespace with most of what is too much loses its oldest file, so one that
//! ends many groups does not take others' traces.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use super::spans::full_file;
use super::state::{self, PRIVATE_FILE, StateError, create_private_dir};

/// Most files, and their bytes.
const FILES_MAX: usize = 64;
const BYTES_MAX: u64 = 32 << 20;
/// Bytes at the beginning of a file that are read for its namespace.
const BEGINNING: u64 = 64 << 10;

/// Keeps the span files of an ended group in `directory`, and forgets the oldest ones there.
///
/// # Errors
/// When a file cannot be moved.
pub fn keep_ended(path: &Path, group: &str, directory: &Path) -> Result<(), StateError> {
    let files: Vec<_> =
        [full_file(path), path.to_owned()].into_iter().filter(|it| it.exists()).collect();
    if files.is_empty() {
        return Ok(());
    }
    create_private_dir(directory)?;
    let ended = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for (number, file) in files.iter().enumerate() {
        let kept = directory.join(format!("{group}.{}.{number}.jsonl", ended.as_millis()));
        fs::rename(file, kept).map_err(StateError::io("rename", file))?;
    }
    forget_old(directory)
}

/// Copies the files of one directory into another, which may be on another file system, and forgets the oldest ones
/// there.
///
/// # Errors
/// When a file cannot be read or written.
pub fn copy_kept(from: &Path, to: &Path) -> Result<(), StateError> {
    create_private_dir(to)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let bytes = fs::read(&path).map_err(StateError::io("read", &path))?;
        // A later run's files may have the same names.
        let copy = to.join(format!("{}.{}", now.as_millis(), name.display()));
        let file = OpenOptions::new().write(true).create(true).mode(PRIVATE_FILE).open(&copy);
        let written = file.and_then(|mut file| file.write_all(&bytes));
        written.map_err(StateError::io("write", &copy))?;
    }
    forget_old(to)
}

#[derive(Debug)]
struct KeptFile {
    modified: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// What a line says of its tenant.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Tenant {
    namespace: String,
    #[serde(default)]
    pod_namespace: String,
}

impl KeptFile {
    /// Of its first span; the default without one.
    fn tenant(&self) -> Tenant {
        let Ok(file) = File::open(&self.path) else { return Tenant::default() };
        let lines = BufReader::new(file.take(BEGINNING)).lines().map_while(Result::ok);
        let mut tenants = lines.filter_map(|line| serde_json::from_str(&line).ok());
        tenants.next().unwrap_or_default()
    }
}

/// Removes files until at most [`FILES_MAX`] and [`BYTES_MAX`] are left.
fn forget_old(directory: &Path) -> Result<(), StateError> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let modified = metadata.modified().ok()?;
        Some(KeptFile { modified, bytes: metadata.len(), path: entry.path() })
    });
    let files: Vec<_> = files.collect();
    let mut number = files.len();
    let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
    if number <= FILES_MAX && bytes <= BYTES_MAX {
        return Ok(());
    }
    let mut tenants: BTreeMap<Tenant, Vec<KeptFile>> = BTreeMap::new();
    for file in files {
        tenants.entry(file.tenant()).or_default().push(file);
    }
    for files in tenants.values_mut() {
        // The oldest one is the last.
        files.sort_by_key(|file| Reverse(file.modified));
    }
    while number > FILES_MAX || bytes > BYTES_MAX {
        let held = |files: &Vec<KeptFile>| match number > FILES_MAX {
            true => files.len() as u64,
            false => files.iter().map(|file| file.bytes).sum(),
        };
        let most = tenants.values_mut().max_by_key(|files| held(files));
        let Some(file) = most.and_then(Vec::pop) else { return Ok(()) };
        state::remove_file(&file.path)?;
        number -= 1;
        bytes -= file.bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A file of a namespace's group that ended `ago` seconds ago.
    fn ended(directory: &Path, namespace: &str, name: &str, bytes: usize, ago: u64) {
        let line = format!("{{\"dropped\":1}}\n{{\"namespace\":{namespace:?},\"span\":{{}}}}\n");
        let path = directory.join(name);
        fs::write(&path, format!("{line}{}", " ".repeat(bytes))).unwrap();
        let at = SystemTime::now() - Duration::from_secs(ago);
        File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    }

    fn left(directory: &Path, beginning: &str) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.starts_with(beginning)).collect();
        names.sort();
        names
    }

    #[test]
    fn many_groups_of_one_namespace_leave_anothers_traces() {
        let dir = tempfile::tempdir().unwrap();
        ended(dir.path(), "few", "few", 10, 1000);
        for number in 0..FILES_MAX + 5 {
            ended(dir.path(), "many", &format!("many-{number:03}"), 10, 500 - number as u64);
        }
        forget_old(dir.path()).unwrap();
        assert_eq!(left(dir.path(), "few"), ["few"]);
        let many = left(dir.path(), "many");
        assert_eq!((many.len(), many[0].as_str()), (FILES_MAX - 1, "many-006"));
    }

    #[test]
    fn long_files_of_one_namespace_leave_anothers_traces() {
        let dir = tempfile::tempdir().unwrap();
        ended(dir.path(), "few", "few", 10, 1000);
        for number in 0..5 {
            ended(dir.path(), "much", &format!("much-{number}"), 8 << 20, 500 - number);
        }
        forget_old(dir.path()).unwrap();
        assert_eq!(left(dir.path(), "few"), ["few"]);
        assert_eq!(left(dir.path(), "much"), ["much-2", "much-3", "much-4"]);
    }
}
