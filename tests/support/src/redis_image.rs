//! An image with Redis or Valkey, as a registry has it: the server is its command, and its client beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::image::{Rootfs, Start};
use crate::paths;
use crate::redis::RedisVersion;
use crate::scene::Scene;

/// Where the programs are in the image.
const PROGRAMS: &str = "usr/bin";

impl Scene {
    /// Imports an image of this server; returns its name.
    ///
    /// # Panics
    /// When set-up has not unpacked it.
    #[must_use]
    pub fn import_redis(&self, version: RedisVersion) -> String {
        let name = version.folder();
        let reference = format!("localhost/{name}:test");
        let archive = self.node.path().join(format!("{name}.tar"));
        if !archive.exists() {
            write(version, &reference, &archive).unwrap_or_else(|error| panic!("{error:#}"));
        }
        self.import(&archive);
        reference
    }
}

fn write(version: RedisVersion, reference: &str, archive: &Path) -> Result<()> {
    let bin = paths::unpacked(version.folder(), PROGRAMS)?;
    let mut rootfs = Rootfs::default();
    let mut libraries: Vec<(PathBuf, PathBuf)> = Vec::new();
    for program in version.programs() {
        let path = bin.join(program);
        rootfs.file(&path, &format!("{PROGRAMS}/{program}"))?;
        libraries.extend(libraries_of(&path, &version.libraries()?)?);
    }
    libraries.sort();
    libraries.dedup();
    for (host, inside) in libraries {
        rootfs.file(&host, &inside.display().to_string())?;
    }
    let [server, _] = version.programs();
    let start = Start { cmd: vec![server.to_owned()], ..Start::default() };
    rootfs.write(reference, &start, archive)
}

/// The libraries that the dynamic linker finds for a program: where they are, and where the image has them.
fn libraries_of(program: &Path, unpacked: &[PathBuf]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let folders = std::env::join_paths(unpacked)?;
    let output = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", folders).output();
    let output = output.with_context(|| format!("ldd {}", program.display()))?;
    if !output.status.success() {
        bail!("ldd {}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x…)`, and the linker itself without an arrow.
    let found = text.lines().filter_map(|line| {
        let path = line.rsplit("=> ").next()?.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    let inside = |path: &PathBuf| {
        let folder = unpacked.iter().find(|folder| path.starts_with(folder));
        let name = path.file_name().map(PathBuf::from).unwrap_or_default();
        let architecture = folder.and_then(|folder| folder.file_name()).map(PathBuf::from);
        architecture.map_or_else(|| path.clone(), |it| Path::new("/usr/lib").join(it).join(name))
    };
    Ok(found.map(|path| (path.clone(), inside(&path))).collect())
}
