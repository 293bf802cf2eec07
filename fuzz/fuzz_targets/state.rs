//! Files of a daemon that was killed, as `delete` reads them (`host::state`).
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cwasi_config::NodeConfig;
use cwasi_fuzz::memory::bounded;
use cwasi_host::state::{ContainerRecord, Pointer, read_json, write_json};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;

fuzz_target!(|data: &[u8]| {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let file = FILE.get_or_init(|| tempfile::tempdir().expect("a directory").keep().join("f.json"));
    fs::write(file, data).expect("a file");
    let record = read::<ContainerRecord>(data, file);
    let pointer = read::<Pointer>(data, file);
    let config = read::<NodeConfig>(data, file);
    again(file, record);
    again(file, pointer);
    again(file, config);
});

fn read<T: DeserializeOwned>(data: &[u8], file: &Path) -> Option<T> {
    bounded(data, 96, || read_json(file)).ok().map(|found| found.expect("the file is there"))
}

/// What was read is the same when it was written and read again.
fn again<T: Serialize + DeserializeOwned + PartialEq>(file: &Path, value: Option<T>) {
    let Some(value) = value else { return };
    write_json(file, &value).expect("a file");
    assert!(read_json(file).expect("what was written can be read") == Some(value));
}
