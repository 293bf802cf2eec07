//! `cwasi image ls` and `cwasi image prune`: the images that `run` and `deploy` have made of local modules.

use std::collections::BTreeSet;
use std::process::ExitCode;

use cwasi_config::annotations::Embed;
use serde_json::json;

use crate::arguments::Global;
use crate::containerd::Containerd;
use crate::containerd::containers::Container;
use crate::deployment::Node;
use crate::deployment::hops::bytes;
use crate::failure::Failure;
use crate::output;
use crate::table::Table;

/// The annotation that names images to embed; for one container of a pod, a dot and its name follow.
const EMBED: &str = "cwasi.embed";

/// A local module's image.
struct LocalImage {
    name: String,
    /// Bytes of its layers; `None` when its documents cannot be read.
    size: Option<u64>,
    /// Containers that run it or embed it, also those that have ended.
    used_by: BTreeSet<String>,
}

/// Prints all local modules' images.
///
/// # Errors
/// When containerd does not answer.
pub async fn list(global: &Global) -> Result<ExitCode, Failure> {
    let images = read(&Node::connect(global).await?.containerd).await?;
    if global.json {
        let rows = images.iter().map(|LocalImage { name, size, used_by }| {
            json!({ "name": name, "bytes": size, "containers": used_by })
        });
        output::json(&rows.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["IMAGE", "SIZE", "CONTAINERS"]);
    for LocalImage { name, size, used_by } in images {
        let containers: Vec<_> = used_by.into_iter().collect();
        let size = size.map_or_else(|| "-".to_owned(), bytes);
        let containers = if containers.is_empty() { "-".to_owned() } else { containers.join(", ") };
        table.row([name, size, containers]);
    }
    output::text(table)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes the images that no container uses, and prints their names.
///
/// # Errors
/// When containerd refuses one.
pub async fn prune(global: &Global) -> Result<ExitCode, Failure> {
    let containerd = Node::connect(global).await?.containerd;
    let (mut printed, mut removed) = (Ok(()), Vec::new());
    for image in read(&containerd).await?.into_iter().filter(|image| image.used_by.is_empty()) {
        containerd.remove_image(&image.name).await?;
        if !global.json {
            printed = printed.and(output::line(&image.name));
        }
        removed.push(json!({ "name": image.name, "state": "removed" }));
    }
    if global.json {
        printed = output::json(&removed);
    }
    printed.map(|()| ExitCode::SUCCESS)
}

async fn read(containerd: &Containerd) -> Result<Vec<LocalImage>, Failure> {
    let names = containerd.local_images().await?;
    // After the names: a container that came since keeps its image.
    let containers = containerd.containers().await?;
    let mut images = Vec::new();
    for name in names {
        let stored = containerd.image(&name).await.ok();
        let size = stored.map(|stored| stored.manifest.layers().iter().map(|it| it.size()).sum());
        let users = containers.iter().filter(|container| uses(container, &name));
        let used_by = users.map(|container| container.id.clone()).collect();
        images.push(LocalImage { name, size, used_by });
    }
    Ok(images)
}

fn uses(container: &Container, image: &str) -> bool {
    let names_images = |key: &str| {
        key.strip_prefix(EMBED).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let values = container.annotations.iter().filter(|(key, _)| names_images(key));
    // A container with a bad value does not start.
    let mut embedded = values.flat_map(|(_, value)| Embed::list(value).unwrap_or_default());
    container.image == image || embedded.any(|embed| embed.image.as_deref() == Some(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_images_are_in_use() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let uses = |key: &str, value: &str| {
            let container = Container {
                id: "c".to_owned(),
                image: "caller:1".to_owned(),
                labels: [].into(),
                annotations: [(key.to_owned(), value.to_owned())].into(),
                args: Vec::new(),
                spec: oci_spec::runtime::Spec::default(),
            };
            assert!(uses(&container, "caller:1"));
            uses(&container, "local:1")
        };
        assert!(uses("cwasi.embed", "a=local:1") && uses("cwasi.embed", "b, a=local:1"));
        assert!(uses("cwasi.embed", &format!("a=local:1@{digest}")));
        assert!(uses("cwasi.embed.sidecar", "a=local:1"));
        assert!(!uses("cwasi.embed", "local") && !uses("cwasi.embed", "a=other:1"));
        assert!(!uses("cwasi.embedded", "a=local:1"));
    }
}
