//! `cwasi doctor`: examines this node; each finding says what to do.
//!
//! - `containerd`: version, snapshotter, and the runtime for pods; `redis`: whether it answers, and its limits.
//! - `link`: direct connections to other nodes.
//! - `programs`: the runtime's programs and the engines.

mod containerd;
mod link;
mod programs;
mod redis;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use cwasi_config::node::config_file;
use cwasi_config::{DEFAULT_ENGINE, NodeConfig};
use cwasi_coordinator::fingerprint::cpu_features;
use cwasi_coordinator::precompiled::TrustedKeys;
use cwasi_coordinator::registry::Record;
use serde::Serialize;

use crate::arguments::Global;
use crate::deployment::platform::{RUN, RUNS};
use crate::deployment::run_folder;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::table::Table;

/// Free space in bytes below which compiling soon fails.
const ROOM_MIN: u64 = 256 << 20;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Doctor {
    /// containerd's configuration, which names the runtime for pods
    #[arg(long, default_value = "/etc/containerd/config.toml", value_name = "FILE")]
    containerd_config: PathBuf,
    /// Examine nothing but this configuration of a node
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Note,
    Fault,
}

#[derive(Debug, Serialize)]
struct Check {
    state: State,
    what: &'static str,
    found: String,
}

#[derive(Default)]
struct Checks(Vec<Check>);

impl Checks {
    fn add(&mut self, state: State, what: &'static str, found: impl Into<String>) {
        self.0.push(Check { state, what, found: found.into() });
    }
}

impl Doctor {
    /// Prints all checks; exit code 1 if one found a fault.
    ///
    /// # Errors
    /// With `--config`, the file's fault.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        if let Some(file) = &self.config {
            NodeConfig::load(None, Some(file))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut checks = Checks::default();
        checks.add(State::Ok, "version", format!("cwasi {}", env!("CARGO_PKG_VERSION")));
        permissions(&mut checks);
        containerd::examine(&mut checks, global, &self.containerd_config).await;
        let config = NodeConfig::load(None, None);
        programs::examine(&mut checks, config.as_ref().map_or(DEFAULT_ENGINE, |it| it.engine));
        kernel(&mut checks);
        match config {
            Ok(config) => {
                folders(&mut checks, &config);
                keys(&mut checks, &config);
                redis::examine(&mut checks, &config).await;
                stale(&mut checks, &config);
                killed_runs(&mut checks, &config);
            }
            Err(error) => checks.add(State::Fault, "configuration", error.to_string()),
        }
        if global.json {
            output::json(&checks.0)?;
        } else {
            let mut table = Table::new(["", "CHECK", "FOUND"]);
            for Check { state, what, found } in &checks.0 {
                let word = match state {
                    State::Ok => "ok",
                    State::Note => "note",
                    State::Fault => "FAULT",
                };
                table.row([word.to_owned(), (*what).to_owned(), found.clone()]);
            }
            output::text(table)?;
        }
        let faults = checks.0.iter().any(|check| check.state == State::Fault);
        Ok(if faults { Exit::Findings.into() } else { ExitCode::SUCCESS })
    }
}

fn permissions(checks: &mut Checks) {
    if nix::unistd::geteuid().is_root() {
        checks.add(State::Ok, "permissions", "root");
    } else {
        checks.add(
            State::Fault,
            "permissions",
            "not root: the runtime's state and containerd's socket need it; use sudo",
        );
    }
}

fn kernel(checks: &mut Checks) {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        checks.add(State::Ok, "cgroups", "version 2");
    } else {
        checks.add(State::Ok, "cgroups", "version 1");
    }
    let size = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        .unwrap_or_default();
    match size.trim().parse::<u64>() {
        Ok(bytes) => checks.add(
            State::Ok,
            "huge pages",
            format!("{} KiB; segments of 2 MiB or more use them", bytes >> 10),
        ),
        Err(_) => checks.add(
            State::Note,
            "huge pages",
            "this kernel has none: large payloads take more page faults",
        ),
    }
    if cpu_features().is_empty() {
        checks.add(
            State::Note,
            "processor",
            "its features are not known: share no cache folder with other machines",
        );
    }
}

fn folders(checks: &mut Checks, config: &NodeConfig) {
    for (what, dir) in [("state folder", &config.state_dir), ("cache folder", &config.cache_dir)] {
        let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
        let free = nix::sys::statvfs::statvfs(existing)
            .map(|found| found.blocks_available().saturating_mul(found.fragment_size()));
        match free {
            Ok(free) if free < ROOM_MIN => {
                let found = format!("{}: only {} MiB are free", dir.display(), free >> 20);
                let file = config_file();
                let found =
                    format!("{found}; make room, or set another folder in {}", file.display());
                checks.add(State::Fault, what, found);
            }
            Ok(_) => checks.add(State::Ok, what, dir.display().to_string()),
            Err(error) => checks.add(State::Fault, what, format!("{}: {error}", dir.display())),
        }
    }
}

/// Keys whose precompiled code the node takes.
fn keys(checks: &mut Checks, config: &NodeConfig) {
    let named = &config.compile.trusted_keys;
    let keys = TrustedKeys::read(named);
    for problem in keys.problems() {
        checks.add(State::Fault, "trusted keys", problem.to_string());
    }
    if !keys.is_empty() {
        checks.add(State::Ok, "trusted keys", format!("{} of {}", keys.ids().count(), named.len()));
    }
    if !config.compile.enabled {
        let found = "this node never compiles (compile.enabled = false)";
        checks.add(State::Note, "compiling", found);
    }
}

/// Records whose functions are gone: their shim was killed, and containerd did not run `delete` yet.
fn stale(checks: &mut Checks, config: &NodeConfig) {
    let root = config.state_dir.join("f");
    let folders = fs::read_dir(&root).into_iter().flatten().flatten();
    let files =
        folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
    let records = files
        .filter_map(|file| serde_json::from_slice::<Record>(&fs::read(file.path()).ok()?).ok());
    let records: Vec<_> = records.collect();
    let dead = records.iter().filter(|record| !accepts(&record.socket));
    let dead: Vec<_> = dead.map(|record| record.container.as_str()).collect();
    if dead.is_empty() {
        checks.add(State::Ok, "functions", format!("{} callable on this node", records.len()));
    } else {
        let found = format!("their shims are gone: {}; cwasi rm removes them", dead.join(", "));
        checks.add(State::Fault, "functions", found);
    }
}

/// Folders of `cwasi run` commands that were killed: the fifos of their primaries.
fn killed_runs(checks: &mut Checks, config: &NodeConfig) {
    let left = run_folder::abandoned(&config.state_dir.join(RUNS), RUN);
    if !left.is_empty() {
        let found = format!(
            "{} of killed cwasi run commands left in {}: the next cwasi run or cwasi rm removes them; cwasi ps lists \
             functions that still run",
            left.len(),
            config.state_dir.join(RUNS).display()
        );
        checks.add(State::Note, "runs", found);
    }
}

/// True if a receiver listens: they are sockets that keep the boundaries of messages.
fn accepts(socket: &Path) -> bool {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket as open};
    let fd = open(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    let address = UnixAddr::new(socket);
    match (fd, address) {
        (Ok(fd), Ok(address)) => connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &address).is_ok(),
        _ => false,
    }
}
