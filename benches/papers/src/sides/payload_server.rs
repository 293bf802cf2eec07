//! Native servers that take payloads over HTTP, each in a container of runc.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cwasi_bench::peers::{Baseline, Peer};
use cwasi_testbed::netns::connect_in;
use cwasi_testbed::processes;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::Scene;

use super::images::{Archive, PROGRAM, RUNC};
use crate::peers;

/// Ports of of-watchdog, which listens on all addresses, and of the function behind it. Both are in a network of their
/// own.
const WATCHDOG_PORT: u16 = 8080;
const FUNCTION_PORT: u16 = 8082;
/// Where of-watchdog lies in its image.
const OF_WATCHDOG: &str = "/of-watchdog";
/// Longest wait until it listens.
const LISTENS_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A server until it is dropped.
pub struct PayloadServer<'a> {
    scene: &'a Scene,
    id: String,
    kind: Baseline,
    address: String,
    /// A process whose network the server is in, if that is not the machine's.
    network: Option<i32>,
    ctr: Child,
}

impl<'a> PayloadServer<'a> {
    /// Starts one process that takes all requests; `image` is that of this program.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub fn start(scene: &'a Scene, id: &str, image: &str) -> Result<Self> {
        Self::start_kind(scene, id, image, Baseline::HttpLoopback)
    }

    /// Starts a server that starts a process for each request, as classic watchdogs do.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_watchdog(scene: &'a Scene, id: &str, image: &str) -> Result<Self> {
        Self::start_kind(scene, id, image, Baseline::HttpWatchdog)
    }

    fn start_kind(scene: &'a Scene, id: &str, image: &str, kind: Baseline) -> Result<Self> {
        let run = Run::new(&scene.namespace, image, id).runtime(RUNC).flag("--net-host");
        let word = if kind == Baseline::HttpWatchdog { "http-watchdog" } else { "http-loopback" };
        let mut ctr: Command =
            run.args([PROGRAM, "peer-server", word]).command(&scene.containerd, false);
        let mut ctr = ctr.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("ctr run")?;
        let stdout = ctr.stdout.take().context("stdout is a pipe")?;
        let id = id.to_owned();
        let mut server = Self { scene, id, kind, address: String::new(), network: None, ctr };
        BufReader::new(stdout).read_line(&mut server.address)?;
        server.address = server.address.trim().to_owned();
        ensure!(!server.address.is_empty(), "{} does not say where it listens", server.id);
        Ok(server)
    }

    /// Starts OpenFaaS' of-watchdog in front of the same server; `None` if this machine does not have it.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn start_of_watchdog(scene: &'a Scene, id: &str) -> Result<Option<Self>> {
        let Some(program) = peers::find(peers::OF_WATCHDOG) else { return Ok(None) };
        let image = of_watchdog_image(scene, program)?;
        let function = format!("{PROGRAM} peer-server http-loopback --server-port {FUNCTION_PORT}");
        let run = Run::new(&scene.namespace, &image, id)
            .runtime(RUNC)
            .env("mode", "http")
            .env("fprocess", &function)
            .env("upstream_url", &format!("http://127.0.0.1:{FUNCTION_PORT}"))
            .env("port", &WATCHDOG_PORT.to_string())
            .env("suppress_lock", "true")
            .args([OF_WATCHDOG]);
        let mut ctr = run.command(&scene.containerd, false);
        ctr.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let ctr = ctr.spawn().context("ctr run")?;
        let (id, address) = (id.to_owned(), format!("127.0.0.1:{WATCHDOG_PORT}"));
        let kind = Baseline::HttpLoopback;
        let mut server = Self { scene, id, kind, address, network: None, ctr };
        server.network = Some(server.listens()?);
        Ok(Some(server))
    }

    /// Waits until of-watchdog and its function accept connections: the container's process.
    fn listens(&self) -> Result<i32> {
        let started = Instant::now();
        while started.elapsed() < LISTENS_MAX {
            if self.scene.status(&self.id).is_some_and(|status| status == "RUNNING") {
                let pid = self.scene.pid(&self.id);
                let listens = |port| -> Result<bool> {
                    let network = File::open(format!("/proc/{pid}/ns/net"))?;
                    Ok(connect_in(network, port).is_ok())
                };
                if listens(FUNCTION_PORT)? && listens(WATCHDOG_PORT)? {
                    return Ok(pid);
                }
            }
            std::thread::sleep(POLL);
        }
        bail!("{} does not listen", self.id)
    }

    /// The client's side of it.
    #[must_use]
    pub fn peer(&self, connections: usize) -> Peer {
        let peer = Peer::new(self.kind).through(&self.address).connections(connections);
        match self.network {
            Some(process) => peer.inside(process),
            None => peer,
        }
    }

    /// The container's shim and all below it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn processes(&self) -> Result<Vec<i32>> {
        let init = processes::read(self.scene.pid(&self.id)).context("the server has ended")?;
        Ok(cwasi_bench::accounts::family(init.parent))
    }
}

/// Imports an image of of-watchdog and this program.
fn of_watchdog_image(scene: &Scene, program: PathBuf) -> Result<String> {
    let (folder, own) = (tempfile::tempdir()?, std::env::current_exe()?);
    let files = [(program, OF_WATCHDOG)];
    Ok(Archive::unstripped(folder.path(), "of-watchdog", &own, &files)?.import(scene))
}

impl Drop for PayloadServer<'_> {
    fn drop(&mut self) {
        // `ctr run --rm` removes the container when its task has ended.
        let _killed = self.scene.ctr(["task", "kill", "--signal", "KILL", &self.id]);
        let _ended = self.ctr.wait();
    }
}
