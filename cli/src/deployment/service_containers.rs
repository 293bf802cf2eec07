//! The containers of services in one containerd: native ones, in a network that they share with the functions that use
//! them, as the containers of a pod do.
//!
//! Invariant: all containers of a workflow with the label `network=shared` that run are in one network namespace, since
//! each one enters that of one that runs. It lasts as long as one of them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cwasi_config::{NodeConfig, function_name};
use cwasi_host::state::create_private_dir;
use oci_spec::runtime::Spec;
use sha2::{Digest as _, Sha256};

use super::platform::ServiceContainer;
use crate::containerd::Containerd;
use crate::containerd::containers::{Container, LABEL};
use crate::containerd::images::Stored;
use crate::containerd::native::{self, NativeSpec};
use crate::containerd::oci::Network;
use crate::containerd::tasks::Task;
use crate::failure::{Exit, Failure};
use cwasi_workflow::Mount;
use cwasi_workflow::services::{Service, User};

/// Folder of the storage of services, below the folder of what lasts.
const STORAGE: &str = "services";
const STORAGE_MODE: u32 = 0o755;
/// Value of the label `network` of containers that share one.
pub const SHARED: &str = "shared";

/// A service's container that is to be made.
#[derive(Debug)]
pub struct PlannedService {
    pub image: Stored,
    pub spec: Spec,
    pub hash: String,
    pub labels: HashMap<String, String>,
}

/// Labels of this command, which have its prefix.
pub fn labels<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
    let labels = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    labels.map(|(key, value)| (format!("{LABEL}{key}"), value.to_owned())).collect()
}

/// Plans the container of a service, and makes the folder of its storage.
///
/// # Errors
/// When its image is missing or names no program, or the folder cannot be made.
pub async fn plan(
    containerd: &Containerd,
    config: &NodeConfig,
    (workflow, service, id): (&str, &Service, &str),
) -> Result<PlannedService, Failure> {
    let image = containerd.image(&service.image).await?;
    let args = command(&image, service);
    if args.is_empty() {
        let text = format!(
            "service {}: image {} names no program to start: give the service a `command`",
            service.name, image.name
        );
        return Err(Failure::text(Exit::Data, text));
    }
    let user = user(&image, service)?;
    let storage = match &service.storage {
        Some(storage) => {
            let source = storage_folder(config, containerd.namespace(), workflow, &service.name);
            make_storage(&source, user).with_context(|| {
                format!("service {}: its storage {} cannot be made", service.name, source.display())
            })?;
            let target = storage.path.display().to_string();
            Some(Mount { source, target, read_only: false })
        }
        None => None,
    };
    let shared = match service.host_network {
        true => None,
        false => shared_network(containerd, workflow, id).await?,
    };
    let network = match (&shared, service.host_network) {
        (_, true) => Network::Host,
        (Some(path), false) => Network::At(path),
        (None, false) => Network::Own,
    };
    let spec = native::spec(&NativeSpec {
        cgroup: &format!("/{}/{id}", containerd.namespace()),
        args: args.clone(),
        image_env: image.env(),
        env: &service.env,
        working_dir: image.working_dir(),
        user,
        network,
        storage: storage.as_ref(),
    })?;
    let hash = hash(&image, service, &args);
    let network = if service.host_network { "" } else { SHARED };
    let labels = labels([
        ("workflow", workflow),
        ("service", &service.name),
        ("spec", &hash),
        ("network", network),
    ]);
    Ok(PlannedService { image, spec, hash, labels })
}

/// The network namespace for the container `id`: that which containers of its workflow share, by a process in it.
/// `None` while none of them runs.
///
/// # Errors
/// When containerd refuses.
pub async fn shared_network(
    containerd: &Containerd,
    workflow: &str,
    id: &str,
) -> Result<Option<PathBuf>, Failure> {
    let (mut containers, tasks) = (containerd.containers().await?, containerd.tasks().await?);
    // A container of this id is about to be replaced, and so may functions be.
    containers.retain(|it| {
        it.label("workflow") == workflow && it.label("network") == SHARED && it.id != id
    });
    containers.sort_by_key(|it| !it.is_service());
    let alive = |container: &Container| tasks.get(&container.id).filter(|task| task.is_alive());
    Ok(containers.iter().find_map(alive).map(network_of))
}

/// The network namespace of a task.
pub fn network_of(task: &Task) -> PathBuf {
    PathBuf::from(format!("/proc/{}/ns/net", task.pid))
}

/// A workflow's services. `containers` are all that there are.
pub fn of_workflow(containers: &[Container], workflow: &str) -> Vec<ServiceContainer> {
    let own = || containers.iter().filter(|it| it.label("workflow") == workflow);
    let is_used = |service: &str| {
        own().any(|container| container.label("uses").split(',').any(|used| used == service))
    };
    let services = own().filter(|it| it.is_service());
    services
        .map(|it| ServiceContainer { id: it.id.clone(), is_used: is_used(it.label("service")) })
        .collect()
}

/// Program and arguments, as Kubernetes combines those of the image and the container.
fn command(image: &Stored, service: &Service) -> Vec<String> {
    let Service { command, args, .. } = service;
    let of_image = |words: Vec<String>, own: &[String]| {
        if own.is_empty() { words } else { own.to_vec() }
    };
    if command.is_empty() {
        return [image.entrypoint(), of_image(image.cmd(), args)].concat();
    }
    [command.as_slice(), args.as_slice()].concat()
}

/// The user that runs a service.
fn user(image: &Stored, service: &Service) -> Result<User, Failure> {
    if let Some(user) = service.user {
        return Ok(user);
    }
    let text = image.user();
    let (uid, gid) = text.split_once(':').unwrap_or((&text, "0"));
    let number = |text: &str| match text {
        "" | "root" => Some(0),
        number => number.parse().ok(),
    };
    number(uid).zip(number(gid)).map(|(uid, gid)| User { uid, gid }).ok_or_else(|| {
        let text = format!(
            "service {}: image {} has the user `{text}`, a name: give its numbers in `user`, such as \"999:999\"",
            service.name, image.name
        );
        Failure::text(Exit::Data, text)
    })
}

fn storage_folder(config: &NodeConfig, namespace: &str, workflow: &str, service: &str) -> PathBuf {
    config.cache_dir.join(STORAGE).join(namespace).join(workflow).join(service)
}

/// Makes the folder of a storage, for the user of the service. Programs that begin as root and then change their user
/// enter it, too; on the host, the folders above keep others out.
fn make_storage(folder: &Path, user: User) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    create_private_dir(folder).map_err(io::Error::other)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(STORAGE_MODE))?;
    chown(folder, Some(user.uid), Some(user.gid))
}

/// Removes the storage of a workflow's services, or of one of them. Returns its folder; `None` if there is none.
///
/// # Errors
/// When the file system refuses.
pub fn remove_storage(
    config: &NodeConfig,
    namespace: &str,
    workflow: &str,
    service: Option<&str>,
) -> Result<Option<PathBuf>, Failure> {
    // Names are parts of a path.
    let names = [Some(namespace), Some(workflow), service];
    if names.iter().flatten().any(|name| function_name(name).is_err()) {
        return Ok(None);
    }
    let of_workflow = config.cache_dir.join(STORAGE).join(namespace).join(workflow);
    let folder = service.map_or_else(|| of_workflow.clone(), |service| of_workflow.join(service));
    match fs::remove_dir_all(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let text = format!("the storage {} cannot be removed", folder.display());
            return Err(anyhow::Error::new(error).context(text).into());
        }
    }
    // Folders stay while others are in them.
    for above in folder.ancestors().skip(1).take_while(|above| *above != config.cache_dir) {
        if fs::remove_dir(above).is_err() {
            break;
        }
    }
    Ok(Some(folder))
}

/// Changes when the container would be another one.
fn hash(image: &Stored, service: &Service, args: &[String]) -> String {
    let Service { env, user, host_network, storage, .. } = service;
    let path = storage.as_ref().map(|storage| &storage.path);
    let text = format!("{} {args:?} {env:?} {user:?} {host_network} {path:?}", image.digest);
    hex::encode(&Sha256::digest(text)[..8])
}

#[cfg(test)]
#[path = "service_containers/tests.rs"]
mod tests;
