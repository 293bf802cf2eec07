//! Paths: the checkout, the unpacked files of `scripts/setup.sh`, the built programs and guests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Folder of the checkout that holds everything that set-up and runs leave.
const STATE_FOLDER: &str = ".cwasi";
/// Longest directory of a fixture in bytes: all our Unix sockets below a scene's folder in it (`/s/999`) still fit
/// `sun_path` (108 bytes).
const SHORT_DIR_MAX: usize = 50;

/// A containerd that set-up unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerdVersion {
    /// Debian 12's 1.6.
    V1_6,
    /// Debian 13's 1.7.
    V1_7,
    /// Debian unstable's 2.x.
    V2,
}

impl ContainerdVersion {
    /// Every containerd that the runtime is tested with.
    pub const ALL: [Self; 3] = [Self::V1_6, Self::V1_7, Self::V2];

    /// Name of its folder below `.cwasi`, and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1_6 => "containerd-1.6",
            Self::V1_7 => "containerd-1.7",
            Self::V2 => "containerd-2",
        }
    }

    /// The folder with its `containerd` and `ctr`.
    ///
    /// # Errors
    /// When set-up has not unpacked it: a missing service fails a test, it never skips it.
    pub fn bin_dir(self) -> Result<PathBuf> {
        unpacked(self.name(), "usr/bin")
    }
}

impl std::str::FromStr for ContainerdVersion {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.name() == name)
            .with_context(|| format!("no containerd {name}: use {:?}", Self::ALL.map(Self::name)))
    }
}

/// Root of the checkout.
#[must_use]
pub fn checkout() -> PathBuf {
    // This crate lives in tests/support.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/support is two folders below the checkout")
        .to_owned()
}

/// `.cwasi` of the checkout.
#[must_use]
pub fn state_dir() -> PathBuf {
    checkout().join(STATE_FOLDER)
}

/// AOT cache shared by all test beds and demos of this checkout, so that a module is compiled once.
#[must_use]
pub fn aot_cache() -> PathBuf {
    state_dir().join("aot")
}

/// A component of `tests/guests/components`, which `scripts/guests.sh` builds.
#[must_use]
pub fn component_guest(name: &str) -> PathBuf {
    let built = checkout().join("target/guests/wasm32-wasip2/release");
    let library = built.join(format!("component_{name}.wasm"));
    if library.exists() { library } else { built.join(format!("component-{name}.wasm")) }
}

pub(crate) fn unpacked(name: &str, below: &str) -> Result<PathBuf> {
    let folder = state_dir().join(name).join(below);
    if !folder.is_dir() {
        bail!("{} is missing: run scripts/setup.sh --tests (make test does)", folder.display());
    }
    Ok(folder)
}

/// The folder with `runc`.
///
/// # Errors
/// When set-up has not unpacked it.
pub fn runc_dir() -> Result<PathBuf> {
    unpacked("runc", "usr/sbin")
}

/// A statically linked busybox.
///
/// # Errors
/// When set-up has not unpacked it.
pub fn busybox() -> Result<PathBuf> {
    Ok(unpacked("busybox", "bin")?.join("busybox"))
}

/// WasmEdge's own command, which the benches use beside the product.
///
/// # Errors
/// When set-up has not unpacked it.
pub fn wasmedge() -> Result<PathBuf> {
    Ok(unpacked("wasmedge", "usr/bin")?.join("wasmedge"))
}

/// The folder with the compilers of the languages that `docs/languages.md` shows.
///
/// # Errors
/// When set-up has not unpacked them.
pub fn compilers() -> Result<PathBuf> {
    let folder = state_dir().join("languages/bin");
    if !folder.is_dir() {
        bail!("{} is missing: run scripts/setup.sh --languages (make test does)", folder.display());
    }
    Ok(folder)
}

/// A fresh directory for one test bed, short enough for Unix sockets: below `.cwasi` unless the checkout
/// lies too deep, then below `/run`.
///
/// # Errors
/// When no directory can be made.
pub fn short_dir() -> Result<PathBuf> {
    let parent = state_dir().join("run");
    let fits = parent.as_os_str().len() + "/fixture-XXXXXX".len() <= SHORT_DIR_MAX;
    let (parent, prefix) =
        if fits { (parent, "fixture-") } else { ("/run".into(), "cwasi-fixture-") };
    std::fs::create_dir_all(&parent).with_context(|| format!("create {}", parent.display()))?;
    let dir = tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in(&parent)
        .with_context(|| format!("create a directory in {}", parent.display()))?;
    Ok(dir.keep())
}
