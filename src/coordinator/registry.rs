//! Registry of this host: one file per callable instance, `<state>/f/<identity>/<instance>.json`. Runs in the shim
//! daemon.
//!
//! The daemon that owns the instance writes the file. Every daemon of the host reads it when one of its sandboxes
//! asks for a route, never per call. A record whose receiver refuses connections is stale: its daemon was killed, and
//! `delete` removes it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use cwasi_config::Workers;
use cwasi_config::triggers::Trigger;
use cwasi_wire::ids::Identity;

/// Most records read per look-up; further instances of a function get no calls.
pub const RECORDS_MAX: usize = 1024;
/// Longest record file in bytes.
const RECORD_MAX: u64 = 64 * 1024;

/// A failed operation on a registry file.
#[derive(Debug, thiserror::Error)]
#[error("registry: {operation} {path}: {source}", path = path.display())]
pub struct RegistryError {
    operation: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// One callable instance. Shims of other versions read it, so fields are only ever added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub identity: Identity,
    /// Its id, unique on this host.
    pub instance: String,
    /// Id of its pod's or workflow's shim on this host; empty without pod and workflow.
    #[serde(default)]
    pub group: String,
    /// Workflow, empty when there is none.
    pub workflow: String,
    /// Trust group, empty when there is none.
    pub trust: String,
    /// Allowed callers (`cwasi.allow`); empty = all in its scope.
    pub allow: Vec<String>,
    pub socket: PathBuf,
    /// Largest payload in bytes.
    pub max_payload: u64,
    /// Most bytes of a request's metadata that it takes; 0 = its shim is of the version before.
    #[serde(default)]
    pub max_head: u32,
    /// containerd's container id, for messages.
    pub container: String,
    /// The node's HTTP gateway may call it (`cwasi.http`).
    #[serde(default)]
    pub http: bool,
    /// Port on which it is served in its container's network namespace (`cwasi.http`).
    #[serde(default)]
    pub http_port: Option<u16>,
    /// Longest time in milliseconds that this port keeps an idle connection; 0 = its shim is of the version before.
    #[serde(default)]
    pub http_idle_ms: u64,
    /// Longest request in milliseconds (`cwasi.timeout`); `None` when the function names none.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// What runs it besides calls (`cwasi.triggers`).
    #[serde(default)]
    pub triggers: Vec<Trigger>,
    /// How many workers it has; `None` of a shim that did not say it.
    #[serde(default)]
    pub workers: Option<Workers>,
    /// Name of its shim for direct connections; empty if it takes none.
    #[serde(default)]
    pub link: String,
}

/// The registry below one state directory.
#[derive(Clone, Debug)]
pub struct Registry {
    root: PathBuf,
}

impl Registry {
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self { root: state_dir.join("f") }
    }

    fn folder(&self, identity: &Identity) -> PathBuf {
        self.root.join(identity.short())
    }

    /// Path of an instance's record.
    #[must_use]
    pub fn path(&self, identity: &Identity, instance: &str) -> PathBuf {
        self.folder(identity).join(format!("{instance}.json"))
    }

    /// Registers an instance. From now on callers find it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&self, record: &Record) -> Result<PathBuf, RegistryError> {
        let folder = self.folder(&record.identity);
        let fail = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| RegistryError { operation, path, source }
        };
        let path = self.path(&record.identity, &record.instance);
        let bytes = serde_json::to_vec_pretty(record)
            .map_err(|error| fail("encode", &path)(io::Error::other(error)))?;
        // A concurrent removal of the last record may delete the folder: retry.
        for _ in 0..8 {
            fs::create_dir_all(&folder).map_err(fail("create", &folder))?;
            let draft = folder.join(format!(".{}", record.instance));
            match fs::write(&draft, &bytes).and_then(|()| fs::rename(&draft, &path)) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(fail("write", &path)(error)),
            }
        }
        Err(fail("write", &path)(ErrorKind::NotFound.into()))
    }

    /// Removes an instance. Removing it twice is no error.
    ///
    /// # Errors
    /// When the file exists and cannot be removed.
    pub fn remove(&self, identity: &Identity, instance: &str) -> Result<(), RegistryError> {
        let path = self.path(identity, instance);
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(RegistryError { operation: "remove", path, source }),
        }
        // Fails while other instances are registered, as intended.
        drop(fs::remove_dir(self.folder(identity)));
        Ok(())
    }

    /// All registered instances of `identity`, in order of their ids.
    ///
    /// # Errors
    /// When the registry cannot be read. A missing or damaged record is skipped.
    pub fn instances(&self, identity: &Identity) -> Result<Vec<Record>, RegistryError> {
        let mut records = Self::read_folder(&self.folder(identity))?;
        records.retain(|record| record.identity == *identity);
        Ok(records)
    }

    /// Names of the registered functions in the scope of `identity`, for error messages.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn functions_beside(&self, identity: &Identity) -> Result<Vec<String>, RegistryError> {
        let mut names = Vec::new();
        for folder in Self::entries(&self.root)? {
            let records = Self::read_folder(&folder)?;
            names.extend(
                records
                    .into_iter()
                    .find(|r| r.identity.same_scope(identity))
                    .map(|r| r.identity.function),
            );
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// All registered instances in the scope of `identity`.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn scope(&self, identity: &Identity) -> Result<Vec<Record>, RegistryError> {
        let mut all = Vec::new();
        for folder in Self::entries(&self.root)? {
            all.extend(Self::read_folder(&folder)?);
        }
        all.retain(|record| record.identity.same_scope(identity));
        Ok(all)
    }

    fn entries(folder: &Path) -> Result<Vec<PathBuf>, RegistryError> {
        let fail = |source| RegistryError { operation: "read", path: folder.to_owned(), source };
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(fail(error)),
        };
        let mut paths = entries
            .take(RECORDS_MAX)
            .map(|entry| entry.map(|entry| entry.path()).map_err(fail))
            .collect::<Result<Vec<_>, _>>()?;
        paths.sort();
        Ok(paths)
    }

    fn read_folder(folder: &Path) -> Result<Vec<Record>, RegistryError> {
        let mut records = Vec::new();
        for path in Self::entries(folder)? {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read_record(&path) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => {}
                Err(source) => {
                    tracing::warn!(path = %path.display(), %source, "skipping a registry record")
                }
            }
        }
        Ok(records)
    }
}

fn read_record(path: &Path) -> io::Result<Option<Record>> {
    match fs::metadata(path) {
        Ok(data) if data.len() > RECORD_MAX => {
            return Err(io::Error::other("longer than a record can be"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(function: &str, instance: &str) -> Record {
        Record {
            identity: Identity {
                namespace: "n".into(),
                pod_namespace: String::new(),
                function: function.into(),
            },
            instance: instance.into(),
            group: String::new(),
            workflow: String::new(),
            trust: String::new(),
            allow: Vec::new(),
            socket: "/s".into(),
            max_payload: 1,
            max_head: 1,
            container: "c".into(),
            http: false,
            http_idle_ms: 0,
            http_port: None,
            timeout_ms: None,
            triggers: Vec::new(),
            workers: None,
            link: String::new(),
        }
    }

    #[test]
    fn instances_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::new(dir.path());
        let (one, two) = (record("f", "1"), record("f", "2"));
        assert!(registry.instances(&one.identity).unwrap().is_empty());
        registry.add(&two).unwrap();
        registry.add(&one).unwrap();
        registry.add(&record("g", "3")).unwrap();
        assert_eq!(registry.instances(&one.identity).unwrap(), vec![one.clone(), two.clone()]);
        assert_eq!(registry.functions_beside(&one.identity).unwrap(), ["f", "g"]);
        registry.remove(&one.identity, "1").unwrap();
        registry.remove(&one.identity, "1").unwrap();
        registry.remove(&one.identity, "2").unwrap();
        assert!(!registry.folder(&one.identity).exists());
    }

    #[test]
    fn records_of_other_versions_can_be_read() {
        let mut json = serde_json::to_value(record("f", "1")).unwrap();
        json["colour"] = "red".into();
        json.as_object_mut().unwrap().remove("group");
        assert_eq!(serde_json::from_value::<Record>(json).unwrap(), record("f", "1"));
    }

    #[test]
    fn a_damaged_record_hides_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::new(dir.path());
        let one = record("f", "1");
        registry.add(&one).unwrap();
        fs::write(registry.path(&one.identity, "0"), "{").unwrap();
        assert_eq!(registry.instances(&one.identity).unwrap(), vec![one]);
    }
}
