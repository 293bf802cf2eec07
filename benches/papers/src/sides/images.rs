//! Images of native programs and of modules.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::scene::Scene;

/// The runtime beside ours.
pub const RUNC: &str = "io.containerd.runc.v2";
/// Path of the program in its image.
pub const PROGRAM: &str = "/program";
/// The same of a module.
pub const MODULE: &str = "/m.wasm";

/// An image's archive.
pub struct Archive {
    pub reference: String,
    pub path: PathBuf,
}

impl Archive {
    /// Writes an image with a program, and with the libraries that it needs of this machine, if any.
    ///
    /// # Errors
    /// When the program is missing.
    pub fn native(folder: &Path, name: &str, program: &Path) -> Result<Self> {
        let stripped = stripped(folder, name, program)?;
        let archive = Self::unstripped(folder, name, &stripped, &[]);
        std::fs::remove_file(stripped)?;
        archive
    }

    /// The same with the program as it is, and with further files at these paths.
    ///
    /// # Errors
    /// When a file is missing.
    pub fn unstripped(
        folder: &Path,
        name: &str,
        program: &Path,
        files: &[(PathBuf, &str)],
    ) -> Result<Self> {
        let mut rootfs = Rootfs::default();
        rootfs.file(program, PROGRAM)?;
        for library in libraries(program)? {
            rootfs.file(Path::new(&library), &library)?;
        }
        for (file, inside) in files {
            rootfs.file(file, inside)?;
        }
        Self::write(folder, rootfs, name, PROGRAM)
    }

    /// Writes an image with a module.
    ///
    /// # Errors
    /// When the module is missing.
    pub fn module(folder: &Path, name: &str, module: &Path) -> Result<Self> {
        let mut rootfs = Rootfs::default();
        rootfs.file(module, MODULE)?;
        Self::write(folder, rootfs, name, MODULE)
    }

    fn write(folder: &Path, rootfs: Rootfs, name: &str, entrypoint: &str) -> Result<Self> {
        let (reference, path) =
            (format!("localhost/{name}:papers"), folder.join(format!("{name}.tar")));
        let start = Start { entrypoint: vec![entrypoint.to_owned()], ..Start::default() };
        rootfs.write(&reference, &start, &path)?;
        Ok(Self { reference, path })
    }

    /// Imports it; its name.
    #[must_use]
    pub fn import(&self, scene: &Scene) -> String {
        scene.import(&self.path);
        self.reference.clone()
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// When it is gone.
    pub fn length(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }
}

/// The program without symbols, which an image would have no use for.
pub fn stripped(folder: &Path, name: &str, program: &Path) -> Result<PathBuf> {
    let out = folder.join(format!("{name}.stripped"));
    let status =
        Command::new("strip").arg("-o").arg(&out).arg(program).status().context("strip")?;
    ensure!(status.success(), "strip {}: {status}", program.display());
    Ok(out)
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
