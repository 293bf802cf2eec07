//! Containers: their records, with labels that say which workflow they belong to.

use std::collections::HashMap;

use containerd_client::services::v1::container::Runtime;
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::{
    Container as ContainerRecord, CreateContainerRequest, DeleteContainerRequest,
    ListContainersRequest,
};
use containerd_client::types::Mount;
use cwasi_config::annotations::CRI_CONTAINER_NAME;
use oci_spec::runtime::Spec;

use super::{Containerd, ContainerdError, RUNTIME, refused};

/// containerd's name for the type of an OCI configuration.
const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// The annotation with a function's workflow.
const WORKFLOW: &str = "cwasi.workflow";
/// Prefix of this command's labels.
pub const LABEL: &str = "cwasi.dev/";
/// Most containers of one list.
const CONTAINERS_MAX: usize = 16_384;

/// A container of this runtime.
#[derive(Clone, Debug)]
pub struct Container {
    pub id: String,
    pub image: String,
    pub labels: HashMap<String, String>,
    /// Annotations of its OCI configuration.
    pub annotations: HashMap<String, String>,
    pub args: Vec<String>,
    pub spec: Spec,
}

/// A container to be made.
#[derive(Clone, Debug)]
pub struct NewContainer<'a> {
    pub id: &'a str,
    pub image: &'a str,
    /// The image's top snapshot.
    pub parent: &'a str,
    pub spec: &'a Spec,
    pub labels: HashMap<String, String>,
}

impl Container {
    /// Value of one of this command's labels; empty without it.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(&format!("{LABEL}{name}")).map_or("", String::as_str)
    }

    /// True for a service of a workflow, which is no function.
    #[must_use]
    pub fn is_service(&self) -> bool {
        !self.label("service").is_empty()
    }

    /// Name of its workflow; empty without one.
    #[must_use]
    pub fn workflow(&self) -> &str {
        if self.is_service() { self.label("workflow") } else { self.annotation(WORKFLOW) }
    }

    /// What it is to its workflow.
    #[must_use]
    pub fn role(&self) -> &'static str {
        match (self.is_service(), self.is_secondary()) {
            (true, _) => "service",
            (false, true) => "secondary",
            (false, false) => "primary",
        }
    }

    /// Value of an annotation; empty without it.
    #[must_use]
    pub fn annotation(&self, key: &str) -> &str {
        self.annotations.get(key).map_or("", String::as_str)
    }

    /// Value of one of the runtime's annotations: in a pod that of the container comes before that of all containers.
    fn own_annotation(&self, key: &str) -> &str {
        match self.annotation(CRI_CONTAINER_NAME) {
            "" => self.annotation(key),
            name => match self.annotation(&format!("{key}.{name}")) {
                "" => self.annotation(key),
                own => own,
            },
        }
    }

    /// Name of its function, the annotated one or else the module's; that of a service.
    #[must_use]
    pub fn function(&self) -> &str {
        if self.is_service() {
            return self.label("service");
        }
        let annotated = self.own_annotation("cwasi.function");
        if !annotated.is_empty() {
            return annotated;
        }
        let path = self.module_path().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or(path);
        file.strip_suffix(".wasm").unwrap_or(file)
    }

    /// Path of a function's module in its image; `None` without arguments.
    #[must_use]
    pub fn module_path(&self) -> Option<&str> {
        let path = self.args.first()?;
        Some(path.split_once('#').map_or(path, |(path, _)| path))
    }

    /// True for a function that waits for calls.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        self.own_annotation("cwasi.role") == "secondary"
            || self.own_annotation("cwasi.secondary.function") == "true"
    }
}

impl Containerd {
    /// All containers of this runtime, by id.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn containers(&self) -> Result<Vec<Container>, ContainerdError> {
        let fail = || refused("containers cannot be listed");
        // Not in containerd's filter, which 1.6 does not have for runtimes.
        let request = self.request(ListContainersRequest { filters: Vec::new() })?;
        let answer = ContainersClient::new(self.channel.clone()).list_stream(request).await;
        let mut stream = answer.map_err(fail())?.into_inner();
        let mut found = Vec::new();
        // One message each: together they would exceed a message's size.
        while let Some(message) = stream.message().await.map_err(fail())? {
            found.extend(message.container.and_then(ours));
            if found.len() >= CONTAINERS_MAX {
                break;
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Makes a container and its snapshot; returns the mounts of its root.
    ///
    /// # Errors
    /// When containerd refuses, such as for an id that exists.
    pub async fn create_container(
        &self,
        new: NewContainer<'_>,
    ) -> Result<Vec<Mount>, ContainerdError> {
        let operation = format!("container {} cannot be made", new.id);
        let value = serde_json::to_vec(new.spec).map_err(|error| ContainerdError::Answer {
            operation: operation.clone(),
            problem: format!("its configuration cannot be written: {error}"),
        })?;
        let container = ContainerRecord {
            id: new.id.to_owned(),
            labels: new.labels,
            image: new.image.to_owned(),
            runtime: Some(Runtime { name: RUNTIME.to_owned(), options: None }),
            spec: Some(prost_types::Any { type_url: SPEC_TYPE.to_owned(), value }),
            snapshotter: self.snapshotter.clone(),
            snapshot_key: new.id.to_owned(),
            ..ContainerRecord::default()
        };
        let parent = new.parent.to_owned();
        // The snapshot has no owner until the container exists.
        self.with_lease(|leased| async move {
            leased.create_leased(container, &parent, operation).await
        })
        .await
    }

    async fn create_leased(
        &self,
        container: ContainerRecord,
        parent: &str,
        operation: String,
    ) -> Result<Vec<Mount>, ContainerdError> {
        let snapshot = container.snapshot_key.clone();
        let mounts = self.prepare(&snapshot, parent).await?;
        let request = self.request(CreateContainerRequest { container: Some(container) })?;
        let answer = ContainersClient::new(self.channel.clone()).create(request).await;
        if answer.is_err() {
            // The first error is the one to report.
            let _unremoved = self.remove_snapshot(&snapshot).await;
        }
        answer.map_err(refused(operation)).map(|_| mounts)
    }

    /// Removes a container without a task, and its snapshot. Missing ones are no error.
    ///
    /// # Errors
    /// When containerd refuses.
    pub async fn delete_container(&self, id: &str) -> Result<(), ContainerdError> {
        let request = self.request(DeleteContainerRequest { id: id.to_owned() })?;
        let answer = ContainersClient::new(self.channel.clone()).delete(request).await;
        match answer.map_err(refused(format!("container {id} cannot be removed"))) {
            Err(error) if !error.is_missing() => Err(error),
            _ => self.remove_snapshot(id).await,
        }
    }
}

/// The container, if it is of this runtime.
fn ours(record: ContainerRecord) -> Option<Container> {
    let ContainerRecord { id, labels, image, runtime, spec, .. } = record;
    if runtime?.name != RUNTIME {
        return None;
    }
    // What another client wrote may lack anything.
    let spec: Spec = serde_json::from_slice(&spec?.value).ok()?;
    let annotations = spec.annotations().clone().unwrap_or_default();
    let process = spec.process().as_ref();
    let args = process.and_then(|process| process.args().clone()).unwrap_or_default();
    Some(Container { id, image, labels, annotations, args, spec })
}
