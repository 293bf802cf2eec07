//! What an image's documents say: its manifest or index, and its configuration. Runs in the shim daemon. Pure: bytes
//! in, facts out; the bytes are anybody's.

use std::path::Path;

use oci_spec::OciSpecError;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};

/// Media types of layers that are modules or components.
pub const WASM_MEDIA_TYPES: [&str; 3] = [
    "application/wasm",
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.bytecodealliance.wasm.component.layer.v0+wasm",
];

/// This machine's architecture, in OCI's words.
const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };

/// What an image's name points to.
#[derive(Debug)]
pub enum Target {
    Manifest(Box<ImageManifest>),
    /// Manifests for several platforms.
    Index(Box<ImageIndex>),
}

/// A document that is neither.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// JSON of another shape.
    #[error(transparent)]
    Shape(#[from] OciSpecError),
}

/// An image of several modules.
#[derive(Debug, thiserror::Error)]
#[error(
    "has {count} Wasm layers, and a function is one of them: make an image of each module (cwasi image build)"
)]
pub struct SeveralModules {
    count: usize,
}

impl Target {
    /// Reads a manifest or an index.
    ///
    /// # Errors
    /// For anything else.
    pub fn read(bytes: &[u8]) -> Result<Self, TargetError> {
        let value: serde_json::Value = serde_json::from_slice(bytes)?;
        Ok(match value.get("manifests") {
            Some(_) => Self::Index(Box::new(ImageIndex::from_reader(bytes)?)),
            None => Self::Manifest(Box::new(ImageManifest::from_reader(bytes)?)),
        })
    }
}

/// The manifests of an index in the order in which containerd would start one: that for this machine, those that name no
/// platform, WebAssembly's, and then those for other machines. Attestations are none.
#[must_use]
pub fn by_preference(index: &ImageIndex) -> Vec<&Descriptor> {
    let mut manifests: Vec<_> = index
        .manifests()
        .iter()
        .filter_map(|manifest| Some((preference(manifest)?, manifest)))
        .collect();
    manifests.sort_by_key(|(preference, _)| *preference);
    manifests.into_iter().map(|(_, manifest)| manifest).collect()
}

/// A number that is lower for what comes first; `None` for what cannot be started.
fn preference(manifest: &Descriptor) -> Option<u8> {
    let Some(platform) = manifest.platform() else { return Some(1) };
    match (platform.os().to_string().as_str(), platform.architecture().to_string().as_str()) {
        ("unknown", _) | (_, "unknown") => None,
        ("linux", architecture) if architecture == ARCHITECTURE => Some(0),
        (_, "wasm" | "wasm32") => Some(2),
        _ => Some(3),
    }
}

/// The module of an image's entrypoint, from its configuration.
#[must_use]
pub fn started_module(config: &[u8]) -> Option<String> {
    let image = ImageConfiguration::from_reader(config).ok()?;
    let config = image.config().as_ref()?;
    let command =
        config.entrypoint().iter().flatten().chain(config.cmd().iter().flatten()).next()?;
    let path = command.split_once('#').map_or(command.as_str(), |(path, _)| path);
    if !path.ends_with(".wasm") {
        return None;
    }
    let folder = config.working_dir().as_deref().unwrap_or("/");
    Some(Path::new(folder).join(path).to_string_lossy().into_owned())
}

/// The layer that is a module, of an image that consists of it.
///
/// # Errors
/// When several layers are modules, as in an application of several components.
pub fn wasm_layer(manifest: &ImageManifest) -> Result<Option<Descriptor>, SeveralModules> {
    let mut layers = manifest.layers().iter().filter(|layer| is_wasm(layer.media_type()));
    match (layers.next(), layers.count()) {
        (layer, 0) => Ok(layer.cloned()),
        (_, more) => Err(SeveralModules { count: more + 1 }),
    }
}

fn is_wasm(media_type: &MediaType) -> bool {
    WASM_MEDIA_TYPES.contains(&media_type.to_string().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(layers: &[&str]) -> ImageManifest {
        let layers: Vec<_> = (layers.iter().enumerate())
            .map(|(size, kind)| serde_json::json!({"mediaType": kind, "digest": DIGEST, "size": size}))
            .collect();
        let config = serde_json::json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": DIGEST, "size": 2});
        let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers});
        match Target::read(manifest.to_string().as_bytes()).unwrap() {
            Target::Manifest(manifest) => *manifest,
            Target::Index(_) => panic!("an index"),
        }
    }

    const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn the_manifest_for_this_machine_comes_first() {
        let foreign = if ARCHITECTURE == "amd64" { "arm64" } else { "amd64" };
        let platforms = [
            Some(("linux", foreign)),
            Some(("unknown", "unknown")),
            Some(("wasi", "wasm")),
            None,
            Some(("windows", ARCHITECTURE)),
            Some(("linux", ARCHITECTURE)),
        ];
        let manifests: Vec<_> = (platforms.iter().enumerate())
            .map(|(size, platform)| {
                let mut manifest = serde_json::json!({
                    "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": DIGEST, "size": size
                });
                if let Some((os, architecture)) = platform {
                    manifest["platform"] =
                        serde_json::json!({ "os": os, "architecture": architecture });
                }
                manifest
            })
            .collect();
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": manifests });
        let Ok(Target::Index(index)) = Target::read(index.to_string().as_bytes()) else {
            panic!("no index");
        };
        let order: Vec<_> = by_preference(&index).iter().map(|it| it.size()).collect();
        assert_eq!(order, [5, 3, 2, 0, 4]);
    }

    #[test]
    fn the_wasm_layer_is_found_among_others() {
        let tar = "application/vnd.oci.image.layer.v1.tar";
        let layer = wasm_layer(&manifest(&[tar, "application/wasm"])).unwrap();
        assert_eq!(layer.unwrap().size(), 1);
        assert!(wasm_layer(&manifest(&[tar])).unwrap().is_none());
    }

    #[test]
    fn an_application_of_several_modules_is_no_function() {
        let (module, data) = (
            "application/vnd.wasm.content.layer.v1+wasm",
            "application/vnd.wasm.content.layer.v1+data",
        );
        let layer = wasm_layer(&manifest(&[module, data])).unwrap();
        assert_eq!(layer.unwrap().size(), 0);
        let error = wasm_layer(&manifest(&[module, data, module])).unwrap_err().to_string();
        assert!(error.contains("2 Wasm layers"), "{error}");
    }
}
