//! `cwasi image ls` and `cwasi image prune`: the images that `run` and `deploy` have made of local modules.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::json;

use crate::arguments::Global;
use crate::containerd::Containerd;
use crate::containerd::containers::Container;
use crate::deployment::Node;
use crate::deployment::hops::bytes;
use crate::failure::Failure;
use crate::output;
use crate::table::Table;

/// The annotation that names images to embed.
const EMBED: &str = "cwasi.embed";

/// A local module's image.
struct LocalImage {
    name: String,
    /// Bytes of its layers; `None` when its documents cannot be read.
    size: Option<u64>,
    /// Containers that run it or embed it, also those that have ended.
    used_by: BTreeSet<String>,
}

/// Prints all of them.
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

/// Removes those that no container uses, and prints their names.
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
    let mut embedded = container.annotation(EMBED).split(',').filter_map(|it| it.split_once('='));
    container.image == image || embedded.any(|(_, from)| from.trim() == image)
}
