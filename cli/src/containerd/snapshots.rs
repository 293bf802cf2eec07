//! Unpacks images into snapshots, and makes the writable snapshot of a container.

use containerd_client::services::v1::ApplyRequest;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::tonic::Status;
use containerd_client::types::{Descriptor as ContainerdDescriptor, Mount};
use oci_spec::image::Descriptor;
use sha2::{Digest as _, Sha256};

use super::images::{MODULE_LAYER, Stored};
use super::{Containerd, ContainerdError, refused, unique};

/// Part of containerd's words about a snapshotter that it does not have.
const NOT_LOADED: &str = "snapshotter not loaded";

impl Containerd {
    /// Unpacks an image, as far as that is not done. Returns the name of its top snapshot; empty for an image without
    /// files.
    ///
    /// # Errors
    /// When a layer is missing, or cannot be unpacked.
    pub async fn unpack(&self, image: &Stored) -> Result<String, ContainerdError> {
        let image = image.clone();
        // Until the image's label refers to a snapshot, containerd's collector would remove it.
        self.with_lease(|leased| async move { leased.unpack_leased(&image).await }).await
    }

    async fn unpack_leased(&self, image: &Stored) -> Result<String, ContainerdError> {
        let layers = image.manifest.layers().iter();
        let layers: Vec<_> =
            layers.filter(|layer| !layer.media_type().to_string().contains(MODULE_LAYER)).collect();
        let mut parent = String::new();
        for (layer, diff_id) in layers.into_iter().zip(image.config.rootfs().diff_ids()) {
            let name = chain_id(&parent, diff_id);
            if !self.has_snapshot(&name).await? {
                self.unpack_layer(layer, &parent, &name, &image.name).await?;
            }
            parent = name;
        }
        if !parent.is_empty() {
            // Keeps the snapshot as long as the image.
            let key = format!("containerd.io/gc.ref.snapshot.{}", self.snapshotter);
            let config = image.manifest.config().digest();
            self.label_content(config.as_ref(), &key, &parent).await?;
        }
        Ok(parent)
    }

    /// Maps a refusal of the snapshotter.
    fn refused_snapshot(&self, operation: String) -> impl FnOnce(Status) -> ContainerdError {
        let snapshotter = self.snapshotter.clone();
        move |status| {
            if !status.message().contains(NOT_LOADED) {
                return refused(operation)(status);
            }
            ContainerdError::Answer {
                operation: format!("snapshotter {snapshotter} cannot be used"),
                problem: "this containerd does not have it; `ctr plugins ls` lists those that it has (--snapshotter, \
                          CONTAINERD_SNAPSHOTTER)"
                    .to_owned(),
            }
        }
    }

    async fn has_snapshot(&self, name: &str) -> Result<bool, ContainerdError> {
        let request =
            StatSnapshotRequest { snapshotter: self.snapshotter.clone(), key: name.to_owned() };
        let answer = SnapshotsClient::new(self.channel.clone()).stat(self.request(request)?).await;
        match answer.map_err(self.refused_snapshot(format!("snapshot {name} cannot be found"))) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn unpack_layer(
        &self,
        layer: &Descriptor,
        parent: &str,
        name: &str,
        image: &str,
    ) -> Result<(), ContainerdError> {
        let key = format!("cwasi-unpack-{}", unique());
        let mounts = self.prepare(&key, parent).await?;
        let diff = ContainerdDescriptor {
            media_type: layer.media_type().to_string(),
            digest: layer.digest().to_string(),
            size: i64::try_from(layer.size()).unwrap_or(i64::MAX),
            ..ContainerdDescriptor::default()
        };
        let request = ApplyRequest { diff: Some(diff), mounts, ..ApplyRequest::default() };
        let applied = DiffClient::new(self.channel.clone()).apply(self.request(request)?).await;
        if let Err(status) = applied {
            let error = refused(format!("a layer of image {image} cannot be unpacked"))(status);
            // The first error is the one to report.
            let _unremoved = self.remove_snapshot(&key).await;
            return Err(error);
        }
        let request = CommitSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            name: name.to_owned(),
            key: key.clone(),
            ..CommitSnapshotRequest::default()
        };
        let answer =
            SnapshotsClient::new(self.channel.clone()).commit(self.request(request)?).await;
        match answer.map_err(refused(format!("image {image} cannot be unpacked"))) {
            Ok(_) => Ok(()),
            // Another client was faster.
            Err(error) if error.exists_already() => self.remove_snapshot(&key).await,
            Err(error) => Err(error),
        }
    }

    /// Makes a writable snapshot.
    pub(super) async fn prepare(
        &self,
        key: &str,
        parent: &str,
    ) -> Result<Vec<Mount>, ContainerdError> {
        let request = PrepareSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            ..PrepareSnapshotRequest::default()
        };
        let answer =
            SnapshotsClient::new(self.channel.clone()).prepare(self.request(request)?).await;
        Ok(answer.map_err(refused(format!("snapshot {key} cannot be made")))?.into_inner().mounts)
    }

    /// Removes a snapshot; a missing one is no error.
    pub(super) async fn remove_snapshot(&self, key: &str) -> Result<(), ContainerdError> {
        let request =
            RemoveSnapshotRequest { snapshotter: self.snapshotter.clone(), key: key.to_owned() };
        let answer =
            SnapshotsClient::new(self.channel.clone()).remove(self.request(request)?).await;
        match answer.map_err(refused(format!("snapshot {key} cannot be removed"))) {
            Err(error) if error.is_missing() => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// Name of the snapshot of `diff_id` on `parent`, as OCI's image specification defines it.
fn chain_id(parent: &str, diff_id: &str) -> String {
    if parent.is_empty() {
        return diff_id.to_owned();
    }
    format!("sha256:{}", hex::encode(Sha256::digest(format!("{parent} {diff_id}"))))
}
