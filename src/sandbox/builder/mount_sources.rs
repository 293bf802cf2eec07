//! The sources of bind mounts, each resolved once. Runs in the builder.
//!
//! Another user, or a function with a writable mount, may change what a source's path leads to at any time. So the
//! builder opens each source before anything else happens with it, and from then on the specification names the
//! source by its descriptor.

use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{Mount, Spec};
use libcontainer::rootfs::utils::is_bind;

use cwasi_sys::resolved_path::{Links, ResolveError, ResolvedPath};
use cwasi_wire::mount_options::{IDENTITY, NO_LINKS};

use super::BuilderError;

/// The open sources of a specification's bind mounts.
#[derive(Debug, Default)]
pub struct MountSources(Vec<ResolvedPath>);

impl MountSources {
    /// Opens the sources of all bind mounts, and names them by their descriptors.
    ///
    /// # Errors
    /// When a source is missing, or has a link that its mount does not allow.
    pub fn resolve(spec: &mut Spec) -> Result<Self, BuilderError> {
        let mut sources = Self::default();
        let mut mounts = spec.mounts().clone().unwrap_or_default();
        for mount in mounts.iter_mut().filter(|mount| is_bind(mount)) {
            let source = resolve(mount)?;
            mount.set_source(Some(sources.add(source)));
        }
        spec.set_mounts(Some(mounts));
        Ok(sources)
    }

    /// Keeps one more source; returns its name for a mount.
    pub fn add(&mut self, source: ResolvedPath) -> PathBuf {
        let name = source.by_descriptor();
        self.0.push(source);
        name
    }

    /// The source with such a name.
    #[must_use]
    pub fn get(&self, name: &Path) -> Option<&ResolvedPath> {
        self.0.iter().find(|source| source.by_descriptor() == name)
    }
}

/// Opens the source of a bind mount, as its options want it, and takes these options away.
///
/// # Errors
/// When the source is missing, has a link that the options forbid, or is another file than they name.
pub fn resolve(mount: &mut Mount) -> Result<ResolvedPath, BuilderError> {
    let failed = |target: PathBuf| {
        move |source: ResolveError| BuilderError::MountSource { target, source: Box::new(source) }
    };
    let target = mount.destination().clone();
    let path = mount.source().clone().unwrap_or_default();
    let mut options = mount.options().clone().unwrap_or_default();
    let links =
        if options.iter().any(|option| option == NO_LINKS) { Links::Refuse } else { Links::Follow };
    let identity = options.iter().find_map(|option| option.strip_prefix(IDENTITY)).map(str::parse);
    options.retain(|option| option != NO_LINKS && !option.starts_with(IDENTITY));
    mount.set_options(Some(options));
    let source = ResolvedPath::open(&path, links).map_err(failed(target.clone()))?;
    match identity {
        None => Ok(source),
        Some(Ok(identity)) => source.expect(identity).map_err(failed(target)),
        Some(Err(_malformed)) => Err(failed(target)(ResolveError::Replaced { path })),
    }
}
