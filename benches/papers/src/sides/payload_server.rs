//! The baseline `http-loopback` with its server in a container of runc, in the machine's network.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::peers::{Baseline, Peer};
use cwasi_testbed::processes;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::Scene;

use super::images::{PROGRAM, RUNC};

/// A server until it is dropped.
pub struct PayloadServer<'a> {
    scene: &'a Scene,
    id: String,
    address: String,
    ctr: Child,
}

impl<'a> PayloadServer<'a> {
    /// Starts one; `image` is that of this program.
    ///
    /// # Errors
    /// When it does not say where it listens.
    pub fn start(scene: &'a Scene, id: &str, image: &str) -> Result<Self> {
        let run = Run::new(&scene.namespace, image, id).runtime(RUNC).flag("--net-host");
        let mut ctr: Command =
            run.args([PROGRAM, "peer-server", "http-loopback"]).command(&scene.containerd, false);
        let mut ctr = ctr.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("ctr run")?;
        let stdout = ctr.stdout.take().context("stdout is a pipe")?;
        let mut server = Self { scene, id: id.to_owned(), address: String::new(), ctr };
        BufReader::new(stdout).read_line(&mut server.address)?;
        server.address = server.address.trim().to_owned();
        ensure!(!server.address.is_empty(), "{id} does not say where it listens");
        Ok(server)
    }

    /// The client's side of it.
    #[must_use]
    pub fn peer(&self, connections: usize) -> Peer {
        Peer::new(Baseline::HttpLoopback).through(&self.address).connections(connections)
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

impl Drop for PayloadServer<'_> {
    fn drop(&mut self) {
        // `ctr run --rm` removes the container when its task has ended.
        let _killed = self.scene.ctr(["task", "kill", "--signal", "KILL", &self.id]);
        let _ended = self.ctr.wait();
    }
}
