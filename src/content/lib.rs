//! Reads modules from containerd's image and content stores, over containerd's socket, or without containerd from a
//! [`folder`]. Runs in processes of the host.
//!
//! The way is container → image name → manifest → the layer of a WebAssembly media type, or for embedded images a
//! file of their [`layers`]. Precompiled code is an artifact of its own, which refers to the image ([`referrers`]).
//!
//! Invariant: all content has the digest by which it was asked for. So the module is of the image that was trusted,
//! through every document between its digest and the module.

mod deployments;
mod digest;
pub mod folder;
pub mod layers;
pub mod manifest;
pub mod referrers;

use std::path::PathBuf;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{GetContainerRequest, GetImageRequest, ReadContentRequest};
use containerd_client::tonic::transport::Channel;
use containerd_client::tonic::{Code, Request, Status};
use oci_spec::image::{Descriptor, ImageManifest};

use self::folder::FolderStore;
use self::layers::{Compression, LAYER_MAX, LAYERS_MAX, LayerSearch};
use self::manifest::{Target, by_preference, started_module, wasm_layer};
use cwasi_coordinator::module::MODULE_MAX;
use cwasi_coordinator::precompiled::{Offer, SIGNATURE_MAX};
use cwasi_coordinator::trust::{Deployment, Image};
use cwasi_coordinator::{ImageModule, ImageOf, ImageStore};

/// Largest manifest or index in bytes, as registries limit them.
const MANIFEST_MAX: u64 = 4 << 20;
/// Most manifests of one index.
const MANIFESTS_MAX: usize = 64;

/// Where a daemon finds images.
#[derive(Clone, Debug)]
pub enum Images {
    Containerd(ContentStore),
    /// In a folder, without containerd.
    Folder(FolderStore),
}

impl ImageStore for Images {
    async fn wasm_layer(&self, container: &str) -> Result<Option<ImageModule>, String> {
        match self {
            Self::Containerd(store) => store.wasm_layer(container).await,
            Self::Folder(store) => store.wasm_layer(container).await,
        }
    }

    async fn images(&self) -> Result<Vec<Image>, String> {
        match self {
            Self::Containerd(store) => store.images().await,
            Self::Folder(store) => store.images().await,
        }
    }

    async fn deployments(&self) -> Result<Vec<Deployment>, String> {
        match self {
            Self::Containerd(store) => store.deployments().await,
            Self::Folder(store) => store.deployments().await,
        }
    }

    async fn module(&self, image: &Image, path: Option<&str>) -> Result<Vec<u8>, String> {
        match self {
            Self::Containerd(store) => store.module(image, path).await,
            Self::Folder(store) => store.module(image, path).await,
        }
    }

    async fn offers(&self, image: ImageOf<'_>, extension: &str) -> Result<Vec<Offer>, String> {
        match self {
            Self::Containerd(store) => store.offers(image, extension).await,
            Self::Folder(store) => store.offers(image, extension).await,
        }
    }

    async fn offered_code(
        &self,
        image: ImageOf<'_>,
        offer: &Offer,
        length: u64,
    ) -> Result<Vec<u8>, String> {
        match self {
            Self::Containerd(store) => store.offered_code(image, offer, length).await,
            Self::Folder(store) => store.offered_code(image, offer, length).await,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ContentStore {
    pub address: PathBuf,
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
        let manifest = self.manifest(&channel, &image, &target).await?;
        let layer = wasm_layer(&manifest).map_err(|error| format!("image {image} {error}"))?;
        let Some(layer) = layer else { return Ok(None) };
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
        let name = &image.name;
        let manifest = self.manifest(&channel, name, &image.digest).await?;
        let layer = wasm_layer(&manifest).map_err(|error| format!("image {name} {error}"))?;
        if let Some(layer) = layer {
            return self.read(&channel, layer.digest().as_ref(), MODULE_MAX).await;
        }
        let file = self.file(&channel, &manifest, path).await;
        file.map_err(|why| format!("image {name} cannot be embedded: {why}"))
    }

    async fn offers(&self, image: ImageOf<'_>, extension: &str) -> Result<Vec<Offer>, String> {
        let channel = self.connect().await?;
        let (image, digest) = match image {
            ImageOf::Image(Image { name, digest }) => (name.clone(), digest.clone()),
            ImageOf::Container(container) => {
                let image = self.image_of(&channel, container).await?;
                if image.is_empty() {
                    return Ok(Vec::new());
                }
                let digest = self.target_of(&channel, &image).await?;
                (image, digest)
            }
        };
        let Some(name) = referrers::name_of(&image, &digest) else { return Ok(Vec::new()) };
        let Some(target) = self.find_target(&channel, &name).await? else { return Ok(Vec::new()) };
        let manifest = self.read(&channel, &target, MANIFEST_MAX).await?;
        let found = referrers::signed_code(&manifest, &digest, extension)
            .map_err(|problem| format!("artifact {name} {problem}"))?;
        let mut offers = Vec::new();
        for referrers::SignedLayers { name, code, signature } in found {
            let signature = self.read(&channel, &signature, SIGNATURE_MAX).await?;
            offers.push(Offer { name, signature, place: code });
        }
        Ok(offers)
    }

    async fn offered_code(
        &self,
        _image: ImageOf<'_>,
        offer: &Offer,
        length: u64,
    ) -> Result<Vec<u8>, String> {
        self.read(&self.connect().await?, &offer.place, length).await
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

    /// A module in a manifest's root file system.
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
        let layers = manifest.layers();
        if layers.len() > LAYERS_MAX {
            return Err(format!("it has more than {LAYERS_MAX} layers"));
        }
        let mut search = LayerSearch::new(started.as_deref());
        for layer in layers {
            let packing = packing(layer)?;
            let bytes = self.read(channel, layer.digest().as_ref(), LAYER_MAX).await?;
            search = unpacking(move || search.layer(&bytes, packing).map(|()| search)).await?;
        }
        let found = search.end()?;
        let layer = layers.get(found.layer()).ok_or("a layer is gone")?;
        let packing = packing(layer)?;
        let bytes = self.read(channel, layer.digest().as_ref(), LAYER_MAX).await?;
        unpacking(move || found.read(&bytes, packing)).await
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
        let found = self.find_target(channel, image).await?;
        found.ok_or_else(|| format!("containerd does not give image {image} (it is not there)"))
    }

    /// Digest of what an image's name points to; `None` if there is no image of this name.
    async fn find_target(&self, channel: &Channel, image: &str) -> Result<Option<String>, String> {
        let request = self.request(GetImageRequest { name: image.to_owned() })?;
        let response = match ImagesClient::new(channel.clone()).get(request).await {
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            response => response.map_err(lookup("image", image))?,
        };
        let target = response.into_inner().image.and_then(|image| image.target);
        let digest = target.map(|target| target.digest);
        digest.map(Some).ok_or_else(|| format!("image {image} has no target"))
    }

    /// The image's manifest; of an index the one that containerd would start, among the stored ones.
    async fn manifest(
        &self,
        channel: &Channel,
        image: &str,
        digest: &str,
    ) -> Result<ImageManifest, String> {
        let bytes = self.read(channel, digest, MANIFEST_MAX).await?;
        let target = Target::read(&bytes)
            .map_err(|error| format!("manifest of image {image} cannot be read ({error})"))?;
        let index = match target {
            Target::Manifest(manifest) => return Ok(*manifest),
            Target::Index(index) => index,
        };
        for descriptor in by_preference(&index).into_iter().take(MANIFESTS_MAX) {
            // Manifests of other platforms may not be in the store.
            if let Ok(bytes) = self.read(channel, descriptor.digest().as_ref(), MANIFEST_MAX).await
                && let Ok(manifest) = ImageManifest::from_reader(bytes.as_slice())
            {
                return Ok(manifest);
            }
        }
        Err(format!("no manifest of image {image} is in containerd: pull or import it again"))
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
        digest::check(digest, &bytes)?;
        Ok(bytes)
    }
}

fn packing(layer: &Descriptor) -> Result<Compression, String> {
    let media_type = layer.media_type().to_string();
    Compression::of(&media_type)
        .ok_or_else(|| format!("it has a layer of the unsupported type {media_type}"))
}

/// Runs `work` on a thread that may block: layers may be long.
async fn unpacking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(format!("the layer cannot be read ({error})")))
}

fn lookup<'a>(what: &'a str, name: &'a str) -> impl Fn(Status) -> String + 'a {
    move |status| format!("containerd does not give {what} {name} ({})", status.message())
}
