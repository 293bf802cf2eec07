//! Asks the pods of the DaemonSet `cwasi-metrics` for their nodes' counters.
//!
//! Invariant: time, bytes, and requests at a time have bounds, and an answer is taken as a whole or not at all.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::exposition::{self, Malformed};
use super::window::Counters;

/// Label of the pods.
pub const SELECTOR: &str = "app=cwasi-metrics";
/// Name of their port, and its number if they do not say it.
const PORT_NAME: &str = "metrics";
const PORT: u16 = 9477;
/// Longest time for one answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Nodes that are asked at a time.
const CONCURRENCY: usize = 8;
/// Longest answer: 2048 edges with their histograms and long names.
const BODY_MAX: usize = 64 << 20;
/// Longest line.
const LINE_MAX: usize = 16 << 10;

/// Where a node's metrics are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub node: String,
    pub address: SocketAddr,
}

/// What came of a node.
pub type Answer = (Target, Result<Counters, ScrapeError>);

/// Why a node's counters are not known.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    #[error("{address} does not take a connection")]
    Connect {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("{address} does not speak HTTP")]
    Http {
        address: SocketAddr,
        #[source]
        source: hyper::Error,
    },
    #[error("{address} answers with {status}")]
    Status { address: SocketAddr, status: StatusCode },
    #[error("{address} has not answered within {}s", TIMEOUT.as_secs())]
    Timeout { address: SocketAddr },
    #[error(
        "the answer of {address} is longer than {BODY_MAX} bytes, or a line of it than {LINE_MAX}"
    )]
    TooLong { address: SocketAddr },
    #[error("line {line} of the answer of {address} cannot be read")]
    Line {
        address: SocketAddr,
        line: usize,
        #[source]
        source: Malformed,
    },
    #[error("the answer of {address} ends before its last line")]
    Cut { address: SocketAddr },
}

/// Pods that serve metrics, in the namespace of the operator.
///
/// # Errors
/// What the API says.
pub async fn targets(client: &Client, namespace: &str) -> kube::Result<Vec<Target>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let found = pods.list(&ListParams::default().labels(SELECTOR)).await?;
    Ok(found.items.iter().filter_map(target).collect())
}

fn target(pod: &Pod) -> Option<Target> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    if pod.metadata.deletion_timestamp.is_some() || status.phase.as_deref() != Some("Running") {
        return None;
    }
    let ip: IpAddr = status.pod_ip.as_ref()?.parse().ok()?;
    let mut ports = spec.containers.iter().filter_map(|it| it.ports.as_ref()).flatten();
    let named = ports.find(|port| port.name.as_deref() == Some(PORT_NAME));
    let port = named.and_then(|it| u16::try_from(it.container_port).ok()).unwrap_or(PORT);
    // The counters are the node's: they go on when its pod is replaced.
    let node = spec.node_name.clone().unwrap_or_else(|| pod.name_any());
    Some(Target { node, address: SocketAddr::new(ip, port) })
}

/// Asks all targets.
pub async fn ask_all(targets: Vec<Target>) -> Vec<Answer> {
    let answers = targets.into_iter().map(|target| async move {
        let address = target.address;
        let asked = tokio::time::timeout(TIMEOUT, ask(address)).await;
        (target, asked.unwrap_or(Err(ScrapeError::Timeout { address })))
    });
    stream::iter(answers).buffer_unordered(CONCURRENCY).collect().await
}

async fn ask(address: SocketAddr) -> Result<Counters, ScrapeError> {
    let failed = |source| ScrapeError::Http { address, source };
    let stream = TcpStream::connect(address)
        .await
        .map_err(|source| ScrapeError::Connect { address, source })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // It ends with this function.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request = Request::get("/metrics")
        .header(HOST, address.to_string())
        .body(Empty::<Bytes>::new())
        .expect("a path and an address are a request");
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    if status != StatusCode::OK {
        return Err(ScrapeError::Status { address, status });
    }
    read(address, response.into_body()).await
}

/// Reads the lines as they come: an answer is much longer than what is kept of it.
async fn read(address: SocketAddr, mut body: Incoming) -> Result<Counters, ScrapeError> {
    let mut lines = Lines { address, number: 0, ended: false, counters: Counters::default() };
    let (mut rest, mut all) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|source| ScrapeError::Http { address, source })?;
        let Ok(data) = frame.into_data() else { continue };
        all += data.len();
        rest.extend_from_slice(&data);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in rest[..whole].split_inclusive(|byte| *byte == b'\n') {
            lines.add(line)?;
        }
        rest.drain(..whole);
        if all > BODY_MAX || rest.len() > LINE_MAX {
            return Err(ScrapeError::TooLong { address });
        }
    }
    lines.add(&rest)?;
    if lines.ended { Ok(lines.counters) } else { Err(ScrapeError::Cut { address }) }
}

struct Lines {
    address: SocketAddr,
    number: usize,
    /// True after the last line.
    ended: bool,
    counters: Counters,
}

impl Lines {
    fn add(&mut self, line: &[u8]) -> Result<(), ScrapeError> {
        self.number += 1;
        let fault = |source| ScrapeError::Line { address: self.address, line: self.number, source };
        let line = std::str::from_utf8(line).map_err(|_| fault(Malformed))?.trim_end();
        self.ended |= line == exposition::END;
        if let Some(sample) = exposition::sample(line).map_err(fault)? {
            self.counters.add(sample);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: &serde_json::Value, status: &serde_json::Value) -> Option<Target> {
        let pod =
            json!({ "metadata": { "name": "cwasi-metrics-x" }, "spec": spec, "status": status });
        target(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pod_is_asked_at_its_port_while_it_runs() {
        let spec = json!({ "nodeName": "node1", "containers": [{
            "name": "metrics", "ports": [{ "name": "metrics", "containerPort": 9000 }],
        }] });
        let running = json!({ "phase": "Running", "podIP": "10.1.2.3" });
        let at = |node: &str, address: &str| {
            Some(Target { node: node.to_owned(), address: address.parse().unwrap() })
        };
        assert_eq!(pod(&spec, &running), at("node1", "10.1.2.3:9000"));
        let bare = json!({ "containers": [{ "name": "metrics" }] });
        let sixth = json!({ "phase": "Running", "podIP": "fd00::7" });
        assert_eq!(pod(&bare, &sixth), at("cwasi-metrics-x", "[fd00::7]:9477"));
        assert_eq!(pod(&spec, &json!({ "phase": "Running" })), None);
        assert_eq!(pod(&spec, &json!({ "phase": "Pending", "podIP": "10.1.2.3" })), None);
    }
}
