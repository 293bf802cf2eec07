//! A real name server, NSD, with a test's zone. It runs in the test's network and ends with it.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::netns::Netns;
use crate::paths;

/// Port of name servers.
const PORT: u16 = 53;
/// Longest wait until it answers.
const READY_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A running name server.
#[derive(Debug)]
pub struct NameServer {
    child: Child,
    _dir: tempfile::TempDir,
}

impl NameServer {
    /// Starts one in `network` that listens at `addresses` and answers for the zone `test.`, by these records.
    ///
    /// # Panics
    /// When set-up has not unpacked it or it does not start.
    #[must_use]
    pub fn start(network: &Netns, addresses: &[IpAddr], records: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, records, addresses) =
            (dir.path().to_owned(), records.to_owned(), addresses.to_vec());
        // The process dies with the thread that starts it.
        let child = network.run(move || launch(&path, &addresses, &records));
        Self { child: child.unwrap_or_else(|error| panic!("{error:#}")), _dir: dir }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        // Its own children end with it.
        let pid = i32::try_from(self.child.id()).expect("process ids are below 2^22");
        let _ended =
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM);
        let _reaped = self.child.wait();
    }
}

fn launch(dir: &Path, addresses: &[IpAddr], records: &str) -> Result<Child> {
    let zone = format!("$ORIGIN test.\n$TTL 60\n@ SOA ns host 1 60 60 60 60\n@ NS ns\n{records}");
    fs::write(dir.join("zone"), zone)?;
    let configuration = dir.join("nsd.conf");
    fs::write(&configuration, settings(dir, addresses))?;
    let log = fs::File::create(dir.join("log"))?;
    let lib = paths::unpacked("nsd", "usr/lib")?;
    let libraries: Vec<PathBuf> = fs::read_dir(&lib)?.flatten().map(|entry| entry.path()).collect();
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .arg(paths::unpacked("nsd", "usr/sbin")?.join("nsd"))
        .args(["-d", "-c"])
        .arg(configuration)
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut child = command.spawn().context("start setpriv")?;
    let start = Instant::now();
    let listens = |address: &IpAddr| TcpStream::connect(SocketAddr::new(*address, PORT)).is_ok();
    while !addresses.iter().all(listens) {
        if child.try_wait()?.is_some() || start.elapsed() > READY_MAX {
            let _ended = child.kill();
            bail!("no name server: {}", fs::read_to_string(dir.join("log")).unwrap_or_default());
        }
        std::thread::sleep(POLL);
    }
    Ok(child)
}

fn settings(dir: &Path, addresses: &[IpAddr]) -> String {
    let listen: String =
        addresses.iter().map(|address| format!("  ip-address: {address}\n")).collect();
    let dir = dir.display();
    format!(
        "server:\n{listen}  server-count: 1\n  username: \"\"\n  database: \"\"\n  zonesdir: \"{dir}\"\n  \
         pidfile: \"{dir}/pid\"\n  xfrdfile: \"{dir}/xfrd\"\n  xfrdir: \"{dir}\"\n  zonelistfile: \"{dir}/zones\"\n\
         remote-control:\n  control-enable: no\nzone:\n  name: \"test.\"\n  zonefile: \"zone\"\n"
    )
}
