//! Images whose layer is the module: looked up in containerd's stores over its own socket.
//!
//! Runs in the shim daemon. Container → image name → manifest → the layer of a WebAssembly media type, or for
//! images that are embedded a file of their [`layers`].

mod deployments;
pub mod layers;

use std::path::{Path, PathBuf};

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{GetContainerRequest, GetImageRequest, ReadContentRequest};
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Request, Status};
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};

use self::layers::{LAYER_MAX, Packing, Search};
use crate::coordinator::module::MODULE_MAX;
use crate::coordinator::trust::{Deployment, Image};
use crate::coordinator::{ImageModule, ImageStore};

/// Layers that are a core module (or claim to be one: a component is refused later, by name).
pub const WASM_MEDIA_TYPES: [&str; 3] = [
    "application/wasm",
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.bytecodealliance.wasm.component.layer.v0+wasm",
];
/// Longest manifest or index in bytes, as registries limit them.
const MANIFEST_MAX: u64 = 4 << 20;
/// Most manifests of one index that are looked at.
const MANIFESTS_MAX: usize = 64;

/// containerd's stores.
#[derive(Clone, Debug)]
pub struct ContentStore {
    /// containerd's GRPC socket.
    pub address: PathBuf,
    /// containerd namespace.
    pub namespace: String,
}

impl ImageStore for ContentStore {
    async fn wasm_layer(&self, container: &str) -> Result<Option<ImageModule>, String> {
        let channel = self.connect().await?;
        let image = self.image_of(&channel, container).await?;
        if image.is_empty() {
            return Ok(None);
        }
        let target = self.target_of(&channel, &image).await?;
        let manifests = self.manifests(&channel, &image, &target).await?;
        let Some(layer) = manifests.iter().find_map(wasm_layer) else { return Ok(None) };
        let bytes = self.read(&channel, layer.digest().as_ref(), MODULE_MAX).await?;
        Ok(Some(ImageModule { image, bytes }))
    }

    async fn images(&self) -> Result<Vec<Image>, String> {
        deployments::images(self, self.connect().await?).await
    }

    async fn deployments(&self) -> Result<Vec<Deployment>, String> {
        deployments::deployments(self, self.connect().await?).await
    }

    async fn module(&self, image: &Image, path: Option<&str>) -> Result<Vec<u8>, String> {
        let channel = self.connect().await?;
        let manifests = self.manifests(&channel, &image.name, &image.digest).await?;
        if let Some(layer) = manifests.iter().find_map(wasm_layer) {
            return self.read(&channel, layer.digest().as_ref(), MODULE_MAX).await;
        }
        let mut why = "it has no manifest".to_owned();
        for manifest in &manifests {
            match self.file(&channel, manifest, path).await {
                Ok(bytes) => return Ok(bytes),
                Err(problem) => why = problem,
            }
        }
        Err(format!("image {} cannot be embedded: {why}", image.name))
    }
}

impl ContentStore {
    async fn connect(&self) -> Result<Channel, String> {
        containerd_client::connect(&self.address).await.map_err(|error| {
            format!(
                "containerd cannot be asked for the image ({}: {error})",
                self.address.display()
            )
        })
    }

    /// A module in the root file system that a manifest describes.
    async fn file(
        &self,
        channel: &Channel,
        manifest: &ImageManifest,
        path: Option<&str>,
    ) -> Result<Vec<u8>, String> {
        let started = match path {
            Some(path) => Some(path.to_owned()),
            None => {
                let config = manifest.config().digest();
                started_module(&self.read(channel, config.as_ref(), MANIFEST_MAX).await?)
            }
        };
        let mut search = Search::new(started.as_deref());
        for layer in manifest.layers().iter().rev() {
            let media_type = layer.media_type().to_string();
            let Some(packing) = Packing::of(&media_type) else {
                return Err(format!("it has a layer of the type {media_type}, which is not read"));
            };
            let bytes = self.read(channel, layer.digest().as_ref(), LAYER_MAX).await?;
            search.layer(&bytes, packing)?;
            if search.is_over() {
                break;
            }
        }
        search.end()
    }

    fn request<T>(&self, message: T) -> Result<Request<T>, String> {
        let mut request = Request::new(message);
        let namespace = self
            .namespace
            .parse()
            .map_err(|_| format!("containerd namespace `{}` cannot be sent", self.namespace))?;
        request.metadata_mut().insert("containerd-namespace", namespace);
        Ok(request)
    }

    async fn image_of(&self, channel: &Channel, container: &str) -> Result<String, String> {
        let request = self.request(GetContainerRequest { id: container.to_owned() })?;
        let response = ContainersClient::new(channel.clone()).get(request).await;
        let response = response.map_err(lookup("container", container))?;
        Ok(response.into_inner().container.map(|container| container.image).unwrap_or_default())
    }

    async fn target_of(&self, channel: &Channel, image: &str) -> Result<String, String> {
        let request = self.request(GetImageRequest { name: image.to_owned() })?;
        let response = ImagesClient::new(channel.clone()).get(request).await;
        let response = response.map_err(lookup("image", image))?;
        let target = response.into_inner().image.and_then(|image| image.target);
        target.map(|target| target.digest).ok_or_else(|| format!("image {image} has no target"))
    }

    /// The image's manifest, or those of its index that are in the store.
    async fn manifests(
        &self,
        channel: &Channel,
        image: &str,
        digest: &str,
    ) -> Result<Vec<ImageManifest>, String> {
        let bytes = self.read(channel, digest, MANIFEST_MAX).await?;
        let broken = |error| format!("manifest of image {image} cannot be read ({error})");
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        if value.get("manifests").is_none() {
            let manifest = ImageManifest::from_reader(bytes.as_slice());
            return Ok(vec![manifest.map_err(|error| broken(error.to_string()))?]);
        }
        let index =
            ImageIndex::from_reader(bytes.as_slice()).map_err(|error| broken(error.to_string()))?;
        let mut manifests = Vec::new();
        for descriptor in index.manifests().iter().take(MANIFESTS_MAX) {
            // Manifests of platforms that were not pulled are not in the store.
            if let Ok(bytes) = self.read(channel, descriptor.digest().as_ref(), MANIFEST_MAX).await
                && let Ok(manifest) = ImageManifest::from_reader(bytes.as_slice())
            {
                manifests.push(manifest);
            }
        }
        Ok(manifests)
    }

    async fn read(&self, channel: &Channel, digest: &str, max: u64) -> Result<Vec<u8>, String> {
        let request =
            self.request(ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 })?;
        let stream = ContentClient::new(channel.clone()).read(request).await;
        let mut stream = stream.map_err(lookup("content", digest))?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = stream.message().await.map_err(lookup("content", digest))? {
            bytes.extend_from_slice(&part.data);
            if bytes.len() as u64 > max {
                return Err(format!("content {digest} is larger than {max} bytes"));
            }
        }
        Ok(bytes)
    }
}

fn lookup<'a>(what: &'a str, name: &'a str) -> impl Fn(Status) -> String + 'a {
    move |status| format!("containerd does not give {what} {name} ({})", status.message())
}

/// The module that an image starts, from its configuration.
fn started_module(config: &[u8]) -> Option<String> {
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

fn wasm_layer(manifest: &ImageManifest) -> Option<Descriptor> {
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
        let manifest = ImageManifest::from_reader(manifest.as_bytes()).unwrap();
        assert_eq!(wasm_layer(&manifest).unwrap().size(), 3);
    }
}
