//! HTTP/1.1 between two guests under the `wasmedge` command, by WasmEdge's own socket extension: the paper's
//! baseline. Both guests are compiled ahead of time, as ours are; one instance of each serves all requests.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cwasi_testbed::paths::wasmedge;
use cwasi_testbed::scene::guests_dir;

use super::Peer;
use crate::fixture::guest;

/// Names of a client and its server.
#[derive(Clone, Copy, Debug)]
pub struct HttpGuests {
    /// Takes the harness's jobs; its argument is the server's address.
    pub client: &'static str,
    /// Says its address in its first line.
    pub server: &'static str,
}

/// The pair that keeps one connection for all requests.
pub const HTTP_GUESTS: HttpGuests =
    HttpGuests { client: "bench-http-client", server: "bench-http-server" };

/// Names of the compiled guests in their folder.
const CLIENT: &str = "client.wasm";
const SERVER: &str = "server.wasm";

impl HttpGuests {
    /// True when both are there.
    #[must_use]
    pub fn are_built(self, programs: &Path) -> bool {
        let folder = guests_dir(programs);
        [self.client, self.server].iter().all(|name| folder.join(format!("{name}.wasm")).exists())
    }
}

/// Compiles both guests into `folder`, which has one pair.
///
/// # Errors
/// When they or the command are missing, or it cannot compile them.
pub fn compile(programs: &Path, folder: &Path, guests: HttpGuests) -> Result<()> {
    for (name, compiled) in [(guests.client, CLIENT), (guests.server, SERVER)] {
        let (source, compiled) = (folder.join(format!("{name}.in.wasm")), folder.join(compiled));
        fs::write(&source, guest(programs, name)?).with_context(|| source.display().to_string())?;
        let output = Command::new(wasmedge()?)
            .arg("compile")
            .args([&source, &compiled])
            .output()
            .context("wasmedge compile")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && compiled.exists(), "wasmedge compile {name}: {said}");
    }
    Ok(())
}

/// Starts the server, and goes on as the client; the server ends with this process.
pub fn become_client(peer: &Peer) -> Result<()> {
    let mut server = peer.server_command()?;
    let mut server = server.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let stdout = server.stdout.take().context("stdout is a pipe")?;
    let mut address = String::new();
    BufReader::new(stdout).read_line(&mut address).context("the server's address")?;
    ensure!(!address.trim().is_empty(), "the server did not start");
    let mut client = Command::new(wasmedge()?);
    let client = client.arg(module(peer, CLIENT)).arg(address.trim());
    Err(client.exec()).context("wasmedge")
}

/// Goes on as the server.
pub fn become_server(peer: &Peer) -> Result<()> {
    let mut server = Command::new(wasmedge()?);
    Err(server.arg(module(peer, SERVER)).exec()).context("wasmedge")
}

fn module(peer: &Peer, name: &str) -> PathBuf {
    Path::new(&peer.address).join(name)
}
