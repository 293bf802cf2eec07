//! A test that counts what its process has: descriptors, threads, bytes.

use std::process::Command;

/// Says that this process runs one test.
const ALONE: &str = "CWASI_TEST_ALONE";

/// Runs `case` in a process of its own, where no other test opens descriptors. `test` is the name of the calling test.
///
/// # Panics
/// When the case fails.
pub fn in_a_process_of_its_own(test: &str, case: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return case();
    }
    let status = Command::new("/proc/self/exe")
        .args(["--exact", test, "--test-threads=1"])
        .env(ALONE, "1")
        .status()
        .expect("this program runs again");
    assert!(status.success(), "{test}: {status}");
}
