//! One pod: made, watched until it runs, asked until it answers, deleted.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::events::{Events, TimeOfDay};

/// Port of both sides.
const PORT: u16 = 8080;
/// Between two attempts to get an answer.
const ATTEMPT: Duration = Duration::from_millis(1);

/// Who runs a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// WebAssembly, by the RuntimeClass `cwasi`.
    Ours,
    /// A native image, by runc.
    Native,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours",
            Self::Native => "native",
        })
    }
}

/// A pod that is to start.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub name: &'a str,
    pub query: &'a str,
    pub side: Side,
    pub number: usize,
    pub node: &'a str,
    pub env: &'a [String],
    pub network: Option<&'a str>,
}

/// Since the pod was scheduled, in ms, as a client of the API sees that.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// Until containerd's event says that the function's task has started, which no kubelet has to look for.
    pub started_ms: f64,
    /// Until the API says that the container runs.
    pub running_ms: f64,
    /// Until the first answer with status 200.
    pub answer_ms: f64,
}

/// A pod that was started.
#[derive(Clone, Debug, Serialize)]
pub struct Start {
    pub function: String,
    pub side: Side,
    #[serde(flatten)]
    pub times: Times,
}

/// Starts a pod, takes its times and deletes it.
///
/// # Errors
/// When the API fails, or the pod does.
pub async fn start(
    client: &Client,
    namespace: &str,
    wanted: &Wanted<'_>,
    node_events: &mut Events,
) -> Result<Times> {
    node_events.skip()?;
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pod(wanted)?;
    let name = pod.name_any();
    let list = api.list(&Default::default()).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let watch = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = Box::pin(api.watch(&watch, &version).await?);
    api.create(&PostParams::default(), &pod).await.context("create a pod")?;
    let mut scheduled = None;
    let (running, address) = loop {
        let event = events.try_next().await?.context("the watch ended")?;
        let now = Instant::now();
        let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
        let Some(status) = pod.status else { continue };
        let conditions = status.conditions.unwrap_or_default();
        if conditions.iter().any(|it| it.type_ == "PodScheduled" && it.status == "True") {
            scheduled.get_or_insert((now, TimeOfDay::now()));
        }
        if status.phase.as_deref() == Some("Failed") {
            bail!("the pod {name} has failed");
        }
        let containers = status.container_statuses.unwrap_or_default();
        let runs =
            containers.iter().any(|it| it.state.as_ref().is_some_and(|it| it.running.is_some()));
        if let (true, Some(address)) = (runs, status.pod_ip) {
            break (now, address);
        }
    };
    let (scheduled, time_of_day) = scheduled.context("the pod was never scheduled")?;
    while !answers(&address, wanted.query).await {
        tokio::time::sleep(ATTEMPT).await;
    }
    let answered = Instant::now();
    // The sandbox's task starts before the function's.
    let started_ms = node_events.last_start().await?.millis_since(time_of_day);
    api.delete(&name, &DeleteParams::default().grace_period(1)).await?;
    // The next pod does not start beside this one's end.
    loop {
        let event = events.try_next().await?.context("the watch ended")?;
        if matches!(event, WatchEvent::Deleted(_)) {
            break;
        }
    }
    let millis = |until: Instant| (until - scheduled).as_secs_f64() * 1e3;
    Ok(Times { started_ms, running_ms: millis(running), answer_ms: millis(answered) })
}

async fn answers(address: &str, query: &str) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect((address, PORT)).await?;
        let head = format!("GET /?{query} HTTP/1.1\r\nhost: function\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await?;
        std::io::Result::Ok(response.starts_with(b"HTTP/1.1 200 "))
    };
    ask.await.unwrap_or(false)
}

fn pod(wanted: &Wanted<'_>) -> Result<Pod> {
    let Wanted { name, side, number, node, .. } = wanted;
    let env = wanted.env.iter().filter_map(|pair| pair.split_once('='));
    let env: Vec<_> = env.map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("{name}-{side}-{number}") },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": node },
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "restartPolicy": "Never",
            "containers": [{
                "name": "function",
                "image": format!("localhost/function-{name}:{side}"),
                "imagePullPolicy": "IfNotPresent",
                "env": env,
            }],
        },
    });
    if *side == Side::Ours {
        pod["spec"]["runtimeClassName"] = json!("cwasi");
        let annotations = &mut pod["metadata"]["annotations"];
        *annotations = json!({ "cwasi.role": "secondary", "cwasi.http": PORT.to_string() });
        if let Some(network) = wanted.network {
            annotations["cwasi.network"] = json!(network);
        }
    }
    serde_json::from_value(pod).context("a pod")
}
