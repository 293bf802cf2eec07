//! The unit for systemd: systemd itself reads it, without running it.

use std::path::Path;
use std::process::Command;

/// Exposure in tenths that `systemd-analyze security` may find at most, of 100.
const EXPOSURE_MAX: &str = "25";

fn analyze(unit: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("systemd-analyze").args(arguments).arg(unit).output().unwrap_or_else(
        |error| panic!("systemd-analyze: {error}; scripts/setup.sh --tests installs it"),
    );
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn systemd_knows_every_line_of_the_unit_and_finds_little_exposed() {
    let text = include_str!("../../../deploy/systemd/cwasi-gateway.service");
    // Where this build has the program.
    let text = text.replace("/usr/local/bin/cwasi", env!("CARGO_BIN_EXE_cwasi"));
    assert!(text.contains(concat!("ExecStart=", env!("CARGO_BIN_EXE_cwasi"), " gateway")));
    let directory = tempfile::tempdir().unwrap();
    let unit = directory.path().join("cwasi-gateway.service");
    std::fs::write(&unit, &text).unwrap();
    // It complains about a key that it does not know, and succeeds.
    let (verified, said) = analyze(&unit, &["verify", "--man=no"]);
    assert!(verified && said.is_empty(), "{said}");
    let rating = ["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX];
    let (passed, said) = analyze(&unit, &rating);
    assert!(passed, "{said}");
    std::fs::write(&unit, text.replace("NoNewPrivileges", "NoNewPriviliges")).unwrap();
    assert!(analyze(&unit, &["verify", "--man=no"]).1.contains("NoNewPriviliges"));
}
