//! The pods of a namespace, and the functions in them.

use cwasi_operator_api::names;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, ResourceExt};

use super::{Cluster, did_you_mean};
use cwasi_cli::cluster::ClusterError;

/// Annotation with a function's name.
const FUNCTION: &str = "cwasi.function";

/// A container of a pod that runs a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFunction {
    pub pod: String,
    pub node: String,
    /// The Workflow of which its pod was made.
    pub workflow: Option<String>,
    /// Id of its container in the node's containerd.
    pub container: String,
    /// True if it has passed its probes, which it has without any.
    pub is_ready: bool,
}

/// A log that the API has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLog {
    pub pod: String,
    pub container: String,
}

/// Labels of a Workflow's pods.
#[must_use]
pub fn selector(workflow: &str) -> String {
    format!("{}={workflow}", names::WORKFLOW)
}

/// Init containers, among which are sidecars, and the others.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// True if a container is `function`'s: by its annotation, or its name, which a replica in one pod has as `NAME-2`.
#[must_use]
pub fn is_of(pod: &Pod, container: &str, function: &str) -> bool {
    if let Some(name) = pod.annotations().get(&format!("{FUNCTION}.{container}")) {
        return name == function;
    }
    let Some(rest) = container.strip_prefix(function) else { return false };
    let number = rest.strip_prefix('-').unwrap_or_default();
    rest.is_empty() || number.parse::<u32>().is_ok()
}

/// True for a pod of a Workflow that runs the function, by its label or its container.
#[must_use]
pub fn runs(pod: &Pod, workflow: &str, function: &str) -> bool {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    label(names::WORKFLOW) == Some(workflow)
        && match label(names::FUNCTION) {
            Some(labelled) => labelled == function,
            // One pod has all functions.
            None => containers(pod).any(|it| is_of(pod, &it.name, function)),
        }
}

/// False for a pod that has ended, such as one that was evicted, and for one that ends.
#[must_use]
pub fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The node of a pod; `None` before it is scheduled.
#[must_use]
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// What callers name the function of a container: its annotation, or else its module's file, or else the container,
/// whose image names the module then.
fn function_name(pod: &Pod, container: &Container) -> String {
    let annotations = pod.annotations();
    let own = annotations.get(&format!("{FUNCTION}.{}", container.name));
    if let Some(name) = own.or_else(|| annotations.get(FUNCTION)) {
        return name.clone();
    }
    let module = container.command.as_ref().and_then(|command| command.first());
    let file = module.map(|path| path.rsplit('/').next().unwrap_or(path));
    let name = file.map(|file| file.strip_suffix(".wasm").unwrap_or(file));
    name.unwrap_or(&container.name).to_owned()
}

/// True if a container of the pod runs.
pub(super) fn runs_container(pod: &Pod, name: &str) -> bool {
    let state = statuses(pod).find(|it| it.name == name).and_then(|it| it.state.as_ref());
    state.is_some_and(|it| it.running.is_some())
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    })
}

/// The functions of a pod that run, with what callers name them.
fn running(pod: &Pod) -> Vec<(String, PodFunction)> {
    let Some(node) = node(pod) else { return Vec::new() };
    let found = containers(pod).filter_map(|container| {
        let status = statuses(pod).find(|it| it.name == container.name)?;
        status.state.as_ref()?.running.as_ref()?;
        let id = status.container_id.as_deref()?;
        let function = PodFunction {
            pod: pod.name_any(),
            node: node.to_owned(),
            workflow: pod.labels().get(names::WORKFLOW).cloned(),
            container: id.rsplit("//").next().unwrap_or(id).to_owned(),
            is_ready: status.ready,
        };
        Some((function_name(pod, container), function))
    });
    found.collect()
}

impl Cluster {
    /// Pods of the namespace with these labels, by name.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn pods(&self, labels: &str) -> Result<Vec<Pod>, ClusterError> {
        self.pods_of(&self.namespace, labels).await
    }

    /// Pods of a namespace with these labels; `""` = all.
    pub(super) async fn pods_of(
        &self,
        namespace: &str,
        labels: &str,
    ) -> Result<Vec<Pod>, ClusterError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let found = api.list(&ListParams::default().labels(labels)).await;
        let mut pods = found.map_err(self.failed(("list", "pods"), namespace))?.items;
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    /// A pod that runs `target`, which is a function of the namespace or `NAMESPACE/FUNCTION`: a ready one if there is
    /// one.
    ///
    /// # Errors
    /// When none runs; the error has the nearest name.
    pub async fn function(&self, target: &str) -> Result<PodFunction, ClusterError> {
        let (namespace, name) = target.rsplit_once('/').unwrap_or((&self.namespace, target));
        let pods = self.pods_of(namespace, "").await?;
        let functions: Vec<_> = pods.iter().filter(|it| is_live(it)).flat_map(running).collect();
        let named = functions.iter().filter(|(function, _)| function == name);
        let best = named.max_by_key(|(_, found)| found.is_ready);
        best.map(|(_, found)| found.clone()).ok_or_else(|| ClusterError::NoFunction {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            nearest: did_you_mean(name, functions.iter().map(|(function, _)| function.as_str())),
        })
    }

    /// Reads a log; with `follow` until its container ends.
    ///
    /// # Errors
    /// When the API refuses, such as for a container that has not started.
    pub async fn log(
        &self,
        log: &PodLog,
        parameters: LogParams,
    ) -> Result<impl futures_util::AsyncBufRead + use<>, ClusterError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let parameters = LogParams { container: Some(log.container.clone()), ..parameters };
        let opened = api.log_stream(&log.pod, &parameters).await;
        opened.map_err(self.failed(("get", "pods/log"), &self.namespace))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotations: &Value, labels: &Value) -> Pod {
        let status = |name: &str, state: Value| {
            json!({
                "name": name, "ready": true, "restartCount": 0, "image": "i", "imageID": "",
                "containerID": format!("containerd://id-of-{name}"), "state": state,
            })
        };
        serde_json::from_value(json!({
            "metadata": { "name": "p", "annotations": annotations, "labels": labels },
            "spec": {
                "nodeName": "node1",
                "initContainers": [{ "name": "greeter-2", "command": ["/m/greeter.wasm"] }],
                "containers": [{ "name": "front" }, { "name": "done" }],
            },
            "status": {
                "initContainerStatuses": [status("greeter-2", json!({ "running": {} }))],
                "containerStatuses": [
                    status("front", json!({ "running": {} })),
                    status("done", json!({ "terminated": { "exitCode": 0 } })),
                ],
            },
        }))
        .unwrap()
    }

    fn names(annotations: &Value) -> Vec<(String, String)> {
        let found = running(&pod(annotations, &json!({})));
        found.into_iter().map(|(name, found)| (name, found.container)).collect()
    }

    #[test]
    fn a_pod_that_has_ended_or_ends_is_not_live() {
        let pod = |phase: &str, ends: Option<&str>| -> Pod {
            let metadata = json!({ "deletionTimestamp": ends });
            let pod = json!({ "metadata": metadata, "status": { "phase": phase } });
            serde_json::from_value(pod).unwrap()
        };
        assert!(is_live(&pod("Running", None)) && is_live(&pod("Pending", None)));
        assert!(!is_live(&pod("Failed", None)) && !is_live(&pod("Succeeded", None)));
        assert!(!is_live(&pod("Running", Some("2026-01-01T00:00:00Z"))));
    }

    #[test]
    fn functions_have_the_names_that_callers_use() {
        let found = |one: &str, two: &str| {
            [(one, "id-of-greeter-2"), (two, "id-of-front")]
                .map(|(name, id)| (name.to_owned(), id.to_owned()))
        };
        assert_eq!(names(&json!({})), found("greeter", "front"));
        let annotated = json!({ "cwasi.function": "a", "cwasi.function.front": "b" });
        assert_eq!(names(&annotated), found("a", "b"));
    }

    #[test]
    fn a_pod_runs_the_function_of_its_label_or_those_of_its_containers() {
        let none = json!({});
        let labelled = pod(&none, &json!({ names::WORKFLOW: "w", names::FUNCTION: "front" }));
        assert!(runs(&labelled, "w", "front") && !runs(&labelled, "w", "greeter"));
        let whole = pod(&none, &json!({ names::WORKFLOW: "w" }));
        assert!(runs(&whole, "w", "front") && runs(&whole, "w", "greeter"));
        assert!(!runs(&whole, "w", "gree") && !runs(&whole, "v", "front"));
        let of = ["greeter", "greeter-2", "greeter-10"];
        assert!(of.into_iter().all(|it| is_of(&whole, it, "greeter")));
        let others = ["greeter-b", "greeter2", "greeter-", "greeter-2b", "greet"];
        assert!(!others.into_iter().any(|it| is_of(&whole, it, "greeter")));
        let named = pod(&json!({ "cwasi.function.greeter-2": "greeter-2" }), &none);
        assert!(is_of(&named, "greeter-2", "greeter-2") && !is_of(&named, "greeter-2", "greeter"));
    }
}
