//! `config.json` of a bundle, as launcher and coordinator read it (`host::group`, `coordinator::bundle`).
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use cwasi_config::function_name as is_name;
use cwasi_coordinator::bundle::{function_spec, load_spec};
use cwasi_fuzz::memory::bounded;
use cwasi_fuzz::private::{args, function_name, surroundings};
use cwasi_host::group::group_of_bundle;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    let bundle = BUNDLE.get_or_init(|| tempfile::tempdir().expect("a directory").keep());
    fs::write(bundle.join("config.json"), data).expect("a file");
    let group = bounded(data, 96, || group_of_bundle(bundle, "namespace", "container"));
    let Ok(read) = bounded(data, 256, || load_spec(bundle)) else { return };
    let spec = read.spec;
    let group = group.expect("what the coordinator reads, the launcher has read");
    assert!(group.len() == 16 && group.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let Ok(annotations) = function_spec(&spec) else { return };
    if let Some(name) = args(&spec).first().and_then(|it| function_name(&annotations, it)) {
        assert_eq!(is_name(&name), Ok(name.clone()));
    }
    let wants_network = !annotations.network.is_empty();
    let (memory, egress, preopens, files) = surroundings(&spec, annotations.network);
    assert!(memory != Some(0));
    assert_eq!(egress.is_some(), wants_network);
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    for path in preopens.iter().chain(&files.mounts) {
        assert!(mounts.iter().any(|mount| mount.destination() == path));
        assert!(!["/proc", "/sys", "/dev"].iter().any(|top| path.starts_with(top)));
    }
});
