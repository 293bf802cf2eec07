//! Images of native programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::scene::Scene;

/// The runtime beside ours.
pub const RUNC: &str = "io.containerd.runc.v2";
/// Path of the program in its image.
pub const PROGRAM: &str = "/program";

/// Imports an image with a program, and with the libraries that it needs of this machine, if any; its name and the
/// length of its archive in bytes.
///
/// # Errors
/// When the program is missing.
pub fn native(scene: &Scene, name: &str, program: &Path) -> Result<(String, u64)> {
    let mut rootfs = Rootfs::default();
    let stripped = stripped(scene, name, program)?;
    rootfs.file(&stripped, PROGRAM)?;
    std::fs::remove_file(stripped)?;
    for library in libraries(program)? {
        rootfs.file(Path::new(&library), &library)?;
    }
    import(scene, rootfs, name, PROGRAM)
}

/// The program without symbols, which an image would have no use for.
fn stripped(scene: &Scene, name: &str, program: &Path) -> Result<PathBuf> {
    let out = scene.containerd.ready().dir.join(format!("{name}.stripped"));
    let status =
        Command::new("strip").arg("-o").arg(&out).arg(program).status().context("strip")?;
    ensure!(status.success(), "strip {}: {status}", program.display());
    Ok(out)
}

/// Imports an image with a module; its name and the length of its archive in bytes.
///
/// # Errors
/// When the module is missing.
pub fn module(scene: &Scene, name: &str, module: &Path) -> Result<(String, u64)> {
    let mut rootfs = Rootfs::default();
    rootfs.file(module, "/m.wasm")?;
    import(scene, rootfs, name, "/m.wasm")
}

fn import(scene: &Scene, rootfs: Rootfs, name: &str, entrypoint: &str) -> Result<(String, u64)> {
    let reference = format!("localhost/{name}:papers");
    let archive = scene.containerd.ready().dir.join(format!("{name}.tar"));
    let start = Start { entrypoint: vec![entrypoint.to_owned()], ..Start::default() };
    rootfs.write(&reference, &start, &archive)?;
    scene.import(&archive);
    let length = std::fs::metadata(&archive)?.len();
    std::fs::remove_file(&archive)?;
    Ok((reference, length))
}

/// Paths that the program loads; none for a static one.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // `libc.so.6 => /lib/…/libc.so.6 (0x…)`, `/lib64/ld-linux-x86-64.so.2 (0x…)`
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    Ok(said.lines().filter_map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_program_are_files() {
        let own = std::env::current_exe().unwrap();
        let found = libraries(&own).unwrap();
        assert!(found.iter().any(|path| path.contains("libc.so")), "{found:?}");
        assert!(found.iter().all(|path| Path::new(path).exists()), "{found:?}");
    }
}
