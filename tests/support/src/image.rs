//! Writes OCI image archives for `ctr images import`.
//!
//! There are two kinds: a root file system (one gzip layer, Linux) with modules or programs in it, and a module as
//! the layer (`wasip1/wasm`). Deterministic: the same input gives the same bytes.

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use oci_spec::image::{
    Arch, Config, ConfigBuilder, Descriptor, DescriptorBuilder, ImageConfigurationBuilder,
    ImageIndexBuilder, ImageManifestBuilder, MediaType, Os, PlatformBuilder, RootFsBuilder,
    Sha256Digest,
};
use sha2::{Digest as _, Sha256};

/// `PATH` inside an image.
const IMAGE_PATH: &str = "PATH=/bin:/usr/bin:/sbin";
/// Annotation by which `ctr images import` names an image.
const NAME_ANNOTATION: &str = "io.containerd.image.name";
/// Layer media types that say: this layer is a WebAssembly module.
pub const MODULE_MEDIA_TYPES: [&str; 2] =
    ["application/wasm", "application/vnd.wasm.content.layer.v1+wasm"];

/// The last two of a component's first eight bytes; a core module has zeros there.
const COMPONENT_LAYER: [u8; 2] = [1, 0];

/// Command of an image.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// Environment as `KEY=value`.
    pub env: Vec<String>,
}

/// A root file system in the making.
pub struct Rootfs {
    tar: tar::Builder<Vec<u8>>,
    directories: Vec<String>,
}

impl Default for Rootfs {
    fn default() -> Self {
        Self { tar: tar::Builder::new(Vec::new()), directories: Vec::new() }
    }
}

impl Rootfs {
    /// Adds an executable file.
    ///
    /// # Errors
    /// When `host` cannot be read.
    pub fn file(&mut self, host: &Path, inside: &str) -> Result<()> {
        let bytes = fs::read(host).with_context(|| format!("read {}", host.display()))?;
        self.bytes(&bytes, inside)
    }

    /// Adds an executable file from memory.
    ///
    /// # Errors
    /// When the path does not fit a tar header.
    pub fn bytes(&mut self, bytes: &[u8], inside: &str) -> Result<()> {
        let inside = inside.trim_start_matches('/');
        self.parents(inside)?;
        let mut header = header(tar::EntryType::Regular, 0o755);
        header.set_size(bytes.len() as u64);
        self.tar.append_data(&mut header, inside, bytes).with_context(|| format!("add {inside}"))
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// When a path does not fit a tar header.
    pub fn link(&mut self, target: &str, inside: &str) -> Result<()> {
        let inside = inside.trim_start_matches('/');
        self.parents(inside)?;
        let mut header = header(tar::EntryType::Symlink, 0o777);
        self.tar.append_link(&mut header, inside, target).with_context(|| format!("add {inside}"))
    }

    fn parents(&mut self, inside: &str) -> Result<()> {
        let parents: Vec<&Path> =
            Path::new(inside).ancestors().skip(1).filter(|path| path.parent().is_some()).collect();
        for parent in parents.into_iter().rev() {
            let name = format!("{}/", parent.display());
            if !self.directories.contains(&name) {
                let mut header = header(tar::EntryType::Directory, 0o755);
                self.tar.append_data(&mut header, &name, std::io::empty())?;
                self.directories.push(name);
            }
        }
        Ok(())
    }

    /// Writes the image archive `out` under the name `reference`.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn write(self, reference: &str, start: &Start, out: &Path) -> Result<()> {
        self.write_for(Arch::default(), reference, start, out)
    }

    /// The same, of programs for this architecture.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_for(
        self,
        architecture: Arch,
        reference: &str,
        start: &Start,
        out: &Path,
    ) -> Result<()> {
        let layers = vec![Layer::gzip(&self.tar.into_inner()?)?];
        Image { os: Os::Linux, architecture, layers }.write(reference, start, out)
    }

    /// Writes an image with this root file system and with `module` as one more layer, for runtimes that read modules
    /// out of containerd's content. containerd 1.6 does not unpack it: import it without, after an image of the same
    /// root file system alone.
    ///
    /// # Errors
    /// When `module` cannot be read or `out` cannot be written.
    pub fn write_beside_module(
        self,
        module: &Path,
        reference: &str,
        start: &Start,
        out: &Path,
    ) -> Result<()> {
        let mut image = module_image(module, MODULE_MEDIA_TYPES[0])?;
        image.layers.insert(0, Layer::gzip(&self.tar.into_inner()?)?);
        image.write(reference, start, out)
    }
}

/// A layer of an image.
pub struct Layer {
    pub media_type: MediaType,
    /// Its bytes, as they are stored.
    pub bytes: Vec<u8>,
    /// `sha256:…` before compression. A module layer has none, because it is not unpacked: containerd compares the list
    /// of these digests with the layers that have a layer's media type.
    pub diff_id: Option<String>,
}

impl Layer {
    /// An archive, compressed with gzip.
    ///
    /// # Errors
    /// None in memory.
    pub fn gzip(tar: &[u8]) -> Result<Self> {
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::fast());
        gzip.write_all(tar)?;
        Ok(Self::packed(MediaType::ImageLayerGzip, gzip.finish()?, tar))
    }

    /// The archive `tar`, compressed to `bytes`.
    #[must_use]
    pub fn packed(media_type: MediaType, bytes: Vec<u8>, tar: &[u8]) -> Self {
        Self { media_type, bytes, diff_id: Some(format!("sha256:{}", sha256(tar))) }
    }
}

/// Writes a Linux image of these layers, the lowest first.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_layers(layers: Vec<Layer>, reference: &str, start: &Start, out: &Path) -> Result<()> {
    Image { os: Os::Linux, architecture: Arch::default(), layers }.write(reference, start, out)
}

/// Writes a module or component as the CNCF's Wasm artifact, which `wkg` and `wash` push: its configuration is none of
/// a container image.
///
/// # Errors
/// When `wasm` cannot be read or `out` cannot be written.
pub fn write_wasm_artifact(wasm: &Path, reference: &str, out: &Path) -> Result<()> {
    let image = module_image(wasm, MODULE_MEDIA_TYPES[0])?;
    let digest = format!("sha256:{}", sha256(&image.layers[0].bytes));
    let is_component = image.layers[0].bytes.get(6..8) == Some(&COMPONENT_LAYER);
    let os = if is_component { "wasip2" } else { "wasip1" };
    let config = format!(
        r#"{{"created":"2026-01-01T00:00:00Z","architecture":"wasm","os":"{os}","layerDigests":["{digest}"]}}"#
    );
    let media_type = MediaType::Other("application/vnd.wasm.config.v0+json".into());
    image.write_with(media_type, config.as_bytes(), reference, out)
}

/// Writes these components as one application, as `spin registry push` does: a layer for each, one for a file that
/// they read, and one for what the application's manifest says.
///
/// # Errors
/// When a component cannot be read or `out` cannot be written.
pub fn write_spin_application(components: &[&Path], reference: &str, out: &Path) -> Result<()> {
    let other = |media_type: &str, bytes: Vec<u8>| Layer {
        media_type: MediaType::Other(media_type.into()),
        bytes,
        diff_id: None,
    };
    let mut layers = Vec::new();
    let mut sources = Vec::new();
    for component in components {
        let bytes = fs::read(component).with_context(|| format!("read {}", component.display()))?;
        sources.push(format!(r#"{{"source":{{"digest":"sha256:{}"}}}}"#, sha256(&bytes)));
        layers.push(other(MODULE_MEDIA_TYPES[1], bytes));
    }
    layers.push(other("application/vnd.wasm.content.layer.v1+data", b"a file".to_vec()));
    let locked = format!(r#"{{"spin_lock_version":1,"components":[{}]}}"#, sources.join(","));
    let media_type = "application/vnd.fermyon.spin.application.v1+config";
    layers.push(other(media_type, locked.into_bytes()));
    let image = Image { os: Os::Other("wasip1".into()), architecture: Arch::Wasm, layers };
    image.write(reference, &Start::default(), out)
}

/// Writes an image whose only layer is the module `wasm` itself.
///
/// # Errors
/// When `wasm` cannot be read or `out` cannot be written.
pub fn write_module_image(
    wasm: &Path,
    media_type: &str,
    reference: &str,
    start: &Start,
    out: &Path,
) -> Result<()> {
    module_image(wasm, media_type)?.write(reference, start, out)
}

fn module_image(wasm: &Path, media_type: &str) -> Result<Image> {
    let bytes = fs::read(wasm).with_context(|| format!("read {}", wasm.display()))?;
    let media_type = MediaType::Other(media_type.into());
    Ok(Image {
        os: Os::Other("wasip1".into()),
        architecture: Arch::Wasm,
        layers: vec![Layer { media_type, bytes, diff_id: None }],
    })
}

struct Image {
    os: Os,
    architecture: Arch,
    layers: Vec<Layer>,
}

impl Image {
    fn write(self, reference: &str, start: &Start, out: &Path) -> Result<()> {
        let diff_ids: Vec<_> =
            self.layers.iter().filter_map(|layer| layer.diff_id.clone()).collect();
        let config = ImageConfigurationBuilder::default()
            .os(self.os.clone())
            .architecture(self.architecture.clone())
            .config(config(start)?)
            .rootfs(RootFsBuilder::default().typ("layers").diff_ids(diff_ids).build()?)
            .build()?
            .to_string()?
            .into_bytes();
        self.write_with(MediaType::ImageConfig, &config, reference, out)
    }

    fn write_with(
        self,
        config_type: MediaType,
        config: &[u8],
        reference: &str,
        out: &Path,
    ) -> Result<()> {
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|layer| descriptor(layer.media_type.clone(), &layer.bytes))
            .collect::<Result<_>>()?;
        let manifest = ImageManifestBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageManifest)
            .config(descriptor(config_type, config)?)
            .layers(layers)
            .build()?
            .to_string()?
            .into_bytes();
        let platform =
            PlatformBuilder::default().os(self.os).architecture(self.architecture).build()?;
        let mut entry = descriptor(MediaType::ImageManifest, &manifest)?;
        entry.set_platform(Some(platform));
        let entry = named(entry, reference);
        let index = ImageIndexBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageIndex)
            .manifests([entry])
            .build()?
            .to_string()?;
        let mut archive = tar::Builder::new(Vec::new());
        append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        append(&mut archive, "index.json", index.as_bytes())?;
        let blobs = self.layers.iter().map(|layer| layer.bytes.as_slice());
        for blob in blobs.chain([config, &manifest]) {
            append(&mut archive, &format!("blobs/sha256/{}", sha256(blob)), blob)?;
        }
        fs::write(out, archive.into_inner()?).with_context(|| format!("write {}", out.display()))
    }
}

/// An archive's entry that is an image of this name.
pub(crate) fn named(mut entry: Descriptor, reference: &str) -> Descriptor {
    entry.set_annotations(Some([(NAME_ANNOTATION.into(), reference.into())].into()));
    entry
}

fn config(start: &Start) -> Result<Config> {
    let env: Vec<String> =
        std::iter::once(IMAGE_PATH.to_owned()).chain(start.env.clone()).collect();
    Ok(ConfigBuilder::default()
        .env(env)
        .entrypoint(start.entrypoint.clone())
        .cmd(start.cmd.clone())
        .build()?)
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_size(0);
    header
}

pub(crate) fn append(archive: &mut tar::Builder<Vec<u8>>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = header(tar::EntryType::Regular, 0o644);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes).with_context(|| format!("add {name}"))
}

pub(crate) fn descriptor(media_type: MediaType, blob: &[u8]) -> Result<Descriptor> {
    let digest: Sha256Digest = sha256(blob).parse().context("a digest of our own")?;
    Ok(DescriptorBuilder::default()
        .media_type(media_type)
        .digest(digest)
        .size(blob.len() as u64)
        .build()?)
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The bytes of an archive's file, for tests.
#[must_use]
pub fn entry(archive: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut archive = tar::Archive::new(Cursor::new(archive));
    archive.entries().ok()?.filter_map(Result::ok).find_map(|mut entry| {
        let matches = entry.path().ok()?.to_str() == Some(name);
        matches.then(|| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).ok().map(|_| bytes)
        })?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_image_names_its_platform_and_layer_type() {
        let dir = tempfile::tempdir().unwrap();
        let wasm = dir.path().join("m.wasm");
        fs::write(&wasm, b"\0asm\x01\0\0\0").unwrap();
        let out = dir.path().join("i.tar");
        write_module_image(&wasm, MODULE_MEDIA_TYPES[0], "localhost/m:1", &Start::default(), &out)
            .unwrap();
        let archive = fs::read(&out).unwrap();
        let index = String::from_utf8(entry(&archive, "index.json").unwrap()).unwrap();
        assert!(index.contains(r#""architecture":"wasm""#), "{index}");
        assert!(index.contains("localhost/m:1"), "{index}");
    }

    /// containerd finds the unpacked file system by the digests in the configuration.
    #[test]
    fn a_module_beside_a_root_file_system_is_not_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let (wasm, out) = (dir.path().join("m.wasm"), dir.path().join("i.tar"));
        fs::write(&wasm, b"\0asm\x01\0\0\0").unwrap();
        let mut rootfs = Rootfs::default();
        rootfs.file(&wasm, "/m.wasm").unwrap();
        rootfs.write_beside_module(&wasm, "localhost/m:1", &Start::default(), &out).unwrap();
        let archive = fs::read(&out).unwrap();
        let read = |name: &str| -> serde_json::Value {
            serde_json::from_slice(&entry(&archive, name).unwrap()).unwrap()
        };
        let blob = |digest: &serde_json::Value| {
            read(&format!("blobs/{}", digest.as_str().unwrap().replace(':', "/")))
        };
        let manifest = blob(&read("index.json")["manifests"][0]["digest"]);
        let layers = manifest["layers"].as_array().unwrap();
        let types: Vec<_> =
            layers.iter().map(|layer| layer["mediaType"].as_str().unwrap()).collect();
        assert_eq!(types, ["application/vnd.oci.image.layer.v1.tar+gzip", MODULE_MEDIA_TYPES[0]]);
        let config = blob(&manifest["config"]["digest"]);
        assert_eq!(config["architecture"], "wasm");
        assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let mut rootfs = Rootfs::default();
            rootfs.bytes(b"x", "/a/b/c").unwrap();
            rootfs.link("/a/b/c", "/bin/c").unwrap();
            let out = dir.path().join(name);
            rootfs.write("localhost/x:1", &Start::default(), &out).unwrap();
            fs::read(out).unwrap()
        };
        assert_eq!(write("1"), write("2"));
    }
}
