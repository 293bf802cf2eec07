//! What the coordinator needs to know about images and deployed containers; the shim asks containerd.

use std::future::Future;

use super::trust::{Deployment, Image};

/// A module of an image.
#[derive(Clone, Debug)]
pub struct ImageModule {
    /// Image name.
    pub image: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Where images and containers of one containerd namespace are known.
pub trait ImageStore: Sync {
    /// The Wasm layer of the image that `container` was made from; `None` when its image has none.
    ///
    /// # Errors
    /// For the user: which lookup failed.
    fn wasm_layer(
        &self,
        container: &str,
    ) -> impl Future<Output = Result<Option<ImageModule>, String>> + Send;

    /// Every image.
    ///
    /// # Errors
    /// For the user: which lookup failed.
    fn images(&self) -> impl Future<Output = Result<Vec<Image>, String>> + Send;

    /// Every container that is a function, running or not.
    ///
    /// # Errors
    /// For the user: which lookup failed.
    fn deployments(&self) -> impl Future<Output = Result<Vec<Deployment>, String>> + Send;

    /// The module of an image: its Wasm layer, or the file `path` of its root file system; without a path the
    /// one that the image starts, or the only one there is.
    ///
    /// # Errors
    /// For the user: what is missing.
    fn module(
        &self,
        image: &Image,
        path: Option<&str>,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}
