//! Finds a container's module: a file of its root file system, or the Wasm layer of its image. Runs in the shim
//! daemon.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use oci_spec::runtime::Spec;

use super::bundle::{args, is_pause_container, named_by, names_nothing};
use super::error::PlanError;
use super::images::{ImageModule, ImageStore};
use super::module::{MAGIC, MODULE_MAX, ModuleError};

/// A module before its check.
pub(super) struct LocatedModule {
    pub(super) bytes: Vec<u8>,
    pub(super) origin: String,
    pub(super) command: String,
    pub(super) export: Option<String>,
    /// Where precompiled code of it may be.
    pub(super) place: ModulePlace,
}

/// Where a container's module was found.
pub(super) enum ModulePlace {
    /// It came after the start.
    Delivered,
    /// The path in the root file system.
    File(PathBuf),
    /// The layer of its image.
    Layer,
}

/// Finds the container's module; `None` for a native container.
pub(super) async fn find_module(
    images: &impl ImageStore,
    spec: &Spec,
    rootfs: &Path,
    container: &str,
) -> Result<Option<LocatedModule>, PlanError> {
    if is_pause_container(spec) {
        return Ok(None);
    }
    let command = args(spec).first().cloned().ok_or(PlanError::NoCommand)?;
    let (path, export) = match command.split_once('#') {
        Some((path, export)) => (path.to_owned(), Some(export.to_owned())),
        None => (command.clone(), None),
    };
    let looks_wasm = path.ends_with(".wasm");
    let inside = working_dir(spec).join(&path);
    if let Some(bytes) = read_module(rootfs, &inside, looks_wasm)? {
        let origin = format!("{path} in the root file system");
        let place = ModulePlace::File(inside);
        return Ok(Some(LocatedModule { bytes, origin, command: path, export, place }));
    }
    let names_nothing = names_nothing(&path);
    if !looks_wasm && !names_nothing && !is_empty_dir(rootfs) {
        return Ok(None);
    }
    match images.wasm_layer(container).await {
        Ok(Some(ImageModule { image, bytes })) => {
            let origin = format!("the Wasm layer of image {image}");
            let command = named_by(&path, &image).to_owned();
            let place = ModulePlace::Layer;
            Ok(Some(LocatedModule { bytes, origin, command, export, place }))
        }
        Ok(None) if names_nothing => Err(PlanError::NoModule {
            path,
            image: "its image has no layer of a WebAssembly media type: write the path of the module, or of the program, as \
                    the command"
                .to_owned(),
        }),
        Ok(None) if looks_wasm => Err(PlanError::NoModule {
            path,
            image: "its image has no layer of a WebAssembly media type".to_owned(),
        }),
        Err(message) if looks_wasm => Err(PlanError::NoModule { path, image: message }),
        Ok(None) | Err(_) => Ok(None),
    }
}

fn working_dir(spec: &Spec) -> &Path {
    spec.process().as_ref().map_or(Path::new("/"), |process| process.cwd().as_path())
}

/// Opens the file `inside` a root file system, without waiting; `None` if there is none.
///
/// # Errors
/// When it cannot be opened.
pub(super) fn open_inside(rootfs: &Path, inside: &Path) -> Result<Option<File>, PlanError> {
    let root =
        File::open(rootfs).map_err(|source| PlanError::File { path: rootfs.to_owned(), source })?;
    // Symbolic links of the image must not lead outside its root.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let fail = |source: io::Error| PlanError::File { path: inside.to_owned(), source };
    let file = match openat2(root.as_fd(), inside, how) {
        Ok(fd) => File::from(fd),
        Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => return Ok(None),
        Err(errno) => return Err(fail(errno.into())),
    };
    let is_file = file.metadata().map_err(fail)?.is_file();
    Ok(is_file.then_some(file))
}

/// Reads the file `inside` a root file system. `None` if there is no such file, or if it is neither a module nor named
/// like one.
fn read_module(
    rootfs: &Path,
    inside: &Path,
    looks_wasm: bool,
) -> Result<Option<Vec<u8>>, PlanError> {
    let fail = |source: io::Error| PlanError::File { path: inside.to_owned(), source };
    let Some(mut file) = open_inside(rootfs, inside)? else { return Ok(None) };
    let length = file.metadata().map_err(fail)?.len();
    if length > MODULE_MAX && looks_wasm {
        let origin = inside.display().to_string();
        return Err(ModuleError::TooLarge { origin, length }.into());
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(fail)?;
    if bytes != MAGIC && !looks_wasm {
        return Ok(None);
    }
    file.take(MODULE_MAX).read_to_end(&mut bytes).map_err(fail)?;
    Ok(Some(bytes))
}

fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}
