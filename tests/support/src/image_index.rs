//! Joins image archives, one for each architecture, into one archive with an index of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use oci_spec::image::{Descriptor, ImageIndex, ImageIndexBuilder, MediaType};

use crate::image::{append, descriptor, entry, named, sha256};

/// Folder of an archive's contents.
const BLOBS: &str = "blobs/sha256/";

/// Writes `out`: the images of `archives` under the name `reference`, of which a node pulls the one of its architecture.
///
/// # Errors
/// When an archive cannot be read, is no image archive, or `out` cannot be written.
pub fn join(archives: &[PathBuf], reference: &str, out: &Path) -> Result<()> {
    let mut images = Vec::new();
    let mut blobs = BTreeMap::new();
    for archive in archives {
        let read = || format!("read {}", archive.display());
        let bytes = fs::read(archive).with_context(read)?;
        images.extend(manifests(&bytes).with_context(read)?);
        blobs.extend(contents(&bytes).with_context(read)?);
    }
    let index = index(images)?;
    let entry = descriptor(MediaType::ImageIndex, index.as_bytes())?;
    blobs.insert(format!("{BLOBS}{}", sha256(index.as_bytes())), index.into_bytes());
    let top = self::index(vec![named(entry, reference)])?;
    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut archive, "index.json", top.as_bytes())?;
    for (name, blob) in &blobs {
        append(&mut archive, name, blob)?;
    }
    fs::write(out, archive.into_inner()?).with_context(|| format!("write {}", out.display()))
}

fn index(manifests: Vec<Descriptor>) -> Result<String> {
    Ok(ImageIndexBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests)
        .build()?
        .to_string()?)
}

/// The images of an archive, without the names that they have in it.
fn manifests(archive: &[u8]) -> Result<Vec<Descriptor>> {
    let index = entry(archive, "index.json").context("no index.json in it")?;
    let mut manifests = ImageIndex::from_reader(index.as_slice())?.manifests().clone();
    for manifest in &mut manifests {
        manifest.set_annotations(None);
    }
    Ok(manifests)
}

fn contents(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut contents = BTreeMap::new();
    for file in tar::Archive::new(archive).entries()? {
        let mut file = file?;
        let name = file.path()?.display().to_string();
        if name.starts_with(BLOBS) {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            contents.insert(name, bytes);
        }
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Rootfs, Start};
    use oci_spec::image::Arch;

    #[test]
    fn each_architecture_has_its_image() {
        let dir = tempfile::tempdir().unwrap();
        let single = |architecture: Arch| {
            let mut rootfs = Rootfs::default();
            rootfs.bytes(architecture.to_string().as_bytes(), "/program").unwrap();
            let out = dir.path().join(format!("{architecture}.tar"));
            rootfs.write_for(architecture, "localhost/x:1", &Start::default(), &out).unwrap();
            out
        };
        let archives = [single(Arch::Amd64), single(Arch::ARM64)];
        let out = dir.path().join("both.tar");
        join(&archives, "localhost/x:1", &out).unwrap();
        let archive = fs::read(out).unwrap();
        let [top] = manifests(&archive).unwrap().try_into().unwrap();
        assert_eq!(*top.media_type(), MediaType::ImageIndex);
        let blob = |it: &Descriptor| entry(&archive, &format!("{BLOBS}{}", it.digest().digest()));
        let index = ImageIndex::from_reader(blob(&top).unwrap().as_slice()).unwrap();
        let platforms: Vec<_> = index.manifests().iter().map(|it| it.platform().clone()).collect();
        let platforms: Vec<_> =
            platforms.into_iter().map(|it| it.unwrap().architecture().clone()).collect();
        assert_eq!(platforms, [Arch::Amd64, Arch::ARM64]);
        assert!(index.manifests().iter().all(|it| blob(it).is_some()));
    }
}
