//! `cwasi invoke FUNCTION`: calls a function; its response goes to stdout, and the exit code says how it ended.

use std::fs;
use std::io::{IsTerminal as _, Read as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use cwasi_abi::Errno;
use cwasi_config::NodeConfig;
use cwasi_host::caller::{CALLER_NAME, CallerIdentity, HostAnswer, HostCall, HostCaller};
use cwasi_modes::{CallError, Payload};
use cwasi_sys::segment::Segment;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::arguments::{Global, NodeArguments};
use crate::duration;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Invoke {
    /// Function of the namespace, or NAMESPACE/FUNCTION
    pub function: String,
    /// The payload: a text, @FILE, or - for stdin
    #[arg(short, long, default_value = "", hide_default_value = true, value_name = "TEXT|@FILE|-")]
    pub data: String,
    /// Longest wait, such as 5s; a plain number is of seconds
    #[arg(long, default_value = "60s", value_parser = duration::parse)]
    pub timeout: Duration,
    /// Name of this caller, as the function's `cwasi.allow` has it
    #[arg(long = "as", default_value = CALLER_NAME, value_name = "NAME")]
    pub caller: String,
    /// Kubernetes namespace of this caller, on a node of a cluster
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        conflicts_with = "kube",
        value_name = "NAME"
    )]
    pub pod_namespace: String,
    /// Record a trace of the call, and say on stderr how to see it
    #[arg(long)]
    pub trace: bool,
    /// Say on stderr which mode moved the data, and why
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub on: NodeArguments,
}

impl Invoke {
    /// Calls it once.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let payload = payload(self.bytes()?)?;
        let config = NodeConfig::load(None, None)?;
        let identity = CallerIdentity {
            name: self.caller,
            pod_namespace: self.pod_namespace,
            ..CallerIdentity::in_namespace(&global.namespace)
        };
        // First: a signal that ended this process would leave the files of the caller behind.
        let mut interrupt = Interrupt::new()?;
        let caller = HostCaller::start(&config, &identity)?;
        let began = Instant::now();
        let deadline = began.checked_add(self.timeout).ok_or_else(|| {
            Failure::text(Exit::Usage, "--timeout is longer than this clock: use 10m, for example")
        })?;
        let recorded = self.trace;
        let call = HostCall { deadline, recorded, ..HostCall::new(&self.function, payload) };
        let called = async { Ok(caller.call(call).await) };
        let answer = interrupt.or(called).await;
        let duration = began.elapsed();
        caller.flush().await;
        let answer = match answer? {
            Ok(answer) => answer,
            Err(error) => {
                if global.json {
                    output::json(&failed(&error, duration))?;
                }
                return Err(Failure::new(exit(&error), anyhow::Error::new(error)));
            }
        };
        if let Some(trace) = &answer.trace {
            output::note(format_args!("cwasi: cwasi trace {trace} shows the call"));
        }
        if self.verbose {
            // The reason says the path.
            output::note(format_args!("cwasi: {} ({})", answer.mode.name(), answer.reason));
        }
        if global.json {
            output::json(&succeeded(answer, duration)?)?;
        } else {
            let mut response = answer.payload.into_vec()?;
            if ends_line(&response, stdout().is_terminal()) {
                response.push(b'\n');
            }
            output::bytes(&response)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The payload.
    ///
    /// # Errors
    /// When its file or stdin cannot be read.
    pub fn bytes(&self) -> Result<Vec<u8>, Failure> {
        Ok(match self.data.split_at_checked(1) {
            Some(("@", "")) => {
                return Err(Failure::text(Exit::Usage, "--data @ names no file: use --data @FILE"));
            }
            Some(("@", file)) => fs::read(file)
                .with_context(|| format!("payload {file} cannot be read"))
                .map_err(|error| Failure::new(Exit::Missing, error))?,
            Some(("-", "")) => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).context("stdin cannot be read")?;
                bytes
            }
            _ => self.data.clone().into_bytes(),
        })
    }
}

fn payload(bytes: Vec<u8>) -> Result<Payload, Failure> {
    if bytes.len() <= cwasi_abi::INLINE_MAX {
        return Ok(Payload::Inline(bytes));
    }
    Ok(Payload::Segment(Segment::copy_of(&bytes)?))
}

/// True if a line feed follows the response, which has none: the shell's prompt would stand behind it.
fn ends_line(response: &[u8], terminal: bool) -> bool {
    terminal && response.last().is_some_and(|last| *last != b'\n')
}

/// What `--json` prints of a call with an answer. A response that is no UTF-8 is in base64.
fn succeeded(answer: HostAnswer, duration: Duration) -> Result<Value, Failure> {
    let HostAnswer { payload, mode, path, reason, trace, .. } = answer;
    let mut document = json!({
        "outcome": Errno::Ok.name(), "errno": Errno::Ok.code(), "mode": mode.name(), "reason": &*reason,
        "path": Some(path.text()).filter(|path| !path.is_empty()),
        "duration_ms": duration.as_secs_f64() * 1e3, "trace": trace,
    });
    let (key, text) = match String::from_utf8(payload.into_vec()?) {
        Ok(text) => ("payload", text),
        Err(error) => ("payload_base64", BASE64_STANDARD.encode(error.as_bytes())),
    };
    document[key] = text.into();
    Ok(document)
}

/// What `--json` prints of a call that ended without an answer.
fn failed(error: &CallError, duration: Duration) -> Value {
    let errno = error.errno();
    json!({
        "outcome": errno.name(), "errno": errno.code(), "error": error.to_string(),
        "duration_ms": duration.as_secs_f64() * 1e3,
    })
}

/// The exit code of a call that ended without an answer.
const fn exit(error: &CallError) -> Exit {
    match error {
        CallError::Trapped { .. }
        | CallError::Undeliverable { .. }
        | CallError::Failed { .. }
        | CallError::CommandFailed { .. }
        | CallError::Broken { .. } => Exit::Findings,
        CallError::Invalid(_) | CallError::TooLarge(_) => Exit::Data,
        CallError::NoSuchFunction { .. } => Exit::Missing,
        CallError::Unreachable { .. } | CallError::NotAvailable(_) => Exit::Unavailable,
        CallError::Internal { .. } => Exit::Failed,
        CallError::Overloaded(_) | CallError::Timeout { .. } | CallError::Late { .. } => {
            Exit::TryAgain
        }
        CallError::Refused(_) => Exit::Denied,
    }
}

#[cfg(test)]
mod tests {
    use cwasi_wire::envelope::{CallStatus, Detail};

    use super::*;

    #[test]
    fn each_end_of_a_call_has_an_exit_code() {
        for (errno, code) in [
            (Errno::InvalidArgument, 65),
            (Errno::NoSuchFunction, 66),
            (Errno::Refused, 77),
            (Errno::Timeout, 75),
            (Errno::Overloaded, 75),
            (Errno::Trapped, 1),
            (Errno::Failed, 1),
            (Errno::PayloadTooLarge, 65),
            (Errno::Unreachable, 69),
            (Errno::Broken, 1),
            (Errno::NotAvailable, 69),
            (Errno::Internal, 70),
        ] {
            let status = CallStatus::of(errno.code(), Detail::DETAIL_NONE);
            let error = CallError::from_wire(status, "why".to_owned(), "f");
            assert_eq!((error.errno(), exit(&error) as u8), (errno, code));
        }
    }
}
