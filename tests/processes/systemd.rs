//! libcgroups' words to systemd, which third_party/libcgroups changes.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use libcgroups::systemd::manager::Manager;

use crate::harness::Case;

pub const CASES: &[Case] = &[("a_connection_to_systemd_begins_in_one_piece", one_piece)];

/// Name of this program with which it connects to systemd, as a builder.
const ASKS_SYSTEMD: &str = "asks-systemd";
/// Where libcgroups looks for the system bus.
const ADDRESS: &str = "DBUS_SYSTEM_BUS_ADDRESS";
/// How much systemd reads at once.
const READ_SIZE: usize = 256;

/// Connects when started under that name.
pub fn stand_in(program: &str) {
    if program == ASKS_SYSTEMD {
        let path = "kubepods.slice:cri-containerd:one".into();
        // The bus of this test ends the connection.
        let _refused = Manager::new("/".into(), path, "one".to_owned(), true, Duration::ZERO);
        std::process::exit(0);
    }
}

/// systemd leaves a call unanswered that it reads together with BEGIN, so BEGIN comes with AUTH.
fn one_piece() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("bus");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut asks = Command::new("/proc/self/exe")
        .arg0(ASKS_SYSTEMD)
        .env(ADDRESS, format!("unix:path={}", socket.display()))
        .spawn()
        .unwrap();
    let (mut connection, _) = listener.accept().unwrap();
    let mut read = [0; READ_SIZE];
    let length = connection.read(&mut read).unwrap();
    assert_eq!(read[..length], *b"\0AUTH EXTERNAL 30\r\nBEGIN\r\n");
    connection.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap();
    // The call comes after the answer.
    let length = connection.read(&mut read).unwrap();
    assert_eq!(read[..length.min(2)], *b"l\x01");
    drop(connection);
    asks.wait().unwrap();
}
