//! The node's configuration (`config::node`), which operators write.
#![no_main]

use cwasi_config::NodeConfig;
use cwasi_config::node::STATE_DIR_MAX;
use cwasi_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // Nothing in it means the machine's own file.
    if text.trim().is_empty() {
        return;
    }
    let loaded = bounded(text.as_bytes(), 512, || NodeConfig::load(Some(text), None));
    let Ok(config) = loaded else {
        assert!(loaded.is_err_and(|error| !error.to_string().is_empty()));
        return;
    };
    assert!(config.state_dir.is_absolute() && config.cache_dir.is_absolute());
    assert!(config.state_dir.as_os_str().len() <= STATE_DIR_MAX);
    assert!(config.compile.cpu_seconds > 0 && config.compile.locals > 0);
    assert!(!config.compile.cgroup.split('/').any(|part| part == ".."));
    assert!(config.compile.jobs_for(2) > 0);
    let limits = config.compile.limits_for(u64::MAX, 1 << 30);
    assert!(limits.memory <= 1 << 30);
    // The group keeps a copy.
    let copy = serde_json::to_vec(&config).expect("JSON");
    assert_eq!(serde_json::from_slice::<NodeConfig>(&copy).expect("a configuration"), config);
});
