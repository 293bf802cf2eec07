//! The coordinator's view of images and deployed containers. The shim implements it with containerd. Runs in the shim
//! daemon.

use std::future::Future;

use super::trust::{Deployment, Image};

#[derive(Clone, Debug)]
pub struct ImageModule {
    pub image: String,
    pub bytes: Vec<u8>,
}

/// Images and containers of one containerd namespace.
pub trait ImageStore: Sync {
    /// The Wasm layer of the container's image; `None` if the image has none.
    ///
    /// # Errors
    /// The failed look-up, for the user.
    fn wasm_layer(
        &self,
        container: &str,
    ) -> impl Future<Output = Result<Option<ImageModule>, String>> + Send;

    /// All images.
    ///
    /// # Errors
    /// The failed look-up, for the user.
    fn images(&self) -> impl Future<Output = Result<Vec<Image>, String>> + Send;

    /// All containers that are functions, running or not.
    ///
    /// # Errors
    /// The failed look-up, for the user.
    fn deployments(&self) -> impl Future<Output = Result<Vec<Deployment>, String>> + Send;

    /// Reads a module of an image: its Wasm layer, or the file `path` of its root file system. Without a path, reads
    /// the image's entrypoint, or its only module.
    ///
    /// # Errors
    /// The missing part, for the user.
    fn module(
        &self,
        image: &Image,
        path: Option<&str>,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}
