//! Runs this command on a node: by the API's exec, in the privileged pod of the DaemonSet `cwasi-install`, whose image
//! has the command. The command enters the node's namespaces, so it finds containerd, the runtime's state and its
//! configuration where they are for an operator of the node.
//!
//! Invariant: stdout is the command's, byte for byte, and so is the exit code.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use kube::{Api, ResourceExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Cluster;
use super::pods::{is_live, node, runs_container};
use cwasi_cli::cluster::ClusterError;

/// Label of the DaemonSet's pods, and their container.
const LABELS: &str = "app=cwasi-install";
const CONTAINER: &str = "node";
/// Bytes in flight between the API and this command, for each stream.
const BUFFER: usize = 64 * 1024;
/// Longest stderr in bytes; more is lost.
const STDERR_MAX: usize = 1 << 20;

/// Longest wait for output that came before the end.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// `$1` is the length of the payload, and the rest are the command's arguments. The command reads a payload until its
/// end, and not every version of the exec protocol can end stdin. The shell's own process, which is outside of the
/// node's file system, leads back to the image.
const SCRIPT: &str = r#"length=$1
shift
head -c "$length" | nsenter -t 1 -m -u -i -n -p -- "/proc/$$/root/cwasi/bin/cwasi" "$@""#;

/// A pod of the DaemonSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    pub node: String,
    pod: String,
    namespace: String,
}

/// How the command on a node ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: u8,
    pub stderr: Vec<u8>,
}

impl Cluster {
    /// The pods by which nodes are reached, by the nodes' names.
    ///
    /// # Errors
    /// When the API refuses, or there are none.
    pub async fn node_pods(
        &self,
        namespace: &str,
    ) -> Result<BTreeMap<String, NodePod>, ClusterError> {
        let pods = self.pods_of(namespace, LABELS).await?;
        // One that has to be started again and again is in the phase Running, too.
        let running = pods.iter().filter(|pod| is_live(pod) && runs_container(pod, CONTAINER));
        let found = running.filter_map(|pod| {
            let node = node(pod)?.to_owned();
            let namespace = namespace.to_owned();
            Some((node.clone(), NodePod { node, pod: pod.name_any(), namespace }))
        });
        let found: BTreeMap<_, _> = found.collect();
        if found.is_empty() {
            return Err(ClusterError::NoNodes { namespace: namespace.to_owned() });
        }
        Ok(found)
    }

    /// The pod by which a node is reached.
    ///
    /// # Errors
    /// When there is none.
    pub async fn node_pod(&self, namespace: &str, node: &str) -> Result<NodePod, ClusterError> {
        let found = self.node_pods(namespace).await?.remove(node);
        found.ok_or_else(|| ClusterError::NoNode {
            node: node.to_owned(),
            namespace: namespace.to_owned(),
        })
    }

    /// Runs `cwasi ARGUMENTS…` on a node with `payload` as stdin, and hands its stdout to `each`.
    ///
    /// # Errors
    /// When the API refuses, or the connection breaks before the command ends. The inner result is that of `each`.
    pub async fn run_on(
        &self,
        on: &NodePod,
        arguments: &[String],
        payload: &[u8],
        each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<io::Result<Ended>, ClusterError> {
        let NodePod { node, pod, namespace } = on;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let length = payload.len().to_string();
        let shell = ["/bin/sh", "-c", SCRIPT, "cwasi", length.as_str()];
        let command = shell.into_iter().chain(arguments.iter().map(String::as_str));
        let streams = AttachParams::default()
            .container(CONTAINER)
            .stdin(!payload.is_empty())
            .max_stdin_buf_size(BUFFER)
            .max_stdout_buf_size(BUFFER);
        let attached = api.exec(pod, command, &streams).await;
        // The API asks for `create` since Kubernetes 1.35, and for `get` before.
        let mut attached = attached.map_err(self.failed(("create", "pods/exec"), namespace))?;
        let ended =
            |problem: &str| ClusterError::Ended { node: node.clone(), problem: problem.to_owned() };
        let mut stdin = attached.stdin();
        let stdout = attached.stdout().ok_or_else(|| ended("no stdout"))?;
        let stderr = attached.stderr().ok_or_else(|| ended("no stderr"))?;
        let status = attached.take_status().ok_or_else(|| ended("no status"))?;
        let write = async {
            // The command may end without reading it.
            if let Some(stdin) = &mut stdin
                && stdin.write_all(payload).await.is_ok()
            {
                let _ended = stdin.flush().await;
            }
        };
        let mut said = Vec::new();
        let keep = |chunk: &[u8]| {
            let room = STDERR_MAX.saturating_sub(said.len());
            said.extend_from_slice(&chunk[..chunk.len().min(room)]);
            Ok(())
        };
        let read = async { tokio::join!(copy(stdout, each), copy(stderr, keep)) };
        // The status comes last, or the word that there is none. After a connection that broke, or a command that has
        // not read its payload, the streams themselves never end.
        let (status, streams) = {
            tokio::pin!(write, read, status);
            let (mut is_written, mut streams) = (false, None);
            let status = loop {
                tokio::select! {
                    status = &mut status => break status,
                    () = &mut write, if !is_written => is_written = true,
                    read = &mut read, if streams.is_none() => streams = Some(read),
                }
            };
            if streams.is_none() {
                streams = timeout(REST_TIMEOUT, read).await.ok();
            }
            (status, streams)
        };
        // Until now: its end would end the connection.
        drop(stdin);
        if let Some((Err(error), _)) = streams {
            return Ok(Err(error));
        }
        let status = status.ok_or_else(|| ended("the connection broke"))?;
        let (_copied, read) = streams.ok_or_else(|| ended("its output has no end"))?;
        read.map_err(|error| ended(&error.to_string()))?;
        let code = exit_code(&status)
            .ok_or_else(|| ended(status.message.as_deref().unwrap_or("no reason is given")))?;
        Ok(Ok(Ended { code, stderr: said }))
    }
}

/// Reads to the end, also if `each` fails: the connection's other streams wait behind this one.
async fn copy(
    mut stdout: impl AsyncRead + Unpin,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunk = vec![0; BUFFER];
    let mut outcome = Ok(());
    loop {
        match stdout.read(&mut chunk).await? {
            0 => return outcome,
            length if outcome.is_ok() => outcome = each(&chunk[..length]),
            _ => {}
        }
    }
}

/// What the API says of a command that ended; `None` if it did not run to an end.
fn exit_code(status: &Status) -> Option<u8> {
    if status.status.as_deref() == Some("Success") {
        return Some(0);
    }
    let causes = status.details.as_ref()?.causes.as_ref()?;
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"))?;
    code.message.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_exit_code_is_in_the_status() {
        let code = |status| exit_code(&serde_json::from_value(status).unwrap());
        assert_eq!(code(json!({ "status": "Success" })), Some(0));
        let failed = |reason, message| {
            json!({
                "status": "Failure", "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": reason, "message": message }] },
            })
        };
        assert_eq!(code(failed("ExitCode", "66")), Some(66));
        assert_eq!(code(failed("ExitCode", "many")), None);
        assert_eq!(code(failed("Other", "66")), None);
        assert_eq!(code(json!({ "status": "Failure", "reason": "InternalError" })), None);
    }
}
