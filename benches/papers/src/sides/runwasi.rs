//! runwasi's shims, if this machine has them: other runtimes of containerd for modules and components.

use std::path::{Path, PathBuf};

use anyhow::Result;
use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::scene::Scene;

use super::images::MODULE;
use crate::peers;

/// Where the wasmtime shim serves a component of `wasi:http`, as a variable of its container.
pub const LISTENS_AT: &str = "WASMTIME_HTTP_PROXY_SOCKET_ADDR";
/// What is known of them, for the conditions.
pub const ABOUT: &str = "runwasi’s shims, if the machine has them: each container’s image has the module as a layer; the \
    wasmtime shim keeps it compiled in containerd’s content store, the WasmEdge shim interprets it.";

/// One of them.
#[derive(Clone, Debug)]
pub struct Shim {
    /// Name of the side.
    pub side: &'static str,
    /// Its program, by which containerd takes it for a container's runtime.
    pub program: PathBuf,
}

impl Shim {
    /// The one with wasmtime, which serves components.
    #[must_use]
    pub fn wasmtime() -> Option<Self> {
        Self::found("runwasi wasmtime", peers::RUNWASI_WASMTIME)
    }

    /// All that are there.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let wasmedge = Self::found("runwasi wasmedge", peers::RUNWASI_WASMEDGE);
        Self::wasmtime().into_iter().chain(wasmedge).collect()
    }

    fn found(side: &'static str, name: &str) -> Option<Self> {
        let program = peers::find(name)?;
        // containerd tells a path from a name by the slash at its beginning.
        let program = std::path::absolute(program).ok()?;
        Some(Self { side, program })
    }

    /// The runtime's name for containerd.
    #[must_use]
    pub fn runtime(&self) -> String {
        self.program.display().to_string()
    }
}

/// Imports an image for them with `module`; its name. The scene has an image of ours with the same module, whose root
/// file system is this one's, too: containerd 1.6 does not unpack images with modules as layers.
///
/// # Errors
/// When the module is missing.
pub fn import(scene: &Scene, name: &str, module: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let (reference, archive) =
        (format!("localhost/{name}-runwasi:papers"), folder.path().join("image.tar"));
    let mut rootfs = Rootfs::default();
    rootfs.file(module, MODULE)?;
    let start = Start { entrypoint: vec![MODULE.to_owned()], ..Start::default() };
    rootfs.write_beside_module(module, &reference, &start, &archive)?;
    let archive = archive.to_str().expect("temporary paths are UTF-8");
    let import = ["images", "import", "--all-platforms", "--no-unpack", archive];
    let _imported = scene.ctr(import).success();
    Ok(reference)
}
