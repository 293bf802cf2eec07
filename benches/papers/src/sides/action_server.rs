//! The native server of WOW's and the thesis' actions: hyper on all processors, a thread of its own for each running
//! action, as the native servers of the nine functions have.

use std::convert::Infallible;
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

/// Most actions that run at a time: more than the capacity test has.
const THREADS_MAX: usize = 8192;

/// Serves until the process ends.
///
/// # Errors
/// When the variable PORT names no free port.
pub fn serve() -> Result<()> {
    let port = std::env::var("PORT").context("PORT")?.parse::<u16>().context("PORT")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
        loop {
            let (connection, _client) = listener.accept().await?;
            connection.set_nodelay(true)?;
            let serving = http1::Builder::new()
                .serve_connection(TokioIo::new(connection), service_fn(answer));
            tokio::spawn(serving);
        }
    })
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let ended = spawn_blocking(move || bench_actions::answer(&query)).await;
    let (status, text) = match ended {
        Ok(Ok(text)) => (StatusCode::OK, text),
        Ok(Err(text)) => (StatusCode::INTERNAL_SERVER_ERROR, text),
        Err(panic) => (StatusCode::INTERNAL_SERVER_ERROR, panic.to_string()),
    };
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    Ok(response)
}
