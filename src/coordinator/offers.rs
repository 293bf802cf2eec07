//! Where precompiled code of a module may be: in the archive that it came in, beside its file, or at its image. Runs in
//! the shim daemon.
//!
//! Invariant: of what came, only signatures are read before one of them was verified, each with a bound.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::delivered;
use super::error::PlanError;
use super::images::{ImageOf, ImageStore};
use super::locate::open_inside;
use super::precompiled::{Offer, SIGNATURE_EXTENSION, SIGNATURE_MAX};
use super::processor;
use cwasi_config::Engine;

/// Where precompiled code of one module may be.
pub(super) enum CodeSource<'a> {
    /// A zip archive; `None` for a module without one.
    Archive(Option<&'a [u8]>),
    /// Beside a file of a container's root file system, or else at the container's image.
    Container { rootfs: &'a Path, module: Option<&'a Path>, id: &'a str },
    /// At an image.
    Image(ImageOf<'a>),
}

impl CodeSource<'_> {
    /// All signatures that came.
    ///
    /// # Errors
    /// The failed look-up, for the user.
    pub(super) async fn offers(
        &self,
        images: &impl ImageStore,
        engine: Engine,
    ) -> Result<Vec<Offer>, String> {
        let extension = engine.native_extension();
        match *self {
            Self::Archive(archive) => {
                Ok(archive.map_or_else(Vec::new, |it| delivered::offers(it, extension)))
            }
            Self::Container { rootfs, module, id } => {
                let beside = module.map(|module| beside(rootfs, module, extension));
                match beside.transpose().map_err(|error| error.to_string())? {
                    Some(found) if !found.is_empty() => Ok(found),
                    _ => images.offers(ImageOf::Container(id), extension).await,
                }
            }
            Self::Image(image) => images.offers(image, extension).await,
        }
    }

    /// The code of an offer, of which more than `length` bytes are of no use.
    ///
    /// # Errors
    /// When it cannot be read, for the user.
    pub(super) async fn code(
        &self,
        images: &impl ImageStore,
        offer: &Offer,
        length: u64,
    ) -> Result<Vec<u8>, String> {
        match *self {
            Self::Archive(archive) => {
                delivered::offered_code(archive.unwrap_or_default(), &offer.place, length)
            }
            // A digest has a colon in place of the root's slash.
            Self::Container { rootfs, .. } if offer.place.starts_with('/') => {
                let read = read(rootfs, Path::new(&offer.place), length);
                let code = read.map_err(|error| error.to_string())?;
                code.ok_or_else(|| "it is gone".to_owned())
            }
            Self::Container { id, .. } => {
                images.offered_code(ImageOf::Container(id), offer, length).await
            }
            Self::Image(image) => images.offered_code(image, offer, length).await,
        }
    }
}

/// Signatures beside a module's file: of `NAME.EXTENSION` and of `NAME.PROCESSOR.EXTENSION`.
fn beside(rootfs: &Path, module: &Path, extension: &str) -> Result<Vec<Offer>, PlanError> {
    let mut found = Vec::new();
    for code in code_files(module, extension) {
        let signature = format!("{}.{SIGNATURE_EXTENSION}", code.display());
        if let Some(signature) = read(rootfs, Path::new(&signature), SIGNATURE_MAX)? {
            let place = Path::new("/").join(&code).display().to_string();
            found.push(Offer { name: code.display().to_string(), signature, place });
        }
    }
    Ok(found)
}

/// Paths at which code of a module is looked for.
fn code_files(module: &Path, extension: &str) -> Vec<PathBuf> {
    let named =
        processor::levels().map(|level| module.with_extension(format!("{level}.{extension}")));
    std::iter::once(module.with_extension(extension)).chain(named).collect()
}

/// At most one byte more than `length` of a file inside a root file system; `None` if there is none.
fn read(rootfs: &Path, inside: &Path, length: u64) -> Result<Option<Vec<u8>>, PlanError> {
    let Some(file) = open_inside(rootfs, inside)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let failed = |source: io::Error| PlanError::File { path: inside.to_owned(), source };
    file.take(length.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}
