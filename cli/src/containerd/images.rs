//! Images: their names, documents and layers. Writes images of our own, reads any.

use std::path::PathBuf;

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{
    CreateImageRequest, DeleteImageRequest, GetImageRequest, Image as ImageRecord, Info,
    InfoRequest, ListImagesRequest, ReadContentRequest, UpdateImageRequest, UpdateRequest,
    WriteAction, WriteContentRequest,
};
use containerd_client::types::Descriptor as ContainerdDescriptor;
use oci_spec::OciSpecError;
use oci_spec::image::{
    Arch, Descriptor, ImageConfiguration, ImageConfigurationBuilder, ImageIndex, ImageManifest, Os,
    RootFsBuilder,
};

use super::{Containerd, ContainerdError, refused};
use crate::image::{Blob, Image, LOCAL};
use cwasi_content::manifest::by_preference;

/// Bytes of one message of content; containerd takes messages of 16 MiB.
const CHUNK: usize = 1 << 20;
/// Largest manifest or index in bytes, as registries limit them.
const DOCUMENT_MAX: u64 = 4 << 20;
/// Largest module that is read.
const MODULE_MAX: u64 = cwasi_coordinator::module::MODULE_MAX;
/// Media types of container images' configurations.
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// Command for an image that is a module and names none: the runtime takes the image's module whatever the path.
const MODULE_PATH: &str = "/module.wasm";

/// Part of the media types of layers that are modules: they are not unpacked.
pub(super) const MODULE_LAYER: &str = "wasm";

/// An image in containerd.
#[derive(Clone, Debug)]
pub struct Stored {
    pub name: String,
    /// Digest of what the name points to.
    pub digest: String,
    /// The manifest for this machine, or the only one.
    pub manifest: ImageManifest,
    pub config: ImageConfiguration,
}

impl Containerd {
    /// True if an image has this name.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn has_image(&self, name: &str) -> Result<bool, ContainerdError> {
        match self.image_target(name).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Names of the images that `cwasi` has made of local modules, in their order.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn local_images(&self) -> Result<Vec<String>, ContainerdError> {
        let filters = vec![format!("name~={:?}", format!("^{}", LOCAL.replace('.', "\\.")))];
        let request = self.request(ListImagesRequest { filters })?;
        let answer = ImagesClient::new(self.channel.clone()).list(request).await;
        let images = answer.map_err(refused("images cannot be listed"))?.into_inner().images;
        let mut names: Vec<_> = images.into_iter().map(|image| image.name).collect();
        names.retain(|name| name.starts_with(LOCAL));
        names.sort();
        Ok(names)
    }

    /// Removes an image's name; containerd then removes what nothing else needs. A missing one is no error.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn remove_image(&self, name: &str) -> Result<(), ContainerdError> {
        let request = DeleteImageRequest { name: name.to_owned(), ..DeleteImageRequest::default() };
        let answer = ImagesClient::new(self.channel.clone()).delete(self.request(request)?).await;
        match answer.map_err(refused(format!("image {name} cannot be removed"))) {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    /// What an image's name points to.
    ///
    /// # Errors
    /// When it is missing.
    pub async fn image_target(&self, name: &str) -> Result<ContainerdDescriptor, ContainerdError> {
        let request = self.request(GetImageRequest { name: name.to_owned() })?;
        let answer = ImagesClient::new(self.channel.clone()).get(request).await;
        let image =
            answer.map_err(refused(format!("image {name} cannot be found")))?.into_inner().image;
        image.and_then(|image| image.target).ok_or_else(|| ContainerdError::Answer {
            operation: format!("image {name} cannot be used"),
            problem: "it has no target".to_owned(),
        })
    }

    /// Reads an image's documents.
    ///
    /// # Errors
    /// When it is missing, or no manifest of it is here.
    pub async fn image(&self, name: &str) -> Result<Stored, ContainerdError> {
        let target = self.image_target(name).await?;
        let manifest = self.manifest(name, &target.digest).await?;
        let config = self.read(manifest.config().digest().as_ref(), DOCUMENT_MAX).await?;
        let config = configuration(&manifest, &config)
            .map_err(|error| unreadable(name, "configuration", &error))?;
        Ok(Stored { name: name.to_owned(), digest: target.digest, manifest, config })
    }

    async fn manifest(&self, name: &str, digest: &str) -> Result<ImageManifest, ContainerdError> {
        let bytes = self.read(digest, DOCUMENT_MAX).await?;
        if let Ok(manifest) = ImageManifest::from_reader(bytes.as_slice())
            && !manifest.config().digest().as_ref().is_empty()
        {
            return Ok(manifest);
        }
        let index = ImageIndex::from_reader(bytes.as_slice())
            .map_err(|error| unreadable(name, "manifest", &error))?;
        // Manifests for other machines may be missing here.
        for descriptor in by_preference(&index) {
            if let Ok(bytes) = self.read(descriptor.digest().as_ref(), DOCUMENT_MAX).await
                && let Ok(manifest) = ImageManifest::from_reader(bytes.as_slice())
            {
                return Ok(manifest);
            }
        }
        Err(ContainerdError::Answer {
            operation: format!("image {name} cannot be used"),
            problem: "no manifest of its index is in containerd: pull or import it again"
                .to_owned(),
        })
    }

    /// Reads a layer that is a module; see `docs/cli.md` for the kinds of images.
    ///
    /// # Errors
    /// When it is larger than a module may be, or missing.
    pub async fn layer(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ContainerdError> {
        self.read(descriptor.digest().as_ref(), MODULE_MAX).await
    }

    async fn read(&self, digest: &str, max: u64) -> Result<Vec<u8>, ContainerdError> {
        let fail = || refused(format!("content {digest} cannot be read"));
        let request =
            self.request(ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 })?;
        let answer = ContentClient::new(self.channel.clone()).read(request).await;
        let mut stream = answer.map_err(fail())?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = stream.message().await.map_err(fail())? {
            bytes.extend_from_slice(&part.data);
            if bytes.len() as u64 > max {
                return Err(ContainerdError::Answer {
                    operation: format!("content {digest} cannot be read"),
                    problem: format!("it is longer than {max} bytes"),
                });
            }
        }
        Ok(bytes)
    }

    /// Writes an image and gives it its name; a name that exists points to the new image afterwards.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn write_image(&self, image: &Image) -> Result<(), ContainerdError> {
        let image = image.clone();
        self.with_lease(|leased| async move { leased.write_leased(&image).await }).await
    }

    async fn write_leased(&self, image: &Image) -> Result<(), ContainerdError> {
        let reference = |index: usize| format!("containerd.io/gc.ref.content.{index}");
        let parts: Vec<_> = std::iter::once(&image.config).chain(&image.layers).collect();
        let refers = parts.iter().enumerate();
        let labels: Vec<_> =
            refers.map(|(index, blob)| (reference(index), blob.digest())).collect();
        for blob in parts {
            self.write_blob(blob, Vec::new()).await?;
        }
        self.write_blob(&image.manifest, labels).await?;
        let record = ImageRecord {
            name: image.name.clone(),
            target: Some(ContainerdDescriptor {
                media_type: image.manifest.media_type.clone(),
                digest: image.manifest.digest(),
                size: length(&image.manifest),
                ..ContainerdDescriptor::default()
            }),
            ..ImageRecord::default()
        };
        let mut client = ImagesClient::new(self.channel.clone());
        let create =
            CreateImageRequest { image: Some(record.clone()), ..CreateImageRequest::default() };
        let fail = || refused(format!("image {} cannot be written", image.name));
        match client.create(self.request(create)?).await.map_err(fail()) {
            Ok(_) => Ok(()),
            Err(error) if error.exists_already() => {
                let update =
                    UpdateImageRequest { image: Some(record), ..UpdateImageRequest::default() };
                client.update(self.request(update)?).await.map(|_| ()).map_err(fail())
            }
            Err(error) => Err(error),
        }
    }

    async fn write_blob(
        &self,
        blob: &Blob,
        labels: Vec<(String, String)>,
    ) -> Result<(), ContainerdError> {
        let digest = blob.digest();
        let total = length(blob);
        let mut messages = Vec::new();
        for (index, chunk) in blob.bytes.chunks(CHUNK).enumerate() {
            messages.push(WriteContentRequest {
                action: WriteAction::Write as i32,
                r#ref: format!("cwasi-{digest}"),
                total,
                expected: digest.clone(),
                offset: i64::try_from(index * CHUNK).unwrap_or(i64::MAX),
                data: chunk.to_vec(),
                ..WriteContentRequest::default()
            });
        }
        messages.push(WriteContentRequest {
            action: WriteAction::Commit as i32,
            r#ref: format!("cwasi-{digest}"),
            total,
            expected: digest.clone(),
            offset: total,
            labels: labels.into_iter().collect(),
            ..WriteContentRequest::default()
        });
        let written = self.write_messages(messages, &digest).await;
        match written {
            Err(error) if error.exists_already() => Ok(()),
            other => other,
        }
    }

    async fn write_messages(
        &self,
        messages: Vec<WriteContentRequest>,
        digest: &str,
    ) -> Result<(), ContainerdError> {
        let fail = || refused(format!("content {digest} cannot be written"));
        let request = self.request(futures_util::stream::iter(messages))?;
        let answer = ContentClient::new(self.channel.clone()).write(request).await;
        let mut answers = answer.map_err(fail())?.into_inner();
        while answers.message().await.map_err(fail())?.is_some() {}
        Ok(())
    }

    /// Adds a label to content, such as the name of the snapshot that was made of it.
    pub(super) async fn label_content(
        &self,
        digest: &str,
        key: &str,
        value: &str,
    ) -> Result<(), ContainerdError> {
        let fail = || refused(format!("content {digest} cannot be labelled"));
        let mut client = ContentClient::new(self.channel.clone());
        let request = self.request(InfoRequest { digest: digest.to_owned() })?;
        let info = client.info(request).await.map_err(fail())?.into_inner().info;
        let mut labels = info.map(|info| info.labels).unwrap_or_default();
        labels.insert(key.to_owned(), value.to_owned());
        let info = Info { digest: digest.to_owned(), labels, ..Info::default() };
        let mask = prost_types::FieldMask { paths: vec!["labels".to_owned()] };
        let update = UpdateRequest { info: Some(info), update_mask: Some(mask) };
        client.update(self.request(update)?).await.map(|_| ()).map_err(fail())
    }
}

impl Stored {
    /// The module that the image starts, and its arguments; empty without a command. An image that is a module needs
    /// none.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let words = [self.entrypoint(), self.cmd()].concat();
        if words.is_empty() && has_module(&self.manifest) {
            return vec![MODULE_PATH.to_owned()];
        }
        words
    }

    #[must_use]
    pub fn entrypoint(&self) -> Vec<String> {
        let config = self.config.config().as_ref();
        config.and_then(|config| config.entrypoint().clone()).unwrap_or_default()
    }

    #[must_use]
    pub fn cmd(&self) -> Vec<String> {
        let config = self.config.config().as_ref();
        config.and_then(|config| config.cmd().clone()).unwrap_or_default()
    }

    /// Name or numbers of the user that runs it; empty for root.
    #[must_use]
    pub fn user(&self) -> String {
        let config = self.config.config().as_ref();
        config.and_then(|config| config.user().clone()).unwrap_or_default()
    }

    /// Environment of its configuration.
    #[must_use]
    pub fn env(&self) -> Vec<String> {
        let config = self.config.config().as_ref();
        config.and_then(|config| config.env().clone()).unwrap_or_default()
    }

    #[must_use]
    pub fn working_dir(&self) -> PathBuf {
        let config = self.config.config().as_ref();
        let dir = config.and_then(|config| config.working_dir().clone());
        dir.filter(|dir| !dir.is_empty()).map_or_else(|| "/".into(), PathBuf::from)
    }
}

/// An image's configuration. That of a Wasm artifact is none of a container image, and says nothing that a start needs:
/// the CNCF's (`application/vnd.wasm.config.v0+json`), or an empty one.
fn configuration(
    manifest: &ImageManifest,
    bytes: &[u8],
) -> Result<ImageConfiguration, OciSpecError> {
    let media_type = manifest.config().media_type().to_string();
    if CONFIG_TYPES.contains(&media_type.as_str()) || !has_module(manifest) {
        return ImageConfiguration::from_reader(bytes);
    }
    let rootfs = RootFsBuilder::default().typ("layers").diff_ids(Vec::new()).build()?;
    ImageConfigurationBuilder::default()
        .os(Os::Other("wasip1".into()))
        .architecture(Arch::Wasm)
        .rootfs(rootfs)
        .build()
}

fn has_module(manifest: &ImageManifest) -> bool {
    manifest.layers().iter().any(|layer| layer.media_type().to_string().contains(MODULE_LAYER))
}

fn length(blob: &Blob) -> i64 {
    i64::try_from(blob.bytes.len()).unwrap_or(i64::MAX)
}

fn unreadable(name: &str, what: &str, error: &dyn std::fmt::Display) -> ContainerdError {
    ContainerdError::Answer {
        operation: format!("image {name} cannot be used"),
        problem: format!("its {what} cannot be read: {error}"),
    }
}
