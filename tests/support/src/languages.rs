//! Builds the functions in `docs/abi.md`, `docs/languages.md` and `docs/components.md` from the text of these pages. A
//! code block is a file if its fence names one (```` ```c next.c ````). The next block with the fence ```` ```sh build ````
//! is the command that compiles it; a second one is another way.

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
/// The page of components; what else its functions in Rust need, and where the interfaces go.
const COMPONENTS: &str = "components.md";
const MANIFEST: &str = "Cargo.toml";
const LOCK: &str = "Cargo.lock";
const INTERFACES: &str = "wit";
/// Our interfaces, and the crate whose sources have those of WASI.
const OURS: &str = "abi/wit";
const WASI: &str = "wasip2";
/// The world of [`Example::ComponentHttp`].
const HTTP_WORLD: &str = "wit/hello.wit";
/// The workspace of the guests that are components.
const GUESTS: &str = "tests/guests/components";

/// A function in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Example {
    /// C without a C library.
    FreestandingC,
    C,
    Go,
    AssemblyScript,
    Zig,
    /// Components.
    ComponentRust,
    ComponentPython,
    ComponentJavaScript,
    ComponentQuickJs,
    ComponentC,
    /// With `wasi:http/incoming-handler`.
    ComponentHttp,
}

impl Example {
    pub const ALL: [Self; 11] = [
        Self::FreestandingC,
        Self::C,
        Self::Go,
        Self::AssemblyScript,
        Self::Zig,
        Self::ComponentRust,
        Self::ComponentPython,
        Self::ComponentJavaScript,
        Self::ComponentQuickJs,
        Self::ComponentC,
        Self::ComponentHttp,
    ];

    /// The page and the name of the source file on it.
    #[must_use]
    pub const fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::FreestandingC => ("abi.md", "bracket.c"),
            Self::C => ("languages.md", "next.c"),
            Self::Go => ("languages.md", "next.go"),
            Self::AssemblyScript => ("languages.md", "next.ts"),
            Self::Zig => ("languages.md", "next.zig"),
            Self::ComponentRust => (COMPONENTS, "ask.rs"),
            Self::ComponentPython => (COMPONENTS, "ask.py"),
            Self::ComponentJavaScript | Self::ComponentQuickJs => (COMPONENTS, "ask.js"),
            Self::ComponentC => (COMPONENTS, "ask.c"),
            Self::ComponentHttp => (COMPONENTS, "hello.py"),
        }
    }

    /// Which of the build commands behind the source compiles it.
    const fn way(self) -> usize {
        if matches!(self, Self::ComponentQuickJs) { 1 } else { 0 }
    }

    /// Compiles it in `dir` and returns the module.
    ///
    /// # Errors
    /// When the page does not show it, set-up has not unpacked the compilers, or a compiler refuses it.
    pub fn build(self, dir: &Path) -> Result<PathBuf> {
        self.build_changed(dir, str::to_owned)
    }

    /// The same with a change of the source.
    ///
    /// # Errors
    /// As [`Self::build`], and when nothing was changed that should be.
    pub fn build_with(self, dir: &Path, (old, new): (&str, &str)) -> Result<PathBuf> {
        let (page, name) = self.source();
        ensure!(page_text(page)?.contains(old), "{name} in docs/{page} has no `{old}`");
        self.build_changed(dir, |source| source.replacen(old, new, 1))
    }

    fn build_changed(self, dir: &Path, change: impl Fn(&str) -> String) -> Result<PathBuf> {
        let (page, name) = self.source();
        let text = page_text(page)?;
        let (source, command) =
            find(&text, name, self.way()).with_context(|| format!("read docs/{page}"))?;
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        if self == Self::ComponentHttp {
            write_http_interfaces(&text, dir)?;
        } else if page == COMPONENTS {
            copy(&paths::checkout().join(OURS), &dir.join(INTERFACES))?;
        } else {
            let header = page_text("abi.md")?;
            let (header, _) = find(&header, HEADER, 0).context("read docs/abi.md")?;
            fs::write(dir.join(HEADER), format!("#pragma once\n{header}"))?;
        }
        if self == Self::ComponentRust {
            write_manifest(&text, dir)?;
        }
        fs::write(dir.join(name), change(source))?;
        let module = dir.join(name).with_extension("wasm");
        if module.exists() {
            fs::remove_file(&module)?;
        }
        run(
            command.with_context(|| format!("docs/{page} does not say how to build {name}"))?,
            dir,
        )?;
        ensure!(module.exists(), "the command in docs/{page} made no {}", module.display());
        Ok(module)
    }
}

/// Copies a file, or what is in a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-rT").args([from, to]).status().context("start cp")?;
    ensure!(status.success(), "copy {} to {}", from.display(), to.display());
    Ok(())
}

/// Our interfaces and WASI's as dependencies of the page's world.
fn write_http_interfaces(page: &str, dir: &Path) -> Result<()> {
    let (world, _) = find(page, HTTP_WORLD, 0)?;
    let (ours, dependencies) = (paths::checkout().join(OURS), dir.join("wit/deps"));
    fs::create_dir_all(&dependencies)?;
    fs::write(dir.join(HTTP_WORLD), world)?;
    copy(&ours.join("function.wit"), &dependencies.join("function.wit"))?;
    copy(&ours.join("deps"), &dependencies)?;
    copy(&wasi_interfaces()?, &dependencies)
}

/// The folder with WASI's interfaces, in the sources of a crate that the guests use.
fn wasi_interfaces() -> Result<PathBuf> {
    let manifest = paths::checkout().join(GUESTS).join(MANIFEST);
    let output = Command::new("cargo")
        .args(["metadata", "--offline", "--format-version=1", "--manifest-path"])
        .arg(&manifest)
        .output()
        .context("start cargo")?;
    let sources = String::from_utf8_lossy(&output.stderr);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the guests are not built (scripts/guests.sh): {sources}"))?;
    let packages = found["packages"].as_array().context("cargo metadata has no packages")?;
    let crate_of_wasi = packages.iter().find(|package| package["name"] == WASI);
    let manifest = crate_of_wasi.and_then(|package| package["manifest_path"].as_str());
    let manifest = Path::new(manifest.with_context(|| format!("no guest depends on {WASI}"))?);
    Ok(manifest.with_file_name("wit").join("deps"))
}

/// The page's manifest, and the versions that the guests are built with. The folder lies below our own workspace.
fn write_manifest(page: &str, dir: &Path) -> Result<()> {
    let (manifest, _) = find(page, MANIFEST, 0)?;
    fs::write(dir.join(MANIFEST), format!("{manifest}\n[workspace]\n"))?;
    let lock = paths::checkout().join(GUESTS).join(LOCK);
    fs::copy(&lock, dir.join(LOCK)).with_context(|| format!("copy {}", lock.display()))?;
    Ok(())
}

fn page_text(page: &str) -> Result<String> {
    let path = paths::checkout().join("docs").join(page);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The code block named `name`, and the build command number `way` after it.
fn find<'a>(page: &'a str, name: &str, way: usize) -> Result<(&'a str, Option<&'a str>)> {
    let mut blocks = blocks(page).into_iter();
    let Some(source) = blocks.find(|block| block.note() == name) else {
        bail!("it shows no {name}");
    };
    let build = blocks.filter(|block| block.info == BUILD).nth(way);
    Ok((source.text, build.map(|build| build.text)))
}

fn run(command: &str, dir: &Path) -> Result<()> {
    let mut path = vec![paths::compilers()?];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let output = Command::new("sh")
        .args(["-euc", command])
        .current_dir(dir)
        .env("PATH", std::env::join_paths(path)?)
        // cargo has everything since the guests were built, and builds where the page says.
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("CARGO_TARGET_DIR")
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
        let page = "x\n```c\nother\n```\n```c a.c\nint a;\n```\n```sh build\ncc a.c\n```\nor\n```sh build\ntcc a.c\n```\n";
        assert_eq!(find(page, "a.c", 0).unwrap(), ("int a;\n", Some("cc a.c\n")));
        assert_eq!(find(page, "a.c", 1).unwrap().1, Some("tcc a.c\n"));
        assert_eq!(find(page, "a.c", 2).unwrap().1, None);
        find(page, "b.c", 0).unwrap_err();
    }

    #[test]
    fn the_pages_show_every_example() {
        for example in Example::ALL {
            let (page, name) = example.source();
            let text = page_text(page).unwrap();
            assert!(find(&text, name, example.way()).unwrap().1.is_some(), "{name} in docs/{page}");
        }
    }
}
