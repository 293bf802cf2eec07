//! Builds images of a module, byte for byte the same from the same module: no times, no owners, a fixed order.
//!
//! Two kinds (`docs/cli.md`): *plain*, a root file system with the module as a file, which every containerd can run;
//! and *layer*, the module itself as the layer (`application/wasm`), for containerd 1.7.7 or newer. And artifacts with
//! precompiled code, which refer to an image.

use std::io;

use cwasi_content::referrers::{ARTIFACT_TYPE, CODE_TYPE, SIGNATURE_TYPE, TITLE};
use cwasi_coordinator::precompiled::SIGNATURE_EXTENSION;
use oci_spec::OciSpecError;
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, DescriptorBuilder, ImageConfigurationBuilder,
    ImageIndexBuilder, ImageManifestBuilder, MediaType, Os, PlatformBuilder, RootFsBuilder,
    Sha256Digest,
};
use sha2::{Digest as _, Sha256};

/// Annotation by which an archive's reader names the image.
const NAME_ANNOTATION: &str = "io.containerd.image.name";
/// Layer media type of a module.
const MODULE_MEDIA_TYPE: &str = "application/wasm";
/// Digits of a digest in an image's tag.
const TAG_DIGITS: usize = 16;

/// A document or layer.
#[derive(Clone, Debug)]
pub struct Blob {
    pub media_type: String,
    pub bytes: Vec<u8>,
    /// File name, for clients that write a layer into a folder.
    pub title: Option<String>,
}

/// An image or artifact.
#[derive(Clone, Debug)]
pub struct Image {
    pub name: String,
    pub layers: Vec<Blob>,
    /// Its configuration.
    pub config: Blob,
    pub manifest: Blob,
    /// For the index of an archive.
    platform: (Os, Arch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ImageKind {
    /// A root file system with the module as a file
    Plain,
    /// The module itself as a layer of the type application/wasm
    Layer,
}

/// Native code of a module, and its signature.
#[derive(Clone, Debug)]
pub struct SignedCode {
    /// File name of the code.
    pub name: String,
    pub code: Vec<u8>,
    pub signature: Vec<u8>,
}

/// An image cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The archive of files.
    #[error("the module cannot be packed: {0}")]
    Pack(#[from] io::Error),
    #[error("the image's documents cannot be written: {0}")]
    Document(#[from] OciSpecError),
    /// A digest of our own.
    #[error("a digest is not one: {0}")]
    Digest(String),
}

impl Blob {
    fn new(media_type: impl ToString, bytes: Vec<u8>) -> Self {
        Self { media_type: media_type.to_string(), bytes, title: None }
    }

    /// `sha256:…` of its bytes.
    #[must_use]
    pub fn digest(&self) -> String {
        format!("sha256:{}", sha256(&self.bytes))
    }

    fn descriptor(&self) -> Result<Descriptor, ImageError> {
        let digest: Sha256Digest = sha256(&self.bytes)
            .parse()
            .map_err(|error| ImageError::Digest(format!("{error:?}")))?;
        let mut descriptor = DescriptorBuilder::default()
            .media_type(MediaType::from(self.media_type.as_str()))
            .digest(digest)
            .size(self.bytes.len() as u64)
            .build()?;
        let title = self.title.iter().map(|title| (TITLE.to_owned(), title.clone()));
        descriptor.set_annotations(self.title.is_some().then(|| title.collect()));
        Ok(descriptor)
    }
}

impl Image {
    /// An image that starts `module` as the file `/FILE.wasm`.
    ///
    /// # Errors
    /// When `file` is no file name.
    pub fn build(
        name: &str,
        kind: ImageKind,
        file: &str,
        module: &[u8],
    ) -> Result<Self, ImageError> {
        Self::build_with(name, kind, (file, module), &[])
    }

    /// The same with files beside the module, which only a plain image has.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn build_with(
        name: &str,
        kind: ImageKind,
        (file, module): (&str, &[u8]),
        beside: &[(String, Vec<u8>)],
    ) -> Result<Self, ImageError> {
        let path = format!("{file}.wasm");
        let (layer, platform, diff_ids) = match kind {
            ImageKind::Plain => {
                let mut files = vec![(path.as_str(), module)];
                files.extend(beside.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
                let layer = Blob::new(MediaType::ImageLayer, archive(&files)?);
                let diff_ids = vec![layer.digest()];
                (layer, (Os::Linux, Arch::default()), diff_ids)
            }
            // Not among the diff ids, which are those of layers that are unpacked.
            ImageKind::Layer => {
                let layer = Blob::new(MODULE_MEDIA_TYPE, module.to_vec());
                (layer, (Os::Other("wasip1".into()), Arch::Wasm), Vec::new())
            }
        };
        let (os, architecture) = platform.clone();
        let config = ImageConfigurationBuilder::default()
            .os(os)
            .architecture(architecture)
            .config(ConfigBuilder::default().entrypoint(vec![format!("/{path}")]).build()?)
            .rootfs(RootFsBuilder::default().typ("layers").diff_ids(diff_ids).build()?)
            .build()?
            .to_string()?;
        let config = Blob::new(MediaType::ImageConfig, config.into_bytes());
        let manifest = ImageManifestBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageManifest)
            .config(config.descriptor()?)
            .layers([layer.descriptor()?])
            .build()?
            .to_string()?;
        let manifest = Blob::new(MediaType::ImageManifest, manifest.into_bytes());
        Ok(Self { name: name.to_owned(), layers: vec![layer], config, manifest, platform })
    }

    /// An artifact with precompiled code that refers to the image `subject`.
    ///
    /// # Errors
    /// None for a descriptor of an image.
    pub fn referrer(
        name: &str,
        subject: Descriptor,
        code: Vec<SignedCode>,
    ) -> Result<Self, ImageError> {
        let mut layers = Vec::new();
        for SignedCode { name, code, signature } in code {
            let title = Some(format!("{name}.{SIGNATURE_EXTENSION}"));
            layers.push(Blob { title: Some(name), ..Blob::new(CODE_TYPE, code) });
            layers.push(Blob { title, ..Blob::new(SIGNATURE_TYPE, signature) });
        }
        let config = Blob::new(MediaType::EmptyJSON, b"{}".to_vec());
        let described = layers.iter().map(Blob::descriptor).collect::<Result<Vec<_>, _>>()?;
        let manifest = ImageManifestBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageManifest)
            .artifact_type(MediaType::from(ARTIFACT_TYPE))
            .config(config.descriptor()?)
            .layers(described)
            .subject(subject)
            .build()?
            .to_string()?;
        let manifest = Blob::new(MediaType::ImageManifest, manifest.into_bytes());
        let platform = (Os::Linux, Arch::default());
        Ok(Self { name: name.to_owned(), layers, config, manifest, platform })
    }

    /// The image as an archive for `ctr images import`.
    ///
    /// # Errors
    /// None for an image that was built.
    pub fn to_archive(&self) -> Result<Vec<u8>, ImageError> {
        let (os, architecture) = self.platform.clone();
        let mut entry = self.manifest.descriptor()?;
        entry.set_platform(Some(
            PlatformBuilder::default().os(os).architecture(architecture).build()?,
        ));
        entry.set_annotations(Some([(NAME_ANNOTATION.into(), self.name.clone())].into()));
        let index = ImageIndexBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageIndex)
            .manifests([entry])
            .build()?
            .to_string()?;
        let blobs: Vec<_> = std::iter::once(&self.config)
            .chain(&self.layers)
            .chain([&self.manifest])
            .map(|blob| (format!("blobs/sha256/{}", sha256(&blob.bytes)), blob.bytes.as_slice()))
            .collect();
        let mut files = vec![
            ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.as_slice()),
            ("index.json", index.as_bytes()),
        ];
        files.extend(blobs.iter().map(|(name, bytes)| (name.as_str(), *bytes)));
        Ok(archive(&files)?)
    }
}

/// How the names of modules' images begin.
pub const LOCAL: &str = "cwasi.local/";

/// The name of a module's image in a workflow: another module has another name.
#[must_use]
pub fn name_of(workflow: &str, function: &str, module: &[u8]) -> String {
    let tag = &sha256(module)[..TAG_DIGITS];
    format!("{LOCAL}{}/{}:{tag}", workflow.to_lowercase(), function.to_lowercase())
}

fn archive(files: &[(&str, &[u8])]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o755);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, *bytes)?;
    }
    tar.into_inner()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_module_gives_the_same_image() {
        for kind in [ImageKind::Plain, ImageKind::Layer] {
            let build = |module: &[u8]| Image::build("localhost/m:1", kind, "m", module).unwrap();
            let (one, two, other) = (build(b"\0asm1"), build(b"\0asm1"), build(b"\0asm2"));
            assert_eq!(one.to_archive().unwrap(), two.to_archive().unwrap());
            assert_ne!(one.manifest.digest(), other.manifest.digest());
        }
        assert_ne!(name_of("w", "f", b"1"), name_of("w", "f", b"2"));
    }
}
