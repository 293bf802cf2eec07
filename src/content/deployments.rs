//! Images and containers of a containerd namespace, as facts for embedding. Runs in the shim daemon.

use std::path::Path;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{Container, ListContainersRequest, ListImagesRequest};
use containerd_client::tonic::transport::Channel;
use oci_spec::runtime::Spec;

use super::{ContentStore, lookup};
use cwasi_coordinator::bundle;
use cwasi_coordinator::trust::{Deployment, Image};

/// Most images and containers per look-up.
const LISTED_MAX: usize = 16_384;
/// Longest list of images in bytes.
const LIST_MAX: usize = 64 << 20;

pub(super) async fn images(store: &ContentStore, channel: Channel) -> Result<Vec<Image>, String> {
    let request = store.request(ListImagesRequest { filters: Vec::new() })?;
    let response = ImagesClient::new(channel)
        .max_decoding_message_size(LIST_MAX)
        .list(request)
        .await
        .map_err(lookup("the list of", "images"))?;
    let images = response.into_inner().images.into_iter().take(LISTED_MAX);
    Ok(images
        .filter_map(|image| Some(Image { name: image.name, digest: image.target?.digest }))
        .collect())
}

pub(super) async fn deployments(
    store: &ContentStore,
    channel: Channel,
) -> Result<Vec<Deployment>, String> {
    let request = store.request(ListContainersRequest { filters: Vec::new() })?;
    let mut client = ContainersClient::new(channel);
    let stream = client.list_stream(request).await.map_err(lookup("the list of", "containers"))?;
    let mut stream = stream.into_inner();
    let mut found = Vec::new();
    // One message per container: all specifications together exceed a message's size.
    while let Some(message) = stream.message().await.map_err(lookup("the list of", "containers"))? {
        found.extend(
            message.container.and_then(|Container { id, image, spec, .. }| {
                deployment(&id, &image, &spec?.value)
            }),
        );
        if found.len() >= LISTED_MAX {
            break;
        }
    }
    Ok(found)
}

/// A container as a function; `None` without a command, or with annotations that no function has.
pub(super) fn deployment(container: &str, image: &str, spec: &[u8]) -> Option<Deployment> {
    let spec: Spec = serde_json::from_slice(spec).ok()?;
    let annotations = bundle::function_spec(&spec).ok()?;
    let command = bundle::args(&spec).first()?;
    let path = command.split_once('#').map_or(command.as_str(), |(path, _)| path);
    let cwd = spec.process().as_ref().map_or(Path::new("/"), |process| process.cwd().as_path());
    Some(Deployment {
        container: container.to_owned(),
        image: image.to_owned(),
        path: cwd.join(path).to_string_lossy().into_owned(),
        function: bundle::function_name(&annotations, bundle::named_by(path, image)).ok()?,
        pod_namespace: annotations.pod_namespace,
        workflow: annotations.workflow,
        trust: annotations.trust,
        engine: annotations.engine,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: &str) -> Option<Deployment> {
        deployment("c", "i", spec.as_bytes())
    }

    #[test]
    fn a_function_is_known_by_its_annotations() {
        let found = found(
            r#"{"ociVersion":"1.0.2","process":{"cwd":"/","args":["/lib/geo.wasm#f"],"user":{"uid":0,"gid":0}},
                "annotations":{"cwasi.workflow":"w","cwasi.trust":"t",
                "io.kubernetes.cri.sandbox-namespace":"p"}}"#,
        );
        assert_eq!(
            found,
            Some(Deployment {
                container: "c".into(),
                image: "i".into(),
                path: "/lib/geo.wasm".into(),
                pod_namespace: "p".into(),
                function: "geo".into(),
                workflow: "w".into(),
                trust: "t".into(),
                engine: None,
            })
        );
        let relative = r#"{"ociVersion":"1.0.2","process":{"cwd":"/app","args":["m.wasm"],"user":{"uid":0,"gid":0}}}"#;
        assert_eq!(super::deployment("c", "i", relative.as_bytes()).unwrap().path, "/app/m.wasm");
        for other in ["", "{}", r#"{"ociVersion":"1.0.2","annotations":{"cwasi.rol":"x"}}"#] {
            assert_eq!(deployment("c", "i", other.as_bytes()), None, "{other}");
        }
    }
}
