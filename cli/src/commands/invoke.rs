//! `cwasi invoke FUNCTION`: calls a function; its response goes to stdout, and the exit code says how it ended.

use std::fs;
use std::io::Read as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use cwasi::config::NodeConfig;
use cwasi::modes::{CallError, Payload};
use cwasi::shim::caller::{CALLER_NAME, CallerIdentity, HostCall, HostCaller};
use cwasi::sys::segment::Segment;
use tokio::time::Instant;

use crate::arguments::Global;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Invoke {
    /// Function of the namespace, or NAMESPACE/FUNCTION
    function: String,
    /// The payload: a text, @FILE, or - for stdin
    #[arg(short, long, default_value = "", hide_default_value = true, value_name = "TEXT|@FILE|-")]
    data: String,
    /// Longest wait, such as 5s
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Name of this caller, as the function's `cwasi.allow` has it
    #[arg(long = "as", default_value = CALLER_NAME, value_name = "NAME")]
    caller: String,
    /// Record a trace of the call, and say on stderr how to see it
    #[arg(long)]
    trace: bool,
    /// Say on stderr which mode moved the data, and why
    #[arg(short, long)]
    verbose: bool,
}

impl Invoke {
    /// Calls it once.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let payload = self.payload()?;
        let config = NodeConfig::load(None, None)?;
        let identity =
            CallerIdentity { name: self.caller, ..CallerIdentity::in_namespace(&global.namespace) };
        let caller = HostCaller::start(&config, &identity)?;
        let deadline = Instant::now() + self.timeout;
        let recorded = self.trace;
        let call = HostCall { deadline, recorded, ..HostCall::new(&self.function, payload) };
        let called = async { caller.call(call).await.map_err(failure) };
        let answer = Interrupt::new()?.or(called).await;
        caller.flush().await;
        let answer = answer?;
        if let Some(trace) = &answer.trace {
            output::note(format_args!("cwasi: cwasi trace {trace} shows the call"));
        }
        if self.verbose {
            output::note(format_args!("cwasi: {} ({})", answer.mode.name(), answer.reason));
        }
        output::bytes(&answer.payload.into_vec()?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn payload(&self) -> Result<Payload, Failure> {
        let bytes = match self.data.split_at_checked(1) {
            Some(("@", file)) => fs::read(file)
                .with_context(|| format!("payload {file} cannot be read"))
                .map_err(|error| Failure::new(Exit::Missing, error))?,
            Some(("-", "")) => {
                let mut bytes = Vec::new();
                std::io::stdin().read_to_end(&mut bytes).context("stdin cannot be read")?;
                bytes
            }
            _ => self.data.clone().into_bytes(),
        };
        if bytes.len() <= cwasi_abi::INLINE_MAX {
            return Ok(Payload::Inline(bytes));
        }
        Ok(Payload::Segment(Segment::copy_of(&bytes)?))
    }
}

/// The exit code of a call that ended without an answer.
fn failure(error: CallError) -> Failure {
    Failure::new(exit(&error), anyhow::Error::new(error))
}

const fn exit(error: &CallError) -> Exit {
    match error {
        CallError::Trapped { .. } | CallError::Failed { .. } | CallError::Broken { .. } => {
            Exit::Findings
        }
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
    use cwasi::wire::envelope::{CallStatus, Detail};
    use cwasi_abi::Errno;

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
