//! Records of callable instances, which shims of other versions wrote (`coordinator::registry`).
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use cwasi_coordinator::registry::{Record, Registry};
use cwasi_fuzz::memory::bounded;
use cwasi_wire::ids::Identity;
use libfuzzer_sys::fuzz_target;

/// Longest file that is read.
const RECORD_MAX: usize = 64 * 1024;

fuzz_target!(|data: &[u8]| {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| tempfile::tempdir().expect("a directory").keep());
    let record = serde_json::from_slice::<Record>(data).ok();
    let known = |function: &str| Identity {
        namespace: "n".to_owned(),
        pod_namespace: String::new(),
        function: function.to_owned(),
    };
    let identity = record.as_ref().map_or_else(|| known("f"), |record| record.identity.clone());
    let registry = Registry::new(directory);
    let path = registry.path(&identity, "fuzzed");
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(&path, data).expect("a file");
    let found = bounded(data, 96, || registry.instances(&identity)).expect("a folder can be read");
    registry.remove(&identity, "fuzzed").expect("a file can be removed");
    let expected: Vec<Record> = record.filter(|_| data.len() <= RECORD_MAX).into_iter().collect();
    assert_eq!(found, expected);
    if let Some(record) = found.first() {
        let bytes = serde_json::to_vec(record).expect("JSON");
        assert_eq!(&serde_json::from_slice::<Record>(&bytes).expect("a record"), record);
    }
});
