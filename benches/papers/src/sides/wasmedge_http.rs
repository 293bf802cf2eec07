//! HTTP between two guests under the `wasmedge` command, which the CWASI paper measured.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use cwasi_bench::peers::{Baseline, HTTP_GUESTS, HttpGuests, Peer, compile_http_guests};

/// A client and a server.
pub struct WasmedgeHttp {
    pub name: &'static str,
    pub in_turn: &'static str,
    guests: HttpGuests,
}

/// Of our own: one connection is kept alive.
pub const OWN: WasmedgeHttp = WasmedgeHttp {
    name: "WasmEdge HTTP (own)",
    in_turn: "WasmEdge HTTP (own), in turn",
    guests: HTTP_GUESTS,
};

/// With the crates of the paper's artifact: a connection for each request.
pub const HTTP_REQ: WasmedgeHttp = WasmedgeHttp {
    name: "WasmEdge HTTP (wasmedge_http_req)",
    in_turn: "WasmEdge HTTP (wasmedge_http_req), in turn",
    guests: HttpGuests { client: "papers-http-client", server: "papers-http-server" },
};

/// What the report says when the guests of [`HTTP_REQ`] are missing.
pub const MISSING: &str = "its guests are not built (scripts/guests.sh --papers)";

/// How both work.
pub const ABOUT: &str = "WasmEdge HTTP: two guests under the wasmedge command, compiled ahead, which make one call after the \
    other. Own: a client and a server of ours, with one connection kept alive. wasmedge_http_req: the client of the \
    paper’s artifact, which connects for each request, and its server, hyper_wasi.";

/// Our own, and the other one if its guests are built.
#[must_use]
pub fn sides(programs: &Path) -> Vec<&'static WasmedgeHttp> {
    let more = Some(&HTTP_REQ).filter(|side| side.guests.are_built(programs));
    [&OWN].into_iter().chain(more).collect()
}

/// Compiles the guests of all [`sides`], each pair into a folder of its own.
///
/// # Errors
/// When our own guests or the command are missing.
pub fn compile(programs: &Path, folder: &Path) -> Result<()> {
    for side in sides(programs) {
        let folder = folder.join(side.guests.client);
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        compile_http_guests(programs, &folder, side.guests)?;
    }
    Ok(())
}

impl WasmedgeHttp {
    /// Its client, with a server of its own; `folder` is that of [`compile`].
    ///
    /// # Errors
    /// When the folder's name is not UTF-8.
    pub fn peer(&self, folder: &Path) -> Result<Peer> {
        let folder = folder.join(self.guests.client);
        let folder = folder.to_str().context("paths are UTF-8")?;
        Ok(Peer::new(Baseline::HttpWasmedge).through(folder))
    }
}
