//! The coordinator's view of images and deployed containers. The shim implements it with containerd. Runs in the shim
//! daemon.

use std::future::Future;

use super::precompiled::Offer;
use super::trust::{Deployment, Image};

#[derive(Clone, Debug)]
pub struct ImageModule {
    pub image: String,
    pub bytes: Vec<u8>,
}

/// An image, for a look-up.
#[derive(Clone, Copy, Debug)]
pub enum ImageOf<'a> {
    /// That of this container.
    Container(&'a str),
    Image(&'a Image),
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

    /// Signatures of precompiled code that came with an image, for an engine with this extension of native code.
    ///
    /// # Errors
    /// The failed look-up, for the user. Having none is no error.
    fn offers(
        &self,
        image: ImageOf<'_>,
        extension: &str,
    ) -> impl Future<Output = Result<Vec<Offer>, String>> + Send {
        let _none = (image, extension);
        async { Ok(Vec::new()) }
    }

    /// The code of such an offer, up to one byte more than `length`.
    ///
    /// # Errors
    /// When it cannot be read, for the user.
    fn offered_code(
        &self,
        image: ImageOf<'_>,
        offer: &Offer,
        length: u64,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send {
        let (_none, text) = ((image, length), format!("{} is not there", offer.name));
        async { Err(text) }
    }
}
