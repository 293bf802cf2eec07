//! What an image's documents say: its manifest or index, and its configuration. Runs in the shim daemon. Pure: bytes
//! in, facts out; the bytes are anybody's.

use std::path::Path;

use oci_spec::OciSpecError;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};

/// Media types of module layers. Components among them are refused later.
pub const WASM_MEDIA_TYPES: [&str; 3] = [
    "application/wasm",
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.bytecodealliance.wasm.component.layer.v0+wasm",
];

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
#[must_use]
pub fn wasm_layer(manifest: &ImageManifest) -> Option<Descriptor> {
    manifest.layers().iter().find(|layer| is_wasm(layer.media_type())).cloned()
}

fn is_wasm(media_type: &MediaType) -> bool {
    WASM_MEDIA_TYPES.contains(&media_type.to_string().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wasm_layer_is_found_among_others() {
        let manifest = r#"{"schemaVersion":2,
            "config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","size":2},
            "layers":[
              {"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","size":1},
              {"mediaType":"application/wasm","digest":"sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc","size":3}]}"#;
        let Target::Manifest(manifest) = Target::read(manifest.as_bytes()).unwrap() else {
            panic!("an index")
        };
        assert_eq!(wasm_layer(&manifest).unwrap().size(), 3);
    }
}
