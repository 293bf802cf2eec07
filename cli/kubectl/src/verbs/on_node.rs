//! A verb that the command on a node of the cluster does: its output and exit code are this command's.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::cluster::Cluster;
use crate::cluster::node::{Ended, NodePod};
use cwasi_cli::arguments::Global;
use cwasi_cli::failure::{Exit, Failure};
use cwasi_cli::interrupt::Interrupt;
use cwasi_cli::output;
use cwasi_workflow::visible;

/// containerd's namespace of pods.
const NAMESPACE: &str = "k8s.io";

/// Words of a command on a node, with what the user gave for every verb.
#[must_use]
pub fn words<'a>(words: impl IntoIterator<Item = &'a str>, global: &Global) -> Vec<String> {
    let mut all: Vec<String> = words.into_iter().map(str::to_owned).collect();
    all.extend([format!("--namespace={NAMESPACE}")]);
    if global.given.address {
        all.push(format!("--address={}", global.address.display()));
    }
    if global.json {
        all.push("--json".to_owned());
    }
    all
}

/// Runs it.
pub async fn run(
    cluster: &Cluster,
    on: &NodePod,
    words: &[String],
    payload: &[u8],
) -> Result<ExitCode, Failure> {
    let mut last = b'\n';
    let print = |bytes: &[u8]| {
        last = bytes.last().copied().unwrap_or(last);
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush())
    };
    let running = async { Ok(cluster.run_on(on, words, payload, print).await?) };
    let Ended { code, stderr } = Interrupt::new()?.or(running).await?.map_err(output::failure)?;
    // As the command does on a machine: the shell's prompt would stand behind it.
    if last != b'\n' && io::stdout().is_terminal() {
        output::bytes(b"\n")?;
    }
    Ok(report(on, &Ended { code, stderr }))
}

/// Prints its stderr; its exit code.
pub fn report(on: &NodePod, ended: &Ended) -> ExitCode {
    let text = String::from_utf8_lossy(&ended.stderr);
    if !text.is_empty() {
        output::note(text.trim_end_matches('\n'));
    }
    if ended.code == Exit::Usage as u8 {
        output::note(format_args!(
            "cwasi: the command on node {} may be older than this one: upgrade the image of its DaemonSet",
            on.node
        ));
    }
    ExitCode::from(ended.code)
}

/// Runs it for its result: stdout, and how it ended.
pub async fn captured(
    cluster: &Cluster,
    on: &NodePod,
    words: &[String],
    max: usize,
) -> Result<(Vec<u8>, Ended), Failure> {
    let mut stdout = Vec::new();
    let keep = |bytes: &[u8]| {
        if stdout.len() + bytes.len() > max {
            return Err(io::Error::other(format!("more than {max} bytes")));
        }
        stdout.extend_from_slice(bytes);
        Ok(())
    };
    let ended = cluster.run_on(on, words, &[], keep).await?;
    match ended {
        Ok(ended) => Ok((stdout, ended)),
        Err(error) => {
            let text = format!("what node {} says cannot be kept: {error}", on.node);
            Err(Failure::text(Exit::Failed, text))
        }
    }
}

/// What a command on a node said, without its own name.
#[must_use]
pub fn said(ended: &Ended) -> String {
    let text = String::from_utf8_lossy(&ended.stderr);
    let text = text.trim();
    visible::text(text.strip_prefix("cwasi: ").unwrap_or(text)).into_owned()
}
