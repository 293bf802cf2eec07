//! HTTP/1.1 between two guests under the `wasmedge` command, by WasmEdge's own socket extension: the paper's
//! baseline. Both guests are compiled ahead of time, as ours are; one instance of each serves all requests.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cwasi_testbed::paths::wasmedge;

use super::Peer;
use crate::fixture::guest;

/// The guests, in this program's folder of guests and in that of compiled ones.
const CLIENT: &str = "bench-http-client";
const SERVER: &str = "bench-http-server";

/// Compiles both guests into `folder`.
///
/// # Errors
/// When they or the command are missing, or it cannot compile them.
pub fn compile(programs: &Path, folder: &Path) -> Result<()> {
    for name in [CLIENT, SERVER] {
        let (source, compiled) = (folder.join(format!("{name}.in.wasm")), module(folder, name));
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

fn module(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(format!("{name}.wasm"))
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
    let client = client.arg(module(Path::new(&peer.address), CLIENT)).arg(address.trim());
    Err(client.exec()).context("wasmedge")
}

/// Goes on as the server.
pub fn become_server(peer: &Peer) -> Result<()> {
    let mut server = Command::new(wasmedge()?);
    Err(server.arg(module(Path::new(&peer.address), SERVER)).exec()).context("wasmedge")
}
