//! Images and containers of containerd, and those of a workflow file that are not there yet.

use std::collections::BTreeMap;

use cwasi_content::ContentStore;
use cwasi_coordinator::trust::{Deployment, Image as NamedImage};
use cwasi_coordinator::{ImageModule, ImageStore};

use crate::deployment::platform::FunctionImage;
use crate::image::{Image, ImageError, ImageKind};

/// containerd's store, with what a workflow file adds to it.
pub(super) struct PlannedStore {
    there: ContentStore,
    /// Modules of images that the file would write, by name, with the image's digest.
    images: BTreeMap<String, (String, Vec<u8>)>,
    deployments: Vec<Deployment>,
}

impl PlannedStore {
    pub(super) const fn new(there: ContentStore) -> Self {
        Self { there, images: BTreeMap::new(), deployments: Vec::new() }
    }

    /// Adds a function's image, if it is built from a module.
    pub(super) fn add_image(
        &mut self,
        function: &str,
        image: FunctionImage,
    ) -> Result<(), ImageError> {
        let FunctionImage { name, module } = image;
        if let Some(module) = module {
            let built = Image::build(&name, ImageKind::Plain, function, &module)?;
            self.images.insert(name, (built.manifest.digest(), module));
        }
        Ok(())
    }

    pub(super) fn add_deployment(&mut self, deployment: Deployment) {
        self.deployments.push(deployment);
    }

    /// The image of this name.
    pub(super) async fn image(&self, name: &str) -> Result<NamedImage, String> {
        let mut all = self.images().await?.into_iter();
        all.find(|image| image.name == name)
            .ok_or_else(|| format!("image {name} is not in containerd: pull or import it"))
    }
}

impl ImageStore for PlannedStore {
    async fn wasm_layer(&self, container: &str) -> Result<Option<ImageModule>, String> {
        self.there.wasm_layer(container).await
    }

    async fn images(&self) -> Result<Vec<NamedImage>, String> {
        let mut all = self.there.images().await?;
        all.retain(|image| !self.images.contains_key(&image.name));
        all.extend(
            self.images.iter().map(|(name, (digest, _))| NamedImage {
                name: name.clone(),
                digest: digest.clone(),
            }),
        );
        Ok(all)
    }

    async fn deployments(&self) -> Result<Vec<Deployment>, String> {
        let mut all = self.there.deployments().await?;
        all.retain(|one| {
            !self.deployments.iter().any(|planned| planned.container == one.container)
        });
        all.extend(self.deployments.iter().cloned());
        Ok(all)
    }

    async fn module(&self, image: &NamedImage, path: Option<&str>) -> Result<Vec<u8>, String> {
        if let Some((_, module)) = self.images.get(&image.name) {
            return Ok(module.clone());
        }
        // The path of a planned container is its image's entrypoint.
        self.there.module(image, path.filter(|path| !path.is_empty())).await
    }
}
