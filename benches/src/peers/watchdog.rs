//! A function as a native program behind a classic watchdog: the server starts a process for each request, the body is its
//! stdin, and its stdout is the response.

use std::io::{Read as _, Write as _, stdin, stdout};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use cwasi_bench_protocol::payload::Seen;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::monotonic_ns;

/// First argument of this program as such a function.
pub const HANDLER: &str = "handler";

/// Most processes at a time; further requests wait. A container has 1,024 descriptors: one for each connection, and three
/// for each process.
pub const PROCESSES_MAX: usize = 100;
static PROCESSES: Semaphore = Semaphore::const_new(PROCESSES_MAX);

/// Passes a request to a process of its own.
pub async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let body = request.into_body().collect().await?.to_bytes();
    let _permit = PROCESSES.acquire().await.context("the server has ended")?;
    let mut process = Command::new(std::env::current_exe()?)
        .arg(HANDLER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start the function's process")?;
    let mut input = process.stdin.take().context("stdin is a pipe")?;
    input.write_all(&body).await?;
    drop(input);
    let output = process.wait_with_output().await?;
    ensure!(output.status.success(), "the function's process ended with {}", output.status);
    Ok(Response::new(Full::from(output.stdout)))
}

/// The function: reads its stdin, and answers with its length.
///
/// # Errors
/// When a pipe is closed.
pub fn handle() -> Result<()> {
    let mut payload = Vec::new();
    stdin().lock().read_to_end(&mut payload)?;
    let seen = Seen { at: monotonic_ns(), sum: payload.len() as u64 };
    stdout().lock().write_all(&seen.to_bytes())?;
    Ok(())
}
