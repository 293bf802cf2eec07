//! A WASI command as the handler of a request: payload on stdin, response on stdout. stderr is the container's; a
//! failing command's caller gets a copy of its end.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use cwasi_modes::{CallError, Payload};
use cwasi_sys::process::redirect;
use cwasi_sys::segment::Segment;
use cwasi_vm::{CommandEnd, Host, Instance};
use cwasi_wire::control::FunctionLaunch;
use cwasi_wire::frame::INLINE_MAX;

/// Bytes that a command may write beyond the largest response before its writes fail, so that one write
/// that crosses the limit is seen to have crossed it.
const RESPONSE_SLACK: u64 = 16 << 20;

/// Bytes of a failed command's stdout that its caller gets; of stderr as many ([`Instance::stderr_tail`]).
const STDOUT_TAIL_MAX: u64 = 1024;

/// The container's own stdin and stdout, to return to after each request.
#[derive(Debug)]
pub struct SavedStdio {
    stdin: OwnedFd,
    stdout: OwnedFd,
}

/// stdin or stdout cannot be moved.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed: {source}")]
pub struct StdioError {
    operation: &'static str,
    #[source]
    source: io::Error,
}

fn os<E: Into<io::Error>>(operation: &'static str) -> impl Fn(E) -> StdioError {
    move |source| StdioError { operation, source: source.into() }
}

impl SavedStdio {
    pub fn new() -> Result<Self, StdioError> {
        let duplicate = os("duplicating stdin and stdout");
        Ok(Self {
            stdin: io::stdin().as_fd().try_clone_to_owned().map_err(&duplicate)?,
            stdout: io::stdout().as_fd().try_clone_to_owned().map_err(&duplicate)?,
        })
    }

    fn restore(&self) -> Result<(), StdioError> {
        redirect(&self.stdin, libc::STDIN_FILENO).map_err(os("restoring stdin"))?;
        redirect(&self.stdout, libc::STDOUT_FILENO).map_err(os("restoring stdout"))
    }
}

pub fn run<I: Instance>(
    instance: &mut I,
    export: &str,
    payload: &Payload,
    host: &mut Host,
    stdio: &SavedStdio,
    launch: &FunctionLaunch,
) -> Result<Payload, CallError> {
    let internal = |error: StdioError| CallError::Internal { message: error.to_string() };
    let mut output = output(launch.max_payload).map_err(internal)?;
    connect(payload, &output).map_err(internal)?;
    instance.keep_stderr();
    let end = instance.run_command(export, host);
    let said = instance.stderr_tail();
    stdio.restore().map_err(internal)?;
    let function = &launch.identity.function;
    if !matches!(end, CommandEnd::Exited(0)) {
        let said = last_words(said, &mut output).map_err(internal)?;
        return Err(match end {
            CommandEnd::Exited(code) => {
                CallError::CommandFailed { message: format!("{function}: exit code {code}{said}") }
            }
            CommandEnd::Trapped(trap) => {
                CallError::Trapped { message: format!("{function}: {trap}{said}") }
            }
        });
    }
    // Where the command stopped writing.
    let written = output.stream_position().map_err(os("lseek")).map_err(internal)?;
    if written > launch.max_payload {
        let what = format!("response of {function}");
        return Err(CallError::too_large(&what, written, launch.max_payload));
    }
    response(output, written).map_err(internal)
}

/// The ends of what a command that failed has written to stderr and stdout, for its caller: often the reason.
fn last_words(stderr: Vec<u8>, output: &mut File) -> Result<String, StdioError> {
    let mut words = String::new();
    for (stream, bytes) in [("stderr", stderr), ("stdout", stdout_tail(output)?)] {
        let text = String::from_utf8_lossy(&bytes);
        // The tail may begin inside a character.
        let text = text.trim_start_matches(char::REPLACEMENT_CHARACTER).trim();
        if !text.is_empty() {
            words.extend(["; end of its ", stream, ": ", text]);
        }
    }
    Ok(words)
}

fn stdout_tail(output: &mut File) -> Result<Vec<u8>, StdioError> {
    let written = output.stream_position().map_err(os("lseek"))?;
    let start = written.saturating_sub(STDOUT_TAIL_MAX);
    let mut bytes = vec![0; usize::try_from(written - start).unwrap_or(0)];
    output.read_exact_at(&mut bytes, start).map_err(os("read"))?;
    Ok(bytes)
}

/// The first `written` bytes: small ones travel in the frame, large ones as the memfd itself.
fn response(output: File, written: u64) -> Result<Payload, StdioError> {
    match usize::try_from(written) {
        Ok(len) if len <= INLINE_MAX => {
            let mut bytes = vec![0; len];
            output.read_exact_at(&mut bytes, 0).map_err(os("read"))?;
            Ok(Payload::Inline(bytes))
        }
        _ => {
            output.set_len(written).map_err(os("ftruncate"))?;
            Segment::seal(output.into())
                .map(Payload::Segment)
                .map_err(|error| os("sealing the response")(io::Error::other(error)))
        }
    }
}

/// A memfd for the response that cannot grow beyond the limit and its slack.
fn output(max_payload: u64) -> Result<File, StdioError> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"cwasi-stdout", flags).map_err(os("memfd_create"))?);
    // Sparse: no page is there before it is written.
    file.set_len(max_payload.saturating_add(RESPONSE_SLACK)).map_err(os("ftruncate"))?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).map_err(os("F_SEAL_GROW"))?;
    Ok(file)
}

/// Puts the payload on stdin, at its start, and `output` on stdout.
fn connect(payload: &Payload, output: &File) -> Result<(), StdioError> {
    let input = match payload {
        Payload::Inline(bytes) => Segment::copy_of(bytes),
        // All who got this memfd share one position in it, and a leased one goes on behind the payload.
        Payload::Segment(segment) => segment.sealed_copy(),
    };
    let input = input.map_err(|error| os("copying the payload")(io::Error::other(error)))?;
    redirect(&input.as_fd(), libc::STDIN_FILENO).map_err(os("redirecting stdin"))?;
    redirect(output, libc::STDOUT_FILENO).map_err(os("redirecting stdout"))
}
