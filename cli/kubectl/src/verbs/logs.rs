//! `cwasi logs --kube`: what the containers of a Workflow's pods wrote, by Kubernetes' API.

use std::io;
use std::process::ExitCode;
use std::time::SystemTime;

use cwasi_wire::log_line::with_time;
use futures_util::stream::{self, Stream, StreamExt as _};
use futures_util::{AsyncRead, AsyncReadExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::LogParams;

use crate::cluster::pods::{self, PodLog};
use crate::cluster::workflows::{functions_of_spec, needs, services_of_spec};
use crate::cluster::{Cluster, did_you_mean};
use cwasi_cli::arguments::Global;
use cwasi_cli::cluster::ClusterError;
use cwasi_cli::commands::log_lines::{Line, LogLines};
use cwasi_cli::commands::log_printer::{LogPrinter, Shown};
use cwasi_cli::commands::logs::Logs;
use cwasi_cli::failure::{Exit, Failure};
use cwasi_cli::interrupt::Interrupt;
use cwasi_cli::output;

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;
/// Most logs that are followed at a time: each is a connection to a node.
const FOLLOWED_MAX: usize = 32;

/// What the user asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub follow: bool,
    pub timestamps: bool,
    pub since: Option<SystemTime>,
    pub tail: Option<usize>,
    pub raw: bool,
    pub json: bool,
}

impl Wanted {
    /// What the command line asks for.
    pub const fn of(verb: &Logs, global: &Global) -> Self {
        let Logs { follow, timestamps, since, tail, raw, .. } = *verb;
        Self { follow, timestamps, since, tail, raw, json: global.json }
    }

    /// The API selects the lines.
    fn parameters(self) -> Result<LogParams, Failure> {
        let since_time = self.since.map(Timestamp::try_from).transpose()?;
        Ok(LogParams {
            follow: self.follow,
            since_time,
            tail_lines: self.tail.map(|lines| i64::try_from(lines).unwrap_or(i64::MAX)),
            timestamps: self.has_times(),
            ..LogParams::default()
        })
    }

    const fn has_times(self) -> bool {
        self.timestamps || self.json
    }

    const fn shown(self, named: bool) -> Shown {
        let Self { timestamps, json, raw, .. } = self;
        Shown { since: None, tail: None, timestamps, named: named && !json, json, raw }
    }
}

/// Prints the logs of `names`, each of which is `WORKFLOW` or `WORKFLOW/FUNCTION`.
pub async fn run(cluster: &Cluster, names: &[String], wanted: Wanted) -> Result<ExitCode, Failure> {
    let mut logs = Vec::new();
    for name in names {
        logs.extend(logs_of(cluster, name).await?);
    }
    if wanted.follow && logs.len() > FOLLOWED_MAX {
        return Err(ClusterError::TooManyLogs { found: logs.len(), max: FOLLOWED_MAX }.into());
    }
    let shown = wanted.shown(logs.len() > 1);
    let mut printers: Vec<_> = logs.iter().map(|log| Printer::new(log, shown, wanted)).collect();
    let mut interrupt = Interrupt::new()?;
    tokio::select! {
        exit = interrupt.received() => Ok(exit.into()),
        printed = print(cluster, &logs, &mut printers, wanted) => printed.map(|()| ExitCode::SUCCESS),
    }
}

/// The logs of the pods that `name` has now.
async fn logs_of(cluster: &Cluster, name: &str) -> Result<Vec<PodLog>, ClusterError> {
    let (name, function) = match name.split_once('/') {
        Some((name, function)) => (name, Some(function)),
        None => (name, None),
    };
    let workflow = cluster.workflow(name).await?;
    let known = [functions_of_spec(&workflow), services_of_spec(&workflow)].concat();
    if let Some(function) = function.filter(|name| !known.iter().any(|it| it == name)) {
        let nearest = did_you_mean(function, known.iter().map(String::as_str));
        let (workflow, name) = (name.to_owned(), function.to_owned());
        return Err(ClusterError::NotInWorkflow { workflow, name, nearest });
    }
    let pods = cluster.pods(&pods::selector(name)).await?;
    let found: Vec<_> = pods.iter().flat_map(|pod| logs_in(pod, name, function)).collect();
    if found.is_empty() {
        let need = needs(&workflow).into_iter().next().map(|it| it.message);
        return Err(ClusterError::NoPods {
            what: function.map_or_else(|| name.to_owned(), |function| format!("{name}/{function}")),
            namespace: cluster.namespace.clone(),
            problem: need.unwrap_or_else(|| {
                format!("they have not begun, or have been removed; `cwasi ps --kube {name}` shows its functions")
            }),
        });
    }
    Ok(found)
}

/// The containers of a pod that belong to a function of the Workflow; `None` = all.
fn logs_in(pod: &Pod, workflow: &str, function: Option<&str>) -> Vec<PodLog> {
    if function.is_some_and(|function| !pods::runs(pod, workflow, function)) {
        return Vec::new();
    }
    let has_label = pod.labels().contains_key(cwasi_operator_api::names::FUNCTION);
    let is_wanted = |container: &str| {
        function.is_none_or(|function| has_label || pods::is_of(pod, container, function))
    };
    let containers = pods::containers(pod).map(|it| it.name.clone());
    let wanted = containers.filter(|container| is_wanted(container));
    wanted.map(|container| PodLog { pod: pod.name_any(), container }).collect()
}

/// Prints the logs one after the other, or together while they are followed.
async fn print(
    cluster: &Cluster,
    logs: &[PodLog],
    printers: &mut [Printer],
    wanted: Wanted,
) -> Result<(), Failure> {
    let parameters = wanted.parameters()?;
    let (mut followed, mut refused, mut opened) = (Vec::new(), None, 0);
    for (index, log) in logs.iter().enumerate() {
        let chunks = match cluster.log(log, parameters.clone()).await {
            Ok(stream) => chunks(index, stream),
            // A container that has not started has no log yet.
            Err(error @ ClusterError::Refused { .. }) => {
                refused = Some(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        opened += 1;
        if wanted.follow {
            followed.push(chunks.boxed());
        } else {
            copy(chunks.boxed(), printers).await?;
        }
    }
    if let Some(error) = refused {
        if opened == 0 {
            return Err(error.into());
        }
        output::note(format_args!("cwasi: {error}"));
    }
    copy(stream::select_all(followed), printers).await?;
    let out = &mut io::stdout().lock();
    for printer in printers {
        printer.printer.rest(out, true).map_err(output::failure)?;
    }
    Ok(())
}

async fn copy(
    mut chunks: impl Stream<Item = (usize, io::Result<Vec<u8>>)> + Unpin,
    printers: &mut [Printer],
) -> Result<(), Failure> {
    while let Some((index, chunk)) = chunks.next().await {
        let printer = &mut printers[index];
        let chunk = chunk.map_err(|error| {
            let id = printer.printer.id();
            let text =
                format!("the log of {id} broke off: {error}; run the command again, with --since");
            Failure::text(Exit::Unavailable, text)
        })?;
        printer.push(&chunk).map_err(output::failure)?;
    }
    Ok(())
}

/// The log as it arrives; its index is that of its printer.
fn chunks(index: usize, log: impl AsyncRead) -> impl Stream<Item = (usize, io::Result<Vec<u8>>)> {
    stream::unfold(Some(Box::pin(log)), move |log| async move {
        let mut log = log?;
        let mut chunk = vec![0; CHUNK];
        match log.read(&mut chunk).await {
            Ok(0) => None,
            Ok(len) => {
                chunk.truncate(len);
                Some(((index, Ok(chunk)), Some(log)))
            }
            Err(error) => Some(((index, Err(error)), None)),
        }
    })
}

/// Prints one log.
struct Printer {
    printer: LogPrinter,
    /// The lines begin with the API's times.
    times: Option<LogLines>,
}

impl Printer {
    fn new(log: &PodLog, shown: Shown, wanted: Wanted) -> Self {
        let PodLog { pod, container } = log;
        let printer = LogPrinter::new(format!("{pod}/{container}"), container.clone(), shown);
        Self { printer, times: wanted.has_times().then(LogLines::default) }
    }

    fn push(&mut self, chunk: &[u8]) -> io::Result<()> {
        let out = &mut io::stdout().lock();
        let Some(lines) = &mut self.times else { return self.printer.push(chunk, out) };
        let mut timed = Vec::with_capacity(chunk.len());
        lines.push(chunk, |line| {
            timed.extend_from_slice(&our_time(line));
            Ok(())
        })?;
        self.printer.push(&timed, out)
    }
}

/// A line with its time as the runtime writes times. The API's has nanoseconds, and the node's time zone.
fn our_time(line: Line<'_>) -> Vec<u8> {
    let api_time = || {
        let end = line.bytes.iter().position(|byte| *byte == b' ')?;
        let time: Timestamp = str::from_utf8(&line.bytes[..end]).ok()?.parse().ok()?;
        Some((SystemTime::from(time), &line.bytes[end + 1..]))
    };
    match if line.continues { None } else { api_time() } {
        Some((time, text)) => with_time(time, text),
        None => line.bytes.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_api_become_the_runtime_s() {
        let line = |bytes: &'static str, continues| {
            let line = Line { bytes: bytes.as_bytes(), continues, is_cut: false };
            String::from_utf8(our_time(line)).unwrap()
        };
        let zoned = "2026-11-23T06:31:45.123456789+02:00 a b\n";
        assert_eq!(line(zoned, false), "2026-11-23T04:31:45.123456Z a b\n");
        assert_eq!(line(zoned, true), zoned);
        assert_eq!(line("no time\n", false), "no time\n");
    }
}
