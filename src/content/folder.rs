//! Modules and deployed functions in folders, for a daemon without containerd. Runs in that daemon; the command that
//! starts it writes them.
//!
//! - `<state>/images/<name>` is a module; the name may have slashes.
//! - `<state>/bundles/<container>/config.json` is a deployed function, and `image` beside it the name of its image;
//!   `code.zip` is the archive that its module came in, if it may have precompiled code.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::deployments::deployment;
use super::digest;
use cwasi_coordinator::delivered;
use cwasi_coordinator::precompiled::Offer;
use cwasi_coordinator::trust::{Deployment, Image};
use cwasi_coordinator::{ImageModule, ImageOf, ImageStore};

/// Deepest nesting of folders in an image's name.
const DEPTH_MAX: u32 = 8;
/// File of a bundle with the name of its image.
pub const IMAGE_FILE: &str = "image";
/// File of a bundle with the archive that its module came in.
pub const ARCHIVE_FILE: &str = "code.zip";

#[derive(Clone, Debug)]
pub struct FolderStore {
    images: PathBuf,
    bundles: PathBuf,
}

impl FolderStore {
    /// The folders of a state directory.
    #[must_use]
    pub fn below(state_dir: &Path) -> Self {
        Self { images: state_dir.join("images"), bundles: state_dir.join("bundles") }
    }

    /// File of an image's module.
    #[must_use]
    pub fn image(&self, name: &str) -> PathBuf {
        self.images.join(name)
    }

    #[must_use]
    pub fn bundle(&self, container: &str) -> PathBuf {
        self.bundles.join(container)
    }

    /// The archive of a container's module, if there is one.
    fn archive(&self, image: ImageOf<'_>) -> Result<Option<Vec<u8>>, String> {
        let ImageOf::Container(container) = image else { return Ok(None) };
        let path = self.bundle(container).join(ARCHIVE_FILE);
        match fs::read(&path) {
            Ok(archive) => Ok(Some(archive)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
        }
    }

    fn collect(&self, folder: &Path, depth: u32, found: &mut Vec<Image>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                if depth < DEPTH_MAX {
                    self.collect(&path, depth + 1, found)?;
                }
            } else if let Some(name) = path.strip_prefix(&self.images).ok().and_then(Path::to_str) {
                let digest = digest::of(&fs::read(&path)?);
                found.push(Image { name: name.to_owned(), digest });
            }
        }
        Ok(())
    }
}

impl ImageStore for FolderStore {
    /// None: a function's module is in its root file system.
    async fn wasm_layer(&self, _container: &str) -> Result<Option<ImageModule>, String> {
        Ok(None)
    }

    async fn images(&self) -> Result<Vec<Image>, String> {
        let mut found = Vec::new();
        self.collect(&self.images, 0, &mut found)
            .map_err(|error| format!("{} cannot be read: {error}", self.images.display()))?;
        Ok(found)
    }

    async fn deployments(&self) -> Result<Vec<Deployment>, String> {
        let bundles = fs::read_dir(&self.bundles)
            .map_err(|error| format!("{} cannot be read: {error}", self.bundles.display()))?;
        let of = |bundle: PathBuf| {
            let spec = fs::read(bundle.join("config.json")).ok()?;
            let image = fs::read_to_string(bundle.join(IMAGE_FILE)).ok()?;
            deployment(bundle.file_name()?.to_str()?, &image, &spec)
        };
        Ok(bundles.flatten().filter_map(|entry| of(entry.path())).collect())
    }

    async fn module(&self, image: &Image, _path: Option<&str>) -> Result<Vec<u8>, String> {
        let path = self.image(&image.name);
        let bytes = fs::read(&path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        digest::check(&image.digest, &bytes)?;
        Ok(bytes)
    }

    async fn offers(&self, image: ImageOf<'_>, extension: &str) -> Result<Vec<Offer>, String> {
        let archive = self.archive(image)?;
        Ok(archive.map_or_else(Vec::new, |archive| delivered::offers(&archive, extension)))
    }

    async fn offered_code(
        &self,
        image: ImageOf<'_>,
        offer: &Offer,
        length: u64,
    ) -> Result<Vec<u8>, String> {
        let archive = self.archive(image)?.unwrap_or_default();
        delivered::offered_code(&archive, &offer.place, length)
    }
}
