//! Builds the functions in `docs/abi.md` and `docs/languages.md` from the text of these pages. A code block is a file
//! if its fence names one (```` ```c next.c ````). The next block with the fence ```` ```sh build ```` is the command
//! that compiles it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::page::blocks;
use crate::paths;

/// Fence of a build command.
const BUILD: &str = "sh build";
/// The C header, which every C function includes.
const HEADER: &str = "cwasi.h";

/// A function in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Example {
    /// C without a C library.
    FreestandingC,
    C,
    Go,
    AssemblyScript,
    Zig,
}

impl Example {
    pub const ALL: [Self; 5] =
        [Self::FreestandingC, Self::C, Self::Go, Self::AssemblyScript, Self::Zig];

    /// The page and the name of the source file on it.
    #[must_use]
    pub const fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::FreestandingC => ("abi.md", "bracket.c"),
            Self::C => ("languages.md", "next.c"),
            Self::Go => ("languages.md", "next.go"),
            Self::AssemblyScript => ("languages.md", "next.ts"),
            Self::Zig => ("languages.md", "next.zig"),
        }
    }

    /// Compiles it in `dir` and returns the module.
    ///
    /// # Errors
    /// When the page does not show it, set-up has not unpacked the compilers, or a compiler refuses it.
    pub fn build(self, dir: &Path) -> Result<PathBuf> {
        let (page, name) = self.source();
        let header = page_text("abi.md")?;
        let text = page_text(page)?;
        let (source, command) = find(&text, name).with_context(|| format!("read docs/{page}"))?;
        let (header, _) = find(&header, HEADER).context("read docs/abi.md")?;
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        fs::write(dir.join(HEADER), format!("#pragma once\n{header}"))?;
        fs::write(dir.join(name), source)?;
        run(
            command.with_context(|| format!("docs/{page} does not say how to build {name}"))?,
            dir,
        )?;
        let module = dir.join(name).with_extension("wasm");
        ensure!(module.exists(), "the command in docs/{page} made no {}", module.display());
        Ok(module)
    }
}

fn page_text(page: &str) -> Result<String> {
    let path = paths::checkout().join("docs").join(page);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The code block named `name`, and the first build command after it.
fn find<'a>(page: &'a str, name: &str) -> Result<(&'a str, Option<&'a str>)> {
    let mut blocks = blocks(page).into_iter();
    let Some(source) = blocks.find(|block| block.note() == name) else {
        bail!("it shows no {name}");
    };
    let build = blocks.find(|block| block.info == BUILD);
    Ok((source.text, build.map(|build| build.text)))
}

fn run(command: &str, dir: &Path) -> Result<()> {
    let mut path = vec![paths::compilers()?];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let output = Command::new("sh")
        .args(["-euc", command])
        .current_dir(dir)
        .env("PATH", std::env::join_paths(path)?)
        .output()
        .context("start a shell")?;
    if !output.status.success() {
        bail!("{command}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_with_the_command_that_follows_it() {
        let page = "x\n```c\nother\n```\n```c a.c\nint a;\n```\n```sh build\ncc a.c\n```\n";
        assert_eq!(find(page, "a.c").unwrap(), ("int a;\n", Some("cc a.c\n")));
        find(page, "b.c").unwrap_err();
    }

    #[test]
    fn the_pages_show_every_example() {
        for example in Example::ALL {
            let (page, name) = example.source();
            let text = page_text(page).unwrap();
            assert!(find(&text, name).unwrap().1.is_some(), "{name} in docs/{page}");
        }
    }
}
